"""Training: the warm start, PPO updates from the last checkpoint to the last step, the record of each, and evaluations.

Before PPO, the rewriter learns to write how a relevant document begins, as in query2doc. In
https://arxiv.org/abs/2303.07678 a large model guesses such a text. A small one can't know it, but learns how texts that
answer such questions are worded, and searching for those words finds them. PPO then starts from a policy whose rewrites
sometimes help. An untrained policy's rewrites never do, and PPO can't reinforce what is never sampled.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure

from forage.agent.prompts import control_tokens, final_query
from forage.data.splits import in_rounds
from forage.errors import UserError, first_line
from forage.extras.rewriter.actors import (
    Actors,
    Policy,
    left_padded,
    load_policy,
    model_inputs,
    save_lm,
    with_adapter,
    with_padding,
    write_texts,
)
from forage.extras.rewriter.data import Data, Row, Search
from forage.extras.rewriter.options import Options, PPOOptions
from forage.extras.rewriter.ppo import PromptBatch, Training, make_optimizer, train_own
from forage.extras.rewriter.rewards import MEASURES, Episode, Scorer
from forage.extras.rewriter.trl_backend import train_trl
from forage.files import write_jsonl
from forage.manifest import plain
from forage.metrics import bootstrapped, clear, figure, span, verdict
from forage.optimizer import adamw, update_weights
from forage.policy.checkpoint import load_checkpoint, save_checkpoint
from forage.processes import all_gather, is_first, rank, world
from forage.runs import trackers
from forage.runs.plots import STYLE, draw_panel, save_figure
from forage.runs.trackers import Log, chosen, open_tracker
from forage.text import body_of

IGNORED = -100  # label of tokens that are not learned
WARM_WORDS = 12  # of a document, which the model learns to write
WARM_BATCH = 8  # questions of its update

Example = tuple[tuple[int, ...], str]
"""A prompt's tokens and the text to write after it."""


def warm_start(options: Options, data: Data, model: str, tokenizer: Any) -> str:
    """The folder of the warm-started model, which is trained once per run folder."""
    folder = options.run_dir / "warm"
    if not folder.exists():
        policy = load_policy(model, tokenizer, options)
        if options.actor.lora_rank:
            policy.lm = with_adapter(policy.lm, options.actor.lora_rank, options.seed)
        examples = examples_of(data.train, data.texts)
        train_warm(policy, tokenizer, examples, options.warm_steps, 5 * options.actor.usual_rate, options.seed)
        save_lm(policy, model, tokenizer, folder)
    return str(folder)


def examples_of(rows: Sequence[Row], texts: Mapping[str, str]) -> list[Example]:
    """Each question's prompt, and the beginning of its first relevant document."""
    return [(row.prompt, beginning_of(texts[row.relevant_doc_ids[0]], WARM_WORDS)) for row in rows]


def beginning_of(text: str, words: int) -> str:
    """A document's first words after its title and headings that only ask.

    Example: "Gout\\nWhat is gout? A joint hurts and swells.", 3 words: "A joint hurts".
    """
    title, _, rest = text.partition("\n")
    return " ".join(body_of(rest if rest.strip() else title).split()[:words])


def train_warm(policy: Policy, tokenizer: Any, examples: Sequence[Example], steps: int, rate: float, seed: int) -> None:
    """Train the policy's adapter, or all its weights where it has none, in fp32, to write the texts of the examples."""
    optimizer = adamw(policy.lm)
    draw = random.Random(seed)
    for step in range(steps):
        batch = [draw.choice(examples) for _ in range(WARM_BATCH)]
        loss = warm_loss(policy, tokenizer, batch)
        loss.backward()
        update_weights(optimizer, rate * (1 - step / steps))
        if (step + 1) % 10 == 0 or step + 1 == steps:
            print(f"warm start, update {step + 1} of {steps}: loss {loss.item():.3f}", flush=True)


def warm_loss(policy: Policy, tokenizer: Any, examples: Sequence[Example]) -> Any:
    """Mean cross-entropy of the texts' tokens and their eos; prompts and padding are not learned.

    A text longer than --max-new-tokens is cut and gets no eos: the model should not learn to stop in mid-sentence.
    """
    ids, labels = [], []
    for prompt, text in examples:
        text = control_tokens(tokenizer).broken(text)  # a document must not teach to end a turn
        tokens = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        tokens = tokens[: policy.sampling.max_new_tokens]
        ids.append([*prompt, *tokens])
        labels.append([IGNORED] * len(prompt) + tokens)
    ids_BT, labels_BT = (
        left_padded(rows, fill).to(policy.lm.device) for rows, fill in ((ids, policy.pad_id), (labels, IGNORED))
    )
    logits_BTV = policy(**model_inputs(ids_BT, policy.pad_id), use_cache=False).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), labels_BT[:, 1:].flatten(), ignore_index=IGNORED)


# PPO


