"""Player: every policy answers the questions it has not answered yet, with every system."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from forage.agent.agent import BatchedSearch
from forage.agent.protocol import Protocol
from forage.agent.tools import functions_for
from forage.data.records import Question
from forage.engines.base import EngineError
from forage.engines.choice import open_engine
from forage.errors import UserError
from forage.evaluation.caching import CachingAgent, Stopwatch
from forage.evaluation.options import EvaluationOptions
from forage.evaluation.outcomes import Outcome, OutcomeLog, Strategy
from forage.evaluation.policies import Policy, load_adapter
from forage.evaluation.setting import Setting, Systems
from forage.policy.policy import load_tokenizer
from forage.rollout.view import RolloutView


async def play_all(policies: Sequence[Policy], setting: Setting, systems: Systems) -> None:
    """Play what is missing. A policy that has answered everything is not loaded."""
    for policy in policies:
        missing = {
            system: unanswered(log_of(policy, system, setting.options), setting.questions)
            for system in setting.options.systems_of(policy.name)
        }
        if any(missing.values()):
            await play_policy(policy, missing, setting, systems)


async def play_policy(
    policy: Policy, missing: Mapping[str, Sequence[Question]], setting: Setting, systems: Systems
) -> None:
    options = setting.options
    protocol = Protocol.playing(load_tokenizer(policy.card), setting.agent)
    # All of them before anything is played: a scorer or a file that doesn't fit is told now, not hours later.
    strategies = {system: systems[system](setting) for system, questions in missing.items() if questions}
    async with open_engine(options.engine, policy.card, options.concurrency, setting.agent.max_tokens) as engine:
        await load_adapter(engine, policy)
        search = BatchedSearch(setting.search, in_line=engine.exact)
        tools = functions_for(setting.agent.tools)
        agent = CachingAgent(engine, protocol, search, setting.agent, options.sampling, tools=tools)
        take_over_samples(agent, policy, missing, options)
        for system, strategy in strategies.items():
            log = log_of(policy, system, options)
            await Player(strategy, agent, log, options.seed, options.concurrency).play(missing[system])


def take_over_samples(
    agent: CachingAgent, policy: Policy, missing: Mapping[str, Sequence[Question]], options: EvaluationOptions
) -> None:
    """Give the agent what earlier calls played of the missing questions, by whatever system."""
    questions = {question.id: question for each in missing.values() for question in each}
    for path in sorted((options.output_dir / "outcomes" / policy.name).glob("*.jsonl")):
        for episode, seconds in log_of(policy, path.stem, options).plain_samples():
            if episode.question_id in questions:
                agent.take_over(questions[episode.question_id], options.seed, episode, seconds)


def log_of(policy: Policy, system: str, options: EvaluationOptions) -> OutcomeLog:
    return OutcomeLog(options.output_dir, f"{policy.name}/{system}")


def unanswered(log: OutcomeLog, questions: Sequence[Question]) -> list[Question]:
    done = log.open()
    return [question for question in questions if question.id not in done]


@dataclass
class Player:
    """Plays one system's questions, several at a time, and logs each outcome as it comes."""

    strategy: Strategy
    agent: CachingAgent
    log: OutcomeLog
    seed: int
    concurrency: int
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    """Seconds between outcomes, whichever question they are for."""

    async def play(self, questions: Sequence[Question]) -> None:
        gate = asyncio.Semaphore(self.concurrency)
        self.agent.stopwatch.start()
        self.stopwatch.start()
        with RolloutView(self.log.name, len(questions)) as view:
            causes = await asyncio.gather(*(self._play_one(question, gate, view) for question in questions))
        failures = [cause for cause in causes if cause]
        if failures:
            raise UserError(
                f"{self.log.name}: {len(failures)} of {len(questions)} questions were not played ({failures[0]}); "
                "re-run the same command to play them"
            )

    async def _play_one(self, question: Question, gate: asyncio.Semaphore, view: RolloutView) -> str:
        """Why the question could not be played; empty if it was."""
        async with gate:
            started = time.perf_counter()
            try:
                outcome = complete(await self.strategy(self.agent, question, self.seed))
            except EngineError as error:
                return str(error) or type(error).__name__
        # An episode that an earlier system played took its time then.
        slowest = max(episode.seconds.get("total", 0.0) for episode in outcome.tried)
        latency = max(time.perf_counter() - started, slowest)
        seconds = self.stopwatch.lap() + self.agent.stopwatch.take_saved()
        plain = self.agent.plain_seconds(question, self.seed, outcome.tried)
        self.log.append(outcome, latency, seconds, plain)
        view.played(outcome.episode)
        return ""


def complete(outcome: Outcome) -> Outcome:
    """Return the outcome, or raise if the engine failed in an episode, which says nothing about the policy."""
    for episode in outcome.tried:
        if episode.stop == "engine":
            raise EngineError(episode.cause)
    return outcome
