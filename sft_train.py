"""Stage 3: warm start. The policy learns to search, read and answer in the protocol, before it is rewarded for it.

    python sft_train.py --data data --policy models/policy --output-dir models/warm

Reads: --data (train.jsonl, eval.jsonl and store/ of data_prep.py) and --policy (of create_lora_model.py). Makes
demonstrations from training questions: by a teacher that knows which query finds the answer (the tool's results in
them are real), by the policy itself where --rejection-samples is given (only episodes that are well-formed, found the
answer and gave it are kept), and out of files of episodes (--episodes). Trains on the policy's tokens only.

Writes into --output-dir: model.json and adapters/v000000, so that it is a policy as the one read; demonstrations.jsonl,
stats.jsonl, warm_start.png, probes/ (episodes played on the way). A killed run goes on where it was when the same
command is given again.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from forage.agent.agent import Agent, BatchedSearch, Found
from forage.agent.episode import Episode, append_episodes, read_episodes
from forage.agent.options import Limits
from forage.agent.protocol import Protocol
from forage.agent.teacher import accepted, beginnings, best_beginnings, demonstrate
from forage.cli import run_script
from forage.data.records import Question, read_answerable, read_questions
from forage.engines.base import Sampling
from forage.engines.local import LocalEngine
from forage.errors import UserError, check_at_least_one, check_at_least_zero
from forage.files import write_jsonl
from forage.metrics import token_f1
from forage.policy.adapters import adapter_path, newest_adapter, publish_adapter
from forage.policy.checkpoint import load_checkpoint, save_checkpoint
from forage.policy.logprobs import token_logprobs
from forage.policy.packing import pack
from forage.policy.policy import PolicyCard, load_base, load_policy, load_tokenizer, read_policy_card, write_policy_card
from forage.runs.run_folder import keep_options
from forage.schedule import in_rounds
from forage.store.document_store import DocumentStore
from forage.store.options import Mode


@dataclass(frozen=True)
class Options:
    """What to learn from, and how."""

    data: Path = Path("data")
    """Folder that data_prep.py wrote."""
    policy: Path = Path("models/policy")
    """Policy to start from, its newest adapter."""
    output_dir: Path = Path("models/warm")
    """Policy to make."""
    demonstrations: int = 200
    """Training questions the teacher shows, chosen at random; 0 for none."""
    rejection_samples: int = 0
    """Episodes the policy itself plays for each of those questions; the best accepted one is learnt from."""
    least_similarity: float = 0.3
    """Least token F1 with the reference answer at which an episode of the policy's own is accepted."""
    episodes: tuple[Path, ...] = ()
    """Files of episodes to learn from as well."""
    answer_tokens: int = 64
    """The teacher's answers are those of the reference's sentences that the passage shows, up to so many tokens."""
    guess_words: int = 0
    """Of the answer's first words, so many follow the question in a query of the teacher's, or are all of it where the
    search has the question already (--question-weight): the policy learns to guess them."""
    guess: Literal["own", "typical", "best"] = "own"
    """Whose first words: the question's own answer's, or those that answers to questions of its type have most often,
    which find less and are learnt sooner; or, of the frequent ones, those whose searches find most training answers."""
    guess_share: float = 1.0
    """Of the questions, so many are asked with such a guess; the others leave it to training to find out what is worth
    guessing."""
    k: int = 3
    """Passages a search shows."""
    passage_tokens: int = 64
    """Tokens of each passage shown."""
    mode: Mode = "hybrid"
    """How the store is searched."""
    question_weight: int = 0
    """Search for the question, so many times, and the policy's query behind it: it need only add what helps, and BM25
    counts words. 0: its query alone."""
    limits: Limits = field(default_factory=Limits)
    sampling: Sampling = field(default_factory=Sampling)
    max_steps: int = 100
    """Updates at most."""
    batch_size: int = 4
    """Demonstrations of an update."""
    token_budget: int = field(default_factory=lambda: 8192 if torch.cuda.is_available() else 512)
    """Tokens of a micro-batch, at most; less memory, more passes. On CPUs one sequence at a time is the fastest."""
    learning_rate: float = 1e-3
    """Of AdamW, at its height: it rises over the first tenth of the steps and then falls to zero."""
    weight_decay: float = 0.0
    """Of AdamW."""
    gradient_checkpointing: bool = field(default_factory=torch.cuda.is_available)
    """Compute activations again in the backward pass: a third more time, a fraction of the memory."""
    held_out: float = 0.1
    """Share of the demonstrations whose loss is only measured."""
    eval_every: int = 20
    """Updates between measurements, each followed by a checkpoint."""
    patience: int = 3
    """Stop when the held-out loss has not fallen in so many measurements; the best adapter is what comes out."""
    probe_questions: int = 16
    """Questions of eval.jsonl the policy plays at each measurement, to see if its episodes are well-formed; 0: none."""
    seed: int = 0
    """Of choice, order and sampling."""
    overwrite: bool = False
    """Start anew where the output folder is there."""

    def check(self) -> None:
        """Fail before anything is loaded."""
        self.limits.check()
        self.sampling.check()
        check_at_least_one(self, "k", "passage_tokens", "answer_tokens", "max_steps", "batch_size", "token_budget")
        check_at_least_one(self, "eval_every", "patience")
        if not 0 < self.held_out < 1:
            raise UserError(f"--held-out {self.held_out} must lie between 0 and 1")
        check_at_least_zero(self, "guess_words", "question_weight", "demonstrations", "rejection_samples")
        check_at_least_zero(self, "probe_questions")
        missing = next((path for path in self.episodes if not path.is_file()), None)
        if missing:
            raise UserError(f"--episodes {missing} is not there")
        if not 0 <= self.guess_share <= 1:
            raise UserError(f"--guess-share {self.guess_share} must lie from 0 to 1")
        if not (self.demonstrations or self.episodes):
            raise UserError("nothing to learn from: --demonstrations 0 and no --episodes")
        if adapter_path(self.output_dir, 0).exists() and not self.overwrite:
            raise UserError(f"{self.output_dir} is finished already; choose another --output-dir, or --overwrite")