def train(options: Options, rows: list[Row], actors: Actors, tokenizer: Any, scorer: Scorer) -> None:
    """Run the updates that are left, after the newest checkpoint in state/."""
    norms: list[float] = []
    optimizer = make_optimizer(actors, options.actor.rate, norms)
    step, history = load_checkpoint(options.run_dir / "state", actors, optimizer) or (0, [])
    if step:
        print(f"resuming after update {step}")
    updates = options.max_steps - step
    if updates <= 0:
        return
    kind = chosen(options.report_to, trackers.REWRITER_ORDER) if is_first() else "none"
    with open_tracker(kind, options.run_dir, plain(options)) as log:
        recorder = Recorder(options, actors, optimizer, scorer, log, norms, history)
        training = Training(actors, optimizer, options.ppo, scorer, recorder.after_update)
        batches = batches_from(step, rows, options.ppo, actors.policy.pad_id, options.seed)
        try:
            if options.backend == "own":
                train_own(training, batches, updates)
            else:
                padded = with_padding(tokenizer)
                train_trl(training, batches, updates, padded_tokenizer=padded, run_dir=options.run_dir)
        except torch.OutOfMemoryError as error:
            raise UserError(f"out of memory ({first_line(error)}); go on with a smaller --micro-batch-size") from error


