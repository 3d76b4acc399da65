"""What scripts load, loaded once in the process from which tests/kills.py forks them."""

from importlib import import_module

for name in (
    "chromadb", "matplotlib.figure", "peft", "rich.live", "rich.table", "sentence_transformers", "torch",
    "transformers.models.llama.modeling_llama", "forage.evaluation.report", "forage.grpo.training",
    "forage.policy.policy", "forage.publishing.merged", "forage.engines.local", "forage.extras.rewriter.training",
    "forage.sft.training",
):  # fmt: skip
    import_module(name)