def main(options: Options) -> None:
    options.check()
    card = read_policy_card(options.policy)
    if options.overwrite and options.output_dir.exists():
        shutil.rmtree(options.output_dir)
    options.output_dir.mkdir(parents=True, exist_ok=True)
    keep_options(options.output_dir, options, ("overwrite",), "another --output-dir, or --overwrite")
    play = Player(options, card)
    demonstrations = get_demonstrations(options, play)
    policy = train(options, card, demonstrations, play)
    write_policy_card(card, options.output_dir)
    print(f"{publish_adapter(policy, options.output_dir, 0)} is the warm start")


class Player:
    """Plays episodes of a policy's adapters; engine and store are loaded when first needed."""

    def __init__(self, options: Options, card: PolicyCard) -> None:
        self.options, self.card = options, card
        self.protocol = Protocol(load_tokenizer(card), options.passage_tokens)
        self.store = DocumentStore.open(options.data / "store")
        self._engine: LocalEngine | None = None

    def search(self, queries: Sequence[str]) -> Sequence[Sequence[Found]]:
        return self.store.search(queries, self.options.k, self.options.mode)

    def play(self, adapter: Path, questions: Sequence[Question], samples: int, seed: int) -> list[Episode]:
        return asyncio.run(self._play(adapter, questions, samples, seed))

    async def _play(self, adapter: Path, questions: Sequence[Question], samples: int, seed: int) -> list[Episode]:
        self._engine = self._engine or LocalEngine(load_base(self.card, dequantize=True))
        await self._engine.load_adapter(adapter.name, adapter)
        options = self.options
        search, weight = BatchedSearch(self.search), options.question_weight
        agent = Agent(self._engine, self.protocol, search, options.limits, options.sampling, weight)
        return await asyncio.gather(*(agent.play(q, sample, seed) for q in questions for sample in range(samples)))


# Demonstrations


def get_demonstrations(options: Options, play: Player) -> list[Episode]:
    """Those made before, if the run is gone on with; else made and kept."""
    path = options.output_dir / "demonstrations.jsonl"
    if not path.exists():
        made = make_demonstrations(options, play)
        partial = path.with_name(".demonstrations.jsonl")
        partial.unlink(missing_ok=True)
        append_episodes(partial, made)
        partial.rename(path)
    demonstrations = list(read_episodes(path))
    if len(demonstrations) < 2:
        raise UserError(f"{len(demonstrations)} demonstrations are too few to learn from and to measure by")
    return demonstrations


