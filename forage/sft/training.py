"""The warm start: imitates demonstrations, measures the held-out loss, keeps the best adapter or the last."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from forage.agent.episode import Episode, read_episodes, write_episodes
from forage.agent.options import AgentSettings
from forage.agent.protocol import Protocol
from forage.agent.rewards import get_found
from forage.agent.searcher import searching
from forage.agent.vetting import Vetting
from forage.data.splits import draw_questions, in_rounds, read_held_out
from forage.errors import UserError
from forage.files import remove_folder, write_jsonl
from forage.metrics import grouped
from forage.optimizer import CPU_BUDGET, adamw, update_weights
from forage.policy.adapters import adapter_path, publish_adapter, restore_adapter, versions
from forage.policy.checkpoint import load_checkpoint, save_checkpoint
from forage.policy.logprobs import token_logprobs, unsharable
from forage.policy.packing import Budget, needed, pack, pack_trees
from forage.progress import Counting
from forage.sft.options import SFTOptions
from forage.sft.teacher import causes_of, demonstrate
from forage.store.opening import open_address
from forage.text import typed

SAVED_EVERY = 15.0  # seconds at most between checkpoints


def get_demonstrations(options: SFTOptions, protocol: Protocol, settings: AgentSettings) -> list[Episode]:
    """Load the demonstrations of an interrupted run, or make and save new ones."""
    path = options.output_dir / "demonstrations.jsonl"
    vetting = Vetting(protocol, settings, read_held_out(options.data))
    if not path.exists():  # files first: one may be refused
        given = [episode for file in options.demonstrations for episode in vetting.read(file)]
        write_episodes(path, [*play_demonstrations(options, protocol, settings), *given])
    demonstrations = list(read_episodes(path))
    vetting.check(path, demonstrations)
    if len(demonstrations) < 2:
        raise UserError(f"{len(demonstrations)} demonstrations are too few to train on and to measure by")
    return demonstrations


def play_demonstrations(options: SFTOptions, protocol: Protocol, settings: AgentSettings) -> list[Episode]:
    """The teacher's."""
    chosen = draw_questions(options.data, options.num_demonstrations, options.seed)
    search = searching(open_address(options.address, options.data), settings)
    print(f"the teacher searches for {len(chosen)} questions", flush=True)
    taught, without = asyncio.run(demonstrate(chosen, search, protocol, settings, options.teacher, options.seed))
    shown = {episode.question_id for episode in taught}
    lacking = ", ".join([question.id for question in chosen if question.id not in shown][:3])
    such_as = f" (such as {lacking})" if lacking else ""
    by_id = {question.id: question for question in chosen}
    find = sum(get_found(taught, [by_id[episode.question_id] for episode in taught]))
    made = f"{len(taught)} demonstrations by the teacher for {len(chosen)} questions{causes_of(without)}{such_as}"
    print(f"{made}; {find:.0f} find what answers")
    return taught


# Training


@dataclass(frozen=True)
class Row:
    """One measurement."""

    step: int
    seconds: float
    """Since the start, measurements included."""
    loss: float | None
    """Mean per policy token over the updates since the last row."""
    held_out_loss: float


def train(options: SFTOptions, demonstrations: Sequence[Episode], policy: Any) -> Any:
    """The policy with the adapter of the lowest held-out loss, or the last, as --keep says."""
    torch.manual_seed(options.seed)
    # Of the usual peaks, 1e-3 was tuned on 135M; 2e-4 is QLoRA's for 7B (2305.14314).
    usual = 1e-3 if policy.get_nb_trainable_parameters()[1] < 10**9 else 2e-4
    rate = options.learning_rate or usual
    options = replace(options, learning_rate=rate)
    if options.memory.gradient_checkpointing:
        policy.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    budget = Budget(options.memory.token_budget or CPU_BUDGET)
    optimizer = adamw(policy)
    trained, held_out = split(demonstrations, options)
    # A question's are in one batch: what they begin with is computed once.
    groups = [*grouped((episode.question_id, episode) for episode in trained).values()]
    state, best = options.output_dir / "state", options.output_dir / "best"
    step, kept = load_checkpoint(state, policy, optimizer) or (0, {"rows": [], "losses": []})
    rows, losses = [typed(Row, row) for row in kept["rows"]], kept["losses"]
    print(f"training on {len(trained)} demonstrations, measuring on {len(held_out)}, from step {step}, at {rate:g}")
    started = time.perf_counter() - (rows[-1].seconds if rows else 0.0)
    bar, saved = Counting("updates", options.max_steps, step), time.monotonic()
    while True:
        over = step >= options.max_steps
        if not rows or (rows[-1].step < step and (over or step % options.eval_every == 0)):
            mean = sum(losses) / len(losses) if losses else None
            rows, losses = [*rows, measure(policy, held_out, budget, step, mean, started)], []
            report(rows, options)
            if options.keep == "best" and best_row(rows) is rows[-1]:
                publish_adapter(policy, best, step, overwrite=True)  # a killed run may have left one
        if rows[-1].step == step or time.monotonic() - saved >= SAVED_EVERY:
            save_checkpoint(state, step, policy, optimizer, {"rows": [asdict(row) for row in rows], "losses": losses})
            remove_others(best, rows)  # now that no checkpoint needs them
            saved = time.monotonic()
        if over or (options.keep == "best" and out_of_patience(rows, options.early_stop)):
            break
        batch = [episode for group in in_rounds(groups, step, options.batch_size, options.seed) for episode in group]
        losses.append(update(policy, optimizer, batch, step, options, budget))
        step += 1
        bar.update()
    if options.keep == "last":
        return policy
    before, after = rows[0].held_out_loss, best_row(rows).held_out_loss
    if best_row(rows).step:
        print(f"the held-out loss was lowest at step {best_row(rows).step}: {before:.3f} before, {after:.3f} then")
        print("Shown: it imitates more closely. Not shown: whether it finds and answers more; evaluate.py plays it.")
    else:
        print(
            f"the held-out loss never fell from {before:.3f}, so the policy is left as it was; lower "
            f"--learning-rate ({rate:g}), or give more --num-demonstrations"
        )
    remove_others(best, rows)  # a process killed after its last checkpoint has not come to it
    restore_adapter(policy, adapter_path(best, best_row(rows).step))
    return policy


