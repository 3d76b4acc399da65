"""A chat model of 512 tokens, a policy over it and data for it: small enough that a whole training run takes seconds.

The tokenizer is trained on the spot, the weights are random. What the model writes is noise, so where a test needs
rewards that can be learnt, `rewards_of_tokens` rewards token ids.
"""

from functools import cache

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from forage.agent.prompts import REWRITE, RULE, TASK
from forage.agent.protocol import TOOL_TEXT, write_answer, write_call
from forage.data.records import Document, Question
from forage.files import write_jsonl
from forage.policy.adapters import publish_adapter
from forage.policy.manifest import PolicyManifest, write_policy_manifest
from forage.store.document_store import DocumentStore
from tests.factories import plain_store

VOCABULARY = 512
# As in SmolLM2: their ids are 0, 1 and 2, and the end of a turn ends and pads a sequence too.
UNKNOWN, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# What every prompt says, many times, so that its words become tokens and prompts stay as short as a real model's.
PROMPTS = f"system\n{TASK}{RULE}\n{TOOL_TEXT}\nuser\nassistant\n<tool_response>\n[1] \n</tool_response>\n{REWRITE}\n"
TURNS = "\n".join([
    "What is gout? What are the symptoms of asthma? How is anemia treated? What causes migraine? What mends disease 1?",
    "Disease 2 is mended by rest and by remedy 3. Gout is a kind of arthritis: crystals in a joint. It hurts at night.",
    write_call("gout"), write_answer("Rest and ice."), "error: neither a call nor an answer was found", "nothing found",
])  # fmt: skip


@cache
def _trained() -> str:
    """The tokenizer as JSON; the same each time."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False,
        special_tokens=[AddedToken(token, special=True) for token in (UNKNOWN, START, END)],
    )  # fmt: skip
    tokenizer.train_from_iterator([PROMPTS] * 20 + [TURNS] * 4, trainer)
    return tokenizer.to_str()


def make_tokenizer():
    """ChatML over 512 tokens: every byte has one, so any text comes back as it was."""
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_trained()), unk_token=UNKNOWN, bos_token=START, eos_token=END,
        pad_token=END, chat_template=CHAT_TEMPLATE, clean_up_tokenization_spaces=False,
    )  # fmt: skip


def make_model(seed=0, width=32, **settings):
    """A Llama of two layers with random weights, of the tokenizer's size unless `settings` say otherwise."""
    torch.manual_seed(seed)
    shape = {"vocab_size": VOCABULARY, "eos_token_id": 2, "bos_token_id": 1, "tie_word_embeddings": False} | settings
    config = LlamaConfig(
        hidden_size=width, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        **shape,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    # As weights are drawn, all tokens would be as likely as each other; so a token's entropy is 3.3 nats.
    model.lm_head.weight.data *= 24
    return model


def make_base(folder):
    """A model folder, as one downloads them."""
    make_model().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def make_policy(folder, base):
    """A policy folder over `base`: a fresh adapter v000000 and model.json."""
    lora = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    torch.manual_seed(0)
    policy = get_peft_model(LlamaForCausalLM.from_pretrained(base), lora)
    publish_adapter(policy, folder, 0)
    write_policy_manifest(PolicyManifest(folder, str(base), str(base), False, "float32"), folder)
    return folder


def make_data(folder, count=8):
    """A data folder: a store of eight documents that BM25 searches, six questions to train on and two held out.

    With another `count`, that many documents and questions, of which two are held out.
    """
    documents = [
        Document(f"d{n}", f"Disease {n}", f"Disease {n} is mended by rest and by remedy {n}.") for n in range(count)
    ]
    plain_store(folder / "store", documents)
    questions = [
        Question(f"q{n}", f"What mends disease {n}?", f"Remedy {n}.", relevant_chunk_ids=(f"d{n}#0",))
        for n in range(count)
    ]
    write_jsonl(folder / "train.jsonl", questions[:-2])
    write_jsonl(folder / "eval.jsonl", questions[-2:])
    return folder


def make_ground(folder):
    """Data whose questions have a type and a focus, and answers that stand in their documents."""
    topics = ["gout", "asthma", "anemia", "migraine", "eczema", "measles", "scabies", "angina"]
    documents = [Document(t, t.title(), f"{t.title()} is a disease. It is treated with rest.") for t in topics]
    plain_store(folder / "store", documents)
    questions = [Question(t, f"What is {t}?", f"{t.title()} is a disease.", "information", t, (t,), (f"{t}#0",))
                 for t in topics]  # fmt: skip
    write_jsonl(folder / "train.jsonl", questions[:6])
    write_jsonl(folder / "eval.jsonl", questions[6:])


def make_tiny(folder):
    """folder/base, folder/policy and folder/data."""
    make_policy(folder / "policy", make_base(folder / "base"))
    make_data(folder / "data")
    return folder


def rewards_of_tokens(embedder):
    """The share of an episode's tokens with an even id, and of those among the lowest 40 % of the vocabulary."""

    def even(episodes, questions):
        return [sum(i % 2 == 0 for i, m in zip(e.ids, e.mask, strict=True) if m) / max(1, e.sampled) for e in episodes]

    def low(episodes, questions):
        return [sum(i < 208 for i, m in zip(e.ids, e.mask, strict=True) if m) / max(1, e.sampled) for e in episodes]

    return {"even": even, "low": low}


def teach(folder, questions, settings=None, protocol=None, **teacher):
    """A teacher's well-formed episodes on the tiny data."""
    import asyncio

    from forage.agent.options import AgentSettings
    from forage.agent.protocol import Protocol
    from forage.sft.teacher import TeacherOptions, demonstrate

    settings = settings or AgentSettings(mode="sparse")
    protocol = protocol or Protocol(make_tokenizer(), settings.passage_tokens, settings.task)
    store = DocumentStore.open(folder / "data" / "store")

    def search(queries):
        return store.search(queries, settings.k, settings.mode)

    return asyncio.run(demonstrate(questions, search, protocol, settings, TeacherOptions(**teacher), 0))[0]
