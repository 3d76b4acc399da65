"""Replay: check that an episode's tokens come out again from its adapter and its seed, turn by turn.

    python -m forage.extras.gateway.replay runs/a --episode q3/1
    python -m forage.extras.gateway.replay runs/a --episode q3/1 --step 4 --engine vllm
    python -m forage.extras.gateway.replay runs/a --episode q3/1 --instead other.jsonl

The episode must be from our own loop, or from an agent of get_agent that held a single conversation. Each turn is
sampled again after exactly the tokens that preceded it. In this process on a CPU, expect equal tokens. A server's
rounding depends on what else it samples at the time.

--instead, for our own loop only, shows what would have happened had the searches found these passages: the first turn
stays, its results are replaced, and the policy plays on. So whatever changes is due to what was found.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

from forage.agent.agent import Agent, BatchedSearch, EpisodeBuilder, TurnTokens, turn_seed
from forage.agent.episode import Episode, Turn, episodes_in
from forage.agent.options import read_agent
from forage.agent.protocol import Protocol
from forage.agent.tools import functions_for
from forage.arguments import POSITIONAL, run_script
from forage.data.records import Question, read_documents
from forage.engines.base import EngineOptions, Job, Request, Sample
from forage.engines.choice import open_engine
from forage.errors import UserError
from forage.policy.adapters import adapter_path, sampled_by, version_name, versions
from forage.policy.manifest import read_policy_manifest
from forage.rollout.agreement import read_run, run_options
from forage.rollout.options import RolloutOptions
from forage.rollout.plans import plan_of
from forage.store.fusion import Hit
from forage.text import one_line

ROUNDING = 0.2  # between log-probabilities in bf16 of the same token


@dataclass(frozen=True)
class Options:
    """The episode to replay."""

    run_dir: Annotated[Path, POSITIONAL]
    """Run folder of grpo_train.py."""
    episode: str
    """Id of the episode, such as q3/1: the question's id and the sample's number."""
    step: int = -1
    """Step of the episode; left out: the last step that has it."""
    policy: Path | None = None
    """The run's policy, if it has been moved."""
    instead: Path | None = None
    """File of passages that every search finds, in the format of documents.jsonl: id, title and text on each line."""
    engine: EngineOptions = EngineOptions(engine="local")


@dataclass(frozen=True)
class Again:
    """A turn that was sampled again."""

    turn: Turn
    same: int
    """Tokens that are the same, from its first on."""
    tokens: int
    apart: float
    """Largest difference of these tokens' log-probabilities."""


def main(options: Options) -> None:
    run, settings = read_run(options.run_dir), read_agent(options.run_dir)
    if run is None:
        raise UserError(f"{options.run_dir} has no run.json; give the run folder of grpo_train.py")
    step, episode = found(options)
    if episode.earlier:
        raise UserError(f"{options.episode} holds several conversations, whose order is not known; name another")
    version, _ = sampled_by(episode.adapter)
    if version not in versions(options.run_dir):
        kept = ", ".join(map(version_name, versions(options.run_dir)))
        raise UserError(f"adapter {version_name(version)} is gone; {options.run_dir} has {kept} (--keep-adapters)")
    manifest = read_policy_manifest(options.policy or Path(run.options["rollout"]["policy"]))
    told = run_options(run, ("temperature", "seed"))
    rollout = RolloutOptions(temperature=told["temperature"], seed=told["seed"])
    seed = plan_of(rollout, [episode.question_id], step).seed
    protocol = Protocol.of_policy(manifest, settings)

    if options.instead and "get_agent" in run.tools:
        raise UserError("--instead is for our own loop, and this run's episodes were played by an agent of get_agent")
    documents = read_documents(options.instead) if options.instead else []
    passages = [Hit(each.id, each.id, each.title, each.text, 0.0, 1) for each in documents[: settings.k]]

    async def play() -> str:
        async with open_engine(options.engine, Job(manifest, 1, settings.max_tokens)) as engine:
            await engine.load_adapter(episode.adapter, adapter_path(options.run_dir, version))
            search = BatchedSearch(lambda queries: [passages] * len(queries))
            agent = Agent(engine, protocol, search, settings, rollout.sampling, tools=functions_for(settings.tools))
            if options.instead:
                return side_by_side(protocol, episode, await instead(agent, episode, seed))
            turns = [each async for each in again(agent, episode, seed)]
            return table(step, episode, turns)

    print(asyncio.run(play()))