def make_demonstrations(options: Options, play: Player) -> list[Episode]:
    questions = read_answerable(options.data / "train.jsonl")
    chosen = random.Random(options.seed).sample(questions, min(options.demonstrations, len(questions)))
    taught = asyncio.run(
        demonstrate(
            chosen, play.search, play.protocol, options.limits, options.answer_tokens, options.seed,
            options.guess_words, options.guess_share, options.question_weight, typical_of(options, questions, play),
        )
    )  # fmt: skip
    print(f"{len(taught)} demonstrations by the teacher, of {len(chosen)} questions")
    own = sample_own(options, chosen, play) if options.rejection_samples else []
    more = [episode for path in options.episodes for episode in read_episodes(path)]
    return [*taught, *own, *more]


def typical_of(options: Options, questions: Sequence[Question], play: Player) -> dict[str, str] | None:
    """What the teacher guesses for questions of each type; None where each is guessed its own answer."""
    if options.guess == "own" or not options.guess_words:
        return None
    if options.guess == "typical":
        return {kind: several[0] for kind, several in beginnings(questions, options.guess_words).items()}
    return best_beginnings(questions, options.guess_words, play.search, options.question_weight, options.seed)


def sample_own(options: Options, questions: Sequence[Question], play: Player) -> list[Episode]:
    """Rejection sampling: of each question's episodes by the policy the accepted one with the best answer."""
    by_id = {question.id: question for question in questions}
    episodes = play.play(newest_adapter(options.policy), questions, options.rejection_samples, options.seed)
    best: dict[str, Episode] = {}
    for episode in episodes:
        question = by_id[episode.question_id]
        if accepted(episode, question, token_f1, options.least_similarity):
            before = best.get(question.id)
            if before is None or token_f1(before.answer, question.answer) < token_f1(episode.answer, question.answer):
                best[question.id] = episode
    print(f"{len(best)} demonstrations by the policy itself, of {len(episodes)} episodes on {len(questions)} questions")
    return list(best.values())


# Training


@dataclass(frozen=True)
class Row:
    """What is known after so many updates."""

    step: int
    seconds: float
    """Since the start, measurements included."""
    loss: float | None
    """Mean over the updates since the last row, per token of the policy's."""
    held_out_loss: float
    well_formed: float | None
    """Share of the probed eval questions' episodes that are well-formed."""
    faults: dict[str, int]
    """What was wrong with the others."""


def train(options: Options, card: PolicyCard, demonstrations: Sequence[Episode], play: Player) -> Any:
    """The policy with the adapter of the lowest held-out loss."""
    torch.manual_seed(options.seed)
    policy = load_policy(card)
    if options.gradient_checkpointing:
        policy.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    weights = [weight for weight in policy.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=options.learning_rate, weight_decay=options.weight_decay)
    learnt, held_out = split(demonstrations, options)
    probed = random.Random(options.seed).sample(eval_questions := read_questions(options.data / "eval.jsonl"),
                                                min(options.probe_questions, len(eval_questions)))  # fmt: skip
    state, best = options.output_dir / "state", options.output_dir / "best"
    step, kept = load_checkpoint(state, policy, optimizer) or (0, [])
    rows = [Row(**row) for row in kept]
    print(f"learning from {len(learnt)} demonstrations, measuring by {len(held_out)}, from step {step}")
    started = time.perf_counter() - (rows[-1].seconds if rows else 0.0)
    if not rows:
        rows = [measure(policy, held_out, probed, play, step, None, started)]
        report(rows, options)
    while step < options.max_steps and not out_of_patience(rows, options.patience):
        until = min(step + options.eval_every, options.max_steps)
        losses = [update(policy, optimizer, batch(learnt, s, options), s, options) for s in range(step, until)]
        step = until
        rows.append(measure(policy, held_out, probed, play, step, sum(losses) / len(losses), started))
        report(rows, options)
        if best_row(rows) is rows[-1]:
            shutil.rmtree(best, ignore_errors=True)
            publish_adapter(policy, best, 0)
        save_checkpoint(state, step, policy, optimizer, [asdict(row) for row in rows])
    if best_row(rows).step == 0:
        raise UserError("the held-out loss never fell; lower --learning-rate or show more --demonstrations")
    print(f"the lowest held-out loss was at step {best_row(rows).step}")
    return load_policy(card, adapter_path(best, 0))


def split(demonstrations: Sequence[Episode], options: Options) -> tuple[list[Episode], list[Episode]]:
    """(learnt from, measured by): by question, so that no question is on both sides."""
    ids = sorted({episode.question_id for episode in demonstrations})
    if len(ids) < 2:
        raise UserError(f"all demonstrations are of question {ids[0]}; one more is needed to measure by")
    random.Random(options.seed).shuffle(ids)
    held_out = set(ids[: min(len(ids) - 1, max(1, round(options.held_out * len(ids))))])
    return (
        [episode for episode in demonstrations if episode.question_id not in held_out],
        [episode for episode in demonstrations if episode.question_id in held_out],
    )