def remove_others(folder: Path, rows: Sequence[Row]) -> None:
    """All adapters but the best, which has its step's number."""
    for version in versions(folder):
        if version != best_row(rows).step:
            remove_folder(adapter_path(folder, version))


def split(demonstrations: Sequence[Episode], options: SFTOptions) -> tuple[list[Episode], list[Episode]]:
    """(trained on, held out), by question, so that no question is on both sides."""
    ids = sorted({episode.question_id for episode in demonstrations})
    if len(ids) < 2:
        raise UserError(f"all demonstrations answer question {ids[0]}; one more question is needed to measure on")
    random.Random(options.seed).shuffle(ids)
    held_out = set(ids[: min(len(ids) - 1, max(1, round(options.eval_share * len(ids))))])
    return (
        [episode for episode in demonstrations if episode.question_id not in held_out],
        [episode for episode in demonstrations if episode.question_id in held_out],
    )


def update(
    policy: Any, optimizer: torch.optim.Optimizer, episodes: Sequence[Episode], step: int, options: SFTOptions,
    budget: Budget,
) -> float:  # fmt: skip
    """One step of AdamW on the mean loss of the policy's tokens. Returns that loss."""
    policy.train()
    loss = loss_of(policy, episodes, budget, backward=True)
    update_weights(optimizer, options.learning_rate * height(step, options.max_steps))
    return loss


def height(step: int, steps: int) -> float:
    """The learning rate's factor: up over the first tenth, then down. For 20 steps: .5, 1, 1, .944, ..., .056."""
    rise = max(1, steps // 10)
    return min((step + 1) / rise, (steps - step) / (steps - rise) if steps > rise else 1.0)


def loss_of(policy: Any, episodes: Sequence[Episode], budget: Budget, *, backward: bool) -> float:
    """Mean negative log-probability over all tokens of the policy, in micro-batches that fit into memory."""
    longest = max(len(needed(episode)) for episode in episodes)
    return budget.within_memory(
        lambda tokens: loss_in_parts(policy, episodes, tokens, backward=backward), longest, policy.zero_grad
    )


def loss_in_parts(policy: Any, episodes: Sequence[Episode], budget: int, *, backward: bool) -> float:
    """The loss, in micro-batches of `budget` tokens; what several demonstrations begin with is computed once."""
    device = next(policy.parameters()).device
    tokens = sum(episode.sampled for episode in episodes)
    total, parts = 0.0, (pack if unsharable(policy.config) else pack_trees)(episodes, budget)
    bar = Counting("measuring", 0 if backward else len(parts))
    for part in parts:
        loss = -token_logprobs(policy, part.to(device)).sum() / tokens
        if backward:
            loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
        bar.update()
    return total


# Measuring


def measure(
    policy: Any, held_out: Sequence[Episode], budget: Budget, step: int, loss: float | None, started: float
) -> Row:
    policy.eval()
    with torch.no_grad():
        held_out_loss = loss_of(policy, held_out, budget, backward=False)
    return Row(step, time.perf_counter() - started, loss, held_out_loss)


def best_row(rows: Sequence[Row]) -> Row:
    return min(rows, key=lambda row: row.held_out_loss)


def out_of_patience(rows: Sequence[Row], early_stop: int) -> bool:
    return len(rows) - 1 - rows.index(best_row(rows)) >= early_stop


def report(rows: Sequence[Row], options: SFTOptions) -> None:
    """Print the last row; write all of them to a file."""
    row = rows[-1]
    loss = "" if row.loss is None else f"loss {row.loss:.3f}, "
    print(f"step {row.step}, {row.seconds:.0f} s: {loss}held-out loss {row.held_out_loss:.3f}", flush=True)
    write_jsonl(options.output_dir / "stats.jsonl", rows)
