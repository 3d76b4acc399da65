"""Train a language model with PPO to write better search queries.

    python train_ppo.py                                     a first look, on what data_prep.py wrote, or on the sample
    python train_ppo.py --warm-steps 150 --max-steps 500    with a supervised warm start before PPO
    python train_ppo.py --base-model gpt2 --rewrite replace --reward ndcg
    torchrun --nproc-per-node 2 train_ppo.py                two processes that share each update, as TRL shares it

Reads from --data: train.jsonl, with lines {"query": ..., "relevant_doc_ids": [...]}; pubmed_corpus.json, a list of
{"doc_id": ..., "text": ...}; and eval.jsonl, like train.jsonl (without it, a fifth of train.jsonl is held out). If
--data is left out and nothing is there, the sample data are made first.
Each update rewrites --batch-size queries, searches with the rewrites, and rewards them for what they find.

Writes the trained model to --output-dir, in the format of plain transformers. Writes to --run-dir: metrics.jsonl,
training.png, episodes/ (rewrites and rewards), evaluation.jsonl (held-out queries: raw, rewritten by the untrained
model, after the warm start and after PPO), warm/ (the warm-started model), config.json, code.diff and state/.
Re-run the same command to resume a killed run from its last checkpoint, with the same result.

--backend trl uses TRL's PPO trainer. --backend own uses our own short loop, which is faster
(forage/extras/rewriter/ppo.py). By default only a LoRA adapter is trained (--lora-rank).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

from forage.arguments import run_script
from forage.errors import UserError
from forage.extras.rewriter.options import GAIN, Options
from forage.files import making_folder
from forage.processes import first_process_first, is_first, join_processes, leave_processes, world

TOP = (
    "data", "base_model", "lora_rank", "rewrite", "mode", "reward", "max_steps", "warm_steps", "batch_size", "backend",
    "run_dir", "output_dir",
)  # fmt: skip
# Options that may differ when a run is resumed.
MAY_CHANGE = ("max_steps", "report_to", "save_every", "output_dir", "micro_batch_size")


def main(options: Options) -> None:
    options.check()
    from forage.extras.rewriter.actors import GPU_MODEL, load_policy, load_tokenizer, make_actors, save_lm
    from forage.extras.rewriter.data import origins, read_data
    from forage.extras.rewriter.rewards import Scorer, load_reward
    from forage.extras.rewriter.training import Evaluation, train, warm_start
    from forage.policy.base_models import resolve_model
    from forage.runs.run_folder import run_folder

    if world() > 1:
        join_processes()
    with first_process_first():
        model = resolve_model(options.base_model, on_gpu=GPU_MODEL)
        tokenizer = load_tokenizer(model)  # a base that is none is told before anything is made
        if options.data == Options.data and not options.data.exists():
            make_sample(options.data)
    # The first process alone measures, writes and prints; all of them train.
    holding = (
        run_folder(options.run_dir, options, MAY_CHANGE, **origins(options, model)) if is_first() else nullcontext()
    )
    with nullcontext() if is_first() else redirect_stdout(None), holding:
        with first_process_first():
            data = read_data(options, tokenizer)
        reward = load_reward(options.reward, data.search, options.k)
        scorer = Scorer(reward, options.query, tokenizer, over_question=options.reward == GAIN)
        evaluation = Evaluation(options, data.held_out, data.search, tokenizer)

        policy = load_policy(model, tokenizer, options)
        measured = evaluation.rewritten("untrained", policy, evaluation.raw()) if is_first() else []
        if options.warm_steps:
            with first_process_first():
                warm = warm_start(options, data, model, tokenizer)
            policy = load_policy(warm, tokenizer, options)
            measured = evaluation.rewritten("warm", policy, measured) if is_first() else []

        actors = make_actors(policy, options.actor, options.seed)
        train(options, data.train, actors, tokenizer, scorer)
        if is_first():
            save_lm(actors.policy, model, tokenizer, options.output_dir)
            print(f"the trained model is in {options.output_dir}")
            evaluation.after(actors.policy, measured)
    leave_processes()


def make_sample(folder: Path) -> None:
    """What data_prep.py writes for this script of the sample, ranked by words alone, which needs no embedder."""
    print(f"{folder} is not there, so the sample data are made for it", flush=True)
    with making_folder(folder) as partial, TemporaryDirectory() as scratch:
        places = [f"--{name}={scratch}/{name}" for name in ("output-dir", "content-dir", "cache-dir")]
        command = [
            sys.executable,
            str(Path(__file__).with_name("data_prep.py")),
            "--dataset-name=sample",
            "--embedder=none",
        ]
        if subprocess.run([*command, *places], stdout=subprocess.DEVNULL).returncode:  # noqa: S603
            raise UserError("the sample can't be made, as said above; make --data yourself with data_prep.py")
        for file in Path(scratch, "output-dir", "rewriter").iterdir():
            shutil.copy(file, partial)


if __name__ == "__main__":
    run_script(main, __doc__, top=TOP, begun=lambda options: options.run_dir / "config.json")