def found(options: Options) -> tuple[int, Episode]:
    """(step, episode)."""
    folders = [path for path in (options.run_dir / "episodes").glob("[0-9]*") if path.name.isdigit()]
    for folder in sorted(folders, reverse=True):
        played = episodes_in(folder) if options.step in (-1, int(folder.name)) else ()
        if episode := next((each for each in played if each.id == options.episode), None):
            return int(folder.name), episode
    where = f"step {options.step} of " if options.step >= 0 else ""
    raise UserError(f"{where}{options.run_dir} has no episode {options.episode}; its .jsonl files say which there are")


async def again(agent: Agent, episode: Episode, seed: int) -> AsyncIterator[Again]:
    """Each turn, sampled from what stood before it."""
    for number, turn in enumerate(episode.turns):
        first = turn.start + episode.mask[turn.start : turn.end].index(1)  # what stands before was begun for the policy
        room = min(agent.settings.max_turn_tokens, agent.settings.max_tokens - first)
        request = Request(
            episode.ids[:first], room, agent.protocol.stop_ids, turn_seed(seed, episode.id, number), agent.sampling,
            episode.id, episode.adapter,
        )  # fmt: skip
        yield compared(turn, episode, first, await agent.engine.generate(request))


async def instead(agent: Agent, episode: Episode, seed: int) -> Episode:
    """The episode with its own first turn, and what comes of it by the agent's search."""
    if len(episode.turns) < 2:
        raise UserError(f"{episode.id} has one turn, after which nothing was read; name another episode")
    first = episode.turns[0]
    place = slice(first.start, first.end)

    async def as_it_was(*_: object) -> TurnTokens:
        return TurnTokens(episode.ids[place], episode.mask[place], episode.logprobs[place], "stop")

    question = Question(episode.question_id, "", "")
    other = EpisodeBuilder(episode.id, question, list(episode.ids[: first.start]), episode.adapter)
    await agent.play_turn(other, seed, as_it_was)
    while not other.stop:
        await agent.play_turn(other, seed)
    return agent.finish(other)


def compared(turn: Turn, episode: Episode, first: int, sample: Sample) -> Again:
    """Example: 5 6 7 with log-probabilities -1 -2 -3, again 5 6 8 with -1 -2.5 -3: two the same, .5 apart."""
    ids, logprobs = episode.ids[first : turn.end], episode.logprobs[first : turn.end]
    differs = [one != other for one, other in zip(ids, sample.ids, strict=False)]
    same = differs.index(True) if True in differs else min(len(ids), len(sample.ids))
    gaps = [abs(one - other) for one, other in zip(logprobs[:same], sample.logprobs, strict=False)]
    return Again(turn, same, len(ids), max(gaps, default=0.0))


def side_by_side(protocol: Protocol, episode: Episode, other: Episode) -> str:
    """Markdown of both, turn by turn."""
    said = [[protocol.text(each.ids[turn.start : turn.end]) for turn in each.turns] for each in (episode, other)]
    rows = [
        f"| {number} | {one_line(was)} | {one_line(now)} |"
        for number, (was, now) in enumerate(zip_longest(*said, fillvalue=""), 1)
    ]
    return "\n".join(["| turn | as it was | with these passages |", "|---|---|---|", *rows])


def table(step: int, episode: Episode, turns: list[Again]) -> str:
    """Markdown, and what it comes to."""
    lines = [f"step {step}, episode {episode.id}, adapter {episode.adapter}", ""]
    lines += ["| turn | tokens | the same, from the first on | log-probabilities apart by at most |"]
    lines += ["|---|---|---|---|"]
    lines += [f"| {n} | {each.tokens} | {each.same} | {each.apart:.1e} |" for n, each in enumerate(turns, 1)]
    return "\n".join([*lines, "", difference(turns)])


def difference(turns: list[Again]) -> str:
    """Where the tokens part first, and whether rounding may be why."""
    for number, each in enumerate(turns, 1):
        if each.same < each.tokens:
            why = "by more than rounding does: are base, adapter, engine the same?"
            if each.apart < ROUNDING:
                why = "which rounding may do (bf16, or what was sampled beside it)"
            return f"turn {number} differs from its token {each.same + 1} on, {why}"
    return "all tokens are the same"


if __name__ == "__main__":
    run_script(main, __doc__)