def batches_from(step: int, rows: Sequence[Row], options: PPOOptions, pad_id: int, seed: int) -> Iterator[PromptBatch]:
    """The prompts of each update that are this process's, those of one question side by side.

    Each update has its own random seed in each process, so a resumed run draws the same numbers.
    """
    share = options.batch_size // world()
    mine = slice(rank() * share, (rank() + 1) * share)
    while True:
        update_seed = (seed * 1_000_003 + step) * world() + rank()
        torch.manual_seed(update_seed)
        np.random.seed(update_seed)  # TRL draws the order of its epochs from numpy
        questions = in_rounds(rows, step, options.batch_size // options.num_rollouts, seed)
        chosen = [row for row in questions for _ in range(options.num_rollouts)]
        yield PromptBatch(chosen[mine], left_padded([row.prompt for row in chosen], pad_id)[mine])
        step += 1


@dataclass
class Recorder:
    """Prints and saves each update."""

    options: Options
    actors: Actors
    optimizer: torch.optim.Optimizer
    scorer: Scorer
    log: Log
    norms: list[float]
    """Gradient norms since the last update."""
    history: list[dict[str, float]]
    """The metrics of all updates so far."""
    started: float = field(default_factory=time.perf_counter)

    def after_update(self, figures: dict[str, float]) -> None:
        """Check, show and keep the figures of an update; save a checkpoint when one is due."""
        options, step = self.options, len(self.history) + 1
        metrics = {"step": step} | figures | {
            "episode": step * options.ppo.batch_size, "policy/entropy": figures["policy/entropy_avg"],
            "lr": options.actor.rate, "grad_norm": sum(self.norms) / len(self.norms),
            "seconds": time.perf_counter() - self.started,
        }  # fmt: skip
        bad = next((name for name, value in metrics.items() if not math.isfinite(value)), None)
        if bad:
            raise UserError(f"update {step}: {bad} is {metrics[bad]}; training diverged, lower --learning-rate")
        self.history.append(metrics)
        episodes = [episode for part in all_gather(self.scorer.episodes) for episode in part]
        if is_first():
            self._keep(step, metrics, episodes)
        self.norms.clear()
        self.started = time.perf_counter()

    def _keep(self, step: int, metrics: dict[str, float], episodes: Sequence[Episode]) -> None:
        options = self.options
        self._print(step, metrics, episodes)
        write_jsonl(options.run_dir / "episodes" / f"{step:06d}.jsonl", episodes)
        write_jsonl(options.run_dir / "metrics.jsonl", self.history)
        draw_metrics(self.history, options.run_dir / "training.png")
        self.log(step, metrics)
        if step % options.save_every == 0 or step == options.max_steps:
            save_checkpoint(options.run_dir / "state", step, self.actors, self.optimizer, self.history)

    def _print(self, step: int, metrics: dict[str, float], episodes: Sequence[Episode]) -> None:
        first = (step - 1) * self.options.ppo.batch_size + 1
        for number, episode in enumerate(episodes, first):
            print(f"Episode {number}: Reward = {episode.reward:.3f}")
        print(
            f"update {step} of {self.options.max_steps}, {metrics['seconds']:.1f} s: "
            f"reward {metrics['objective/scores']:.3f}, KL {metrics['objective/kl']:.3f}, "
            f"entropy {metrics['policy/entropy']:.2f}, ratio {metrics['val/ratio']:.3f}, "
            f"policy loss {metrics['loss/policy_avg']:.3f}, value loss {metrics['loss/value_avg']:.3f}",
            flush=True,
        )


# Plots

# A panel's title, and its metrics with their labels.
PANELS: dict[str, dict[str, str]] = {
    "reward per episode": {"objective/scores": "reward", "objective/rlhf_reward": "reward minus KL penalty"},
    "KL to the untrained model, nats per episode": {"objective/kl": ""},
    "entropy per token, nats": {"policy/entropy": ""},
    "ratio to the sampling policy": {"val/ratio": "mean ratio", "policy/clipfrac_avg": "share clipped"},
    "policy loss": {"loss/policy_avg": ""},
    "value loss": {"loss/value_avg": ""},
}


def draw_metrics(rows: Sequence[Mapping[str, float]], path: Path) -> None:
    """The metrics by update."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(12, 9), layout="constrained")
        for axes, (title, lines) in zip(figure.subplots(3, 2).flat, PANELS.items(), strict=True):
            axes.set_title(title)
            draw_panel(axes, {int(row["step"]): row for row in rows}, lines)
        save_figure(figure, path)


# Evaluation: several ways to search for the held-out questions, side by side before and after training.

RAW = "raw query"
ENOUGH = 0.995  # of a reward: what is printed as 1.000, or nearly


@dataclass(frozen=True)
class Measurement:
    """How well one way of searching does, question by question."""

    way: str
    searched: list[str]
    values: dict[str, list[float]]
    """By the names of MEASURES, each question's value."""


def measure(way: str, rows: Sequence[Row], searched: Sequence[str], search: Search, k: int) -> Measurement:
    """Search with each row's query and compare the result with its relevant documents."""
    pairs = [(found, row.relevant_doc_ids) for found, row in zip(search(searched), rows, strict=True)]
    values = {name: [measured(*pair, k) for pair in pairs] for name, measured in MEASURES.items()}
    return Measurement(way, list(searched), values)


@dataclass(frozen=True)
class Evaluation:
    """Measures a policy's rewrites on the held-out questions, beside all that was measured before."""

    options: Options
    rows: Sequence[Row]
    search: Search
    tokenizer: Any

    def raw(self) -> list[Measurement]:
        """The questions as they are; says if they leave nothing to learn."""
        raw = measure(RAW, self.rows, [row.query for row in self.rows], self.search, self.options.k)
        for line in hopeless(raw, self.options):
            print(line, flush=True)
        return [raw]

    def rewritten(self, way: str, policy: Policy, earlier: Sequence[Measurement]) -> list[Measurement]:
        """The earlier measurements, and one of the policy's rewrites; all of them are printed."""
        how = self.options.query
        texts = write_texts(policy, self.tokenizer, [row.prompt for row in self.rows])
        pairs = zip(self.rows, texts, strict=True)
        searched = [final_query(row.query, text, how.rewrite, how.query_weight) for row, text in pairs]
        ways = [*earlier, measure(way, self.rows, searched, self.search, self.options.k)]
        print(f"{len(searched)} held-out questions; in brackets: 95 % intervals; *: it excludes zero")
        for row in result_rows(ways):
            own, over = row["recall"], row["over_raw"]
            compared = f", over {RAW} {over['mean']:+.3f} ({span(over)})" + " *" * clear(over)
            figures = f"recall@{self.options.k} {figure(own)}, nDCG {row['ndcg']:.3f}"
            print(f"{row['way']:10} {figures}{compared if row['way'] != RAW else ''}")
        return ways

    def after(self, policy: Policy, earlier: Sequence[Measurement]) -> None:
        """Report the trained policy's rewrites beside all earlier measurements."""
        ways = self.rewritten("trained", policy, earlier)
        write_jsonl(self.options.run_dir / "evaluation.jsonl", result_rows(ways))
        name = self.options.reward if self.options.reward in MEASURES else "recall"
        documents = [row.relevant_doc_ids[0] for row in self.rows]
        for before in (earlier[-1], ways[0]):  # where PPO began, and what is to be beaten
            gained = gains(ways[-1], before, name)
            print(verdict(ways[-1].way, before.way, f"{name}@{self.options.k}", gained, documents))


def hopeless(raw: Measurement, options: Options) -> list[str]:
    """Why nothing can be learnt, where the raw queries earn all of a built-in reward already."""
    earned = raw.values.get(options.reward, [0.0])  # a reward of the user's own is not measured
    if np.mean(earned) < ENOUGH:
        return []
    ways_out = [f"--k {max(1, options.k // 2)}"] if options.k > 1 else []
    ways_out += ["--reward ndcg"] if np.mean(raw.values["ndcg"]) < ENOUGH else []
    return [
        f"nothing to learn: the raw queries already earn {np.mean(earned):.3f} of --reward {options.reward} on "
        f"held-out questions, so no rewrite can find more; try {' or '.join([*ways_out, 'harder questions'])}"
    ]


def gains(one: Measurement, other: Measurement, name: str = "recall") -> list[float]:
    """Paired differences. Example: recalls [1, 0] against [0, 0] give 1, 0."""
    return [a - b for a, b in zip(one.values[name], other.values[name], strict=True)]


def result_rows(ways: Sequence[Measurement]) -> list[dict[str, Any]]:
    """The rows of evaluation.jsonl: recall and its difference from the raw query's, with intervals."""
    return [
        {
            "way": way.way, "searched": way.searched, "questions": len(way.searched),
            "recall": bootstrapped(way.values["recall"]), "over_raw": bootstrapped(gains(way, ways[0])),
            "ndcg": float(np.mean(way.values["ndcg"])), "mrr": float(np.mean(way.values["mrr"])),
        }
        for way in ways
    ]  # fmt: skip