def batch(learnt: Sequence[Episode], step: int, options: Options) -> list[Episode]:
    """The demonstrations of an update."""
    return in_rounds(learnt, step, options.batch_size, options.seed)


def update(
    policy: Any, optimizer: torch.optim.Optimizer, episodes: Sequence[Episode], step: int, options: Options
) -> float:
    """One step of AdamW on the mean loss of the policy's tokens; that loss."""
    policy.train()
    for group in optimizer.param_groups:
        group["lr"] = options.learning_rate * height(step, options.max_steps)
    loss = loss_of(policy, episodes, options.token_budget, backward=True)
    torch.nn.utils.clip_grad_norm_([weight for weight in policy.parameters() if weight.requires_grad], 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def height(step: int, steps: int) -> float:
    """Share of the learning rate: up over the first tenth, then down. Of 20 steps: .5, 1, 1, .944, ..., .056."""
    rise = max(1, steps // 10)
    return min((step + 1) / rise, (steps - step) / (steps - rise) if steps > rise else 1.0)


def loss_of(policy: Any, episodes: Sequence[Episode], token_budget: int, *, backward: bool) -> float:
    """Mean negative log-probability of all tokens of the policy's, in micro-batches."""
    device = next(policy.parameters()).device
    tokens = sum(episode.sampled for episode in episodes)
    total = 0.0
    for part in pack(episodes, token_budget):
        loss = -token_logprobs(policy, part.to(device)).sum() / tokens
        if backward:
            loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total


def measure(
    policy: Any, held_out: Sequence[Episode], probed: Sequence[Question], play: Player, step: int,
    loss: float | None, started: float,
) -> Row:  # fmt: skip
    policy.eval()
    with torch.no_grad():
        held_out_loss = loss_of(policy, held_out, play.options.token_budget, backward=False)
    well_formed, faults = None, Counter[str]()
    if probed:
        with tempfile.TemporaryDirectory() as folder:
            episodes = play.play(publish_adapter(policy, Path(folder), step), probed, 1, play.options.seed)
        read_me = play.options.output_dir / "probes" / f"{step:06d}.jsonl"
        read_me.unlink(missing_ok=True)
        append_episodes(read_me, episodes)
        well_formed = sum(episode.well_formed for episode in episodes) / len(episodes)
        faults.update(fault for e in episodes if not e.well_formed for fault in set(e.faults or [f"stop: {e.stop}"]))
    return Row(step, time.perf_counter() - started, loss, held_out_loss, well_formed, dict(faults))


def best_row(rows: Sequence[Row]) -> Row:
    return min(rows, key=lambda row: row.held_out_loss)


def out_of_patience(rows: Sequence[Row], patience: int) -> bool:
    return len(rows) - 1 - rows.index(best_row(rows)) >= patience


def report(rows: Sequence[Row], options: Options) -> None:
    """The last row as a line, all of them as a file and a plot."""
    row = rows[-1]
    loss = "" if row.loss is None else f"loss {row.loss:.3f}, "
    probe = "" if row.well_formed is None else f", well-formed {row.well_formed:.0%} {row.faults or ''}"
    print(f"step {row.step}, {row.seconds:.0f} s: {loss}held-out loss {row.held_out_loss:.3f}{probe}", flush=True)
    write_jsonl(options.output_dir / "stats.jsonl", rows)
    plot(rows, options.output_dir / "warm_start.png")


def plot(rows: Sequence[Row], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([row.step for row in rows], [row.held_out_loss for row in rows], "o-", label="held-out loss")
    trained = [(row.step, row.loss) for row in rows if row.loss is not None]
    axes.plot([step for step, _ in trained], [loss for _, loss in trained], "o:", label="loss")
    axes.set(xlabel="updates", ylabel="loss per token", ylim=(0, None))
    axes.legend(loc="center right")
    probed = [(row.step, row.well_formed) for row in rows if row.well_formed is not None]
    if probed:
        share = axes.twinx()
        share.plot([step for step, _ in probed], [formed for _, formed in probed], "s-", color="tab:green")
        share.set(ylabel="share of well-formed episodes", ylim=(0, 1.02))
        share.yaxis.label.set_color("tab:green")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    run_script(main, description=__doc__)
