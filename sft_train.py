"""Stage 3: warm start. The policy learns to search, read and answer in the protocol before it is rewarded for it.

    python sft_train.py --data data --policy models/policy --output-dir models/warm

Reads --data (train.jsonl, eval.jsonl and store/ from data_prep.py) and --policy (from create_lora_model.py). The policy
imitates demonstrations on training questions: a teacher's, which knows which query finds the answer and really searches
for it, and those in files of episodes (--demonstrations). It is trained only on what it has to write itself, not on
prompts or search results.

Writes to --output-dir, which is a policy folder too: model.json, agent.json (how the agent plays, for all later
stages), adapters/v000000, demonstrations.jsonl, stats.jsonl. Re-run the same command to resume a killed
run.
"""

from __future__ import annotations

from dataclasses import replace

from forage.agent.options import write_agent
from forage.arguments import run_script
from forage.files import clear_superseded, empty_folder, filling_folder
from forage.manifest import file_digest
from forage.policy.manifest import read_policy_manifest, write_policy_manifest
from forage.sft.options import FREE, SFTOptions
from forage.store.opening import digests_of, manifest_at


def main(options: SFTOptions) -> None:
    options.check()
    settings, manifest = options.search.settle(options.policy), read_policy_manifest(options.policy)
    _, fingerprint = manifest_at(options.address, options.data)  # before anything is written

    from forage.agent.protocol import Protocol  # after the checks: these load torch
    from forage.policy.adapters import publish_adapter
    from forage.policy.policy import check_length, load_policy
    from forage.runs.run_folder import keep_options
    from forage.sft.training import get_demonstrations, train

    output, way_out = options.output_dir, "another --output-dir, or --overwrite"
    with filling_folder(output, "adapters", "best/adapters", "state"):
        options.check()  # again, as another process may have finished the folder before this one held it
        if options.overwrite:
            empty_folder(output, mark="config.json")
        clear_superseded(output / "state")
        check_length(manifest, settings.max_tokens)
        # What does not exist is compressed.
        given = {str(path): file_digest(path) for path in options.demonstrations if path.exists()}
        data = digests_of(options.data, fingerprint)
        keep_options(output, options, FREE, way_out, data=data, demonstrations=given)
        memory = options.memory.on_this_device(settings.max_tokens, quantized=manifest.quantized)
        options = replace(options, memory=memory)
        demonstrations = get_demonstrations(options, Protocol.of_policy(manifest, settings), settings)
        policy = train(options, demonstrations, load_policy(manifest))
        write_policy_manifest(manifest, output)
        write_agent(settings, output)
        print(f"{publish_adapter(policy, output, 0)} is the warm start")


TOP = (
    "data", "policy", "output-dir", "num-demonstrations", "demonstrations", "max-steps", "learning-rate", "batch-size",
    "mode", "k", "task",
)  # fmt: skip

if __name__ == "__main__":
    run_script(main, __doc__, top=TOP, begun=lambda options: options.output_dir / "config.json")
