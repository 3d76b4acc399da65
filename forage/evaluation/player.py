"""Player: every policy answers the questions it has not answered yet, with every system.

Equal questions, samples and seeds draw equal tokens, so the eight candidates of best_of:8 are also those of
self_consistency:8, and the first of them is plain sampling. Playing them once saves time, and ways of choosing are
compared on the very same candidates. What is asked outside of the episodes, such as a critique, is kept too: two rounds
of TPO begin with what one round is. Each system is charged the time that it saved, so it costs what it would cost
alone. Samples that an earlier call stored are taken over: a system that is added later has them as well.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from forage.agent.agent import Agent, BatchedSearch, Speak, sample_name
from forage.agent.episode import Episode
from forage.agent.protocol import Protocol
from forage.agent.searcher import searching
from forage.agent.tools import functions_for
from forage.data.records import Question
from forage.engines.base import EngineError, Request, Sample
from forage.engines.choice import open_engine
from forage.errors import UserError
from forage.evaluation.options import EvaluationOptions, Systems, read_system
from forage.evaluation.outcomes import Cost, Outcome, OutcomeLog, Strategy
from forage.evaluation.policies import Policy, load_adapter
from forage.evaluation.setting import Setting
from forage.policy.policy import load_tokenizer
from forage.rollout.claims import Claims, named_worker
from forage.rollout.playing import play_all
from forage.rollout.view import RolloutView


async def play(policies: Sequence[Policy], setting: Setting, systems: Systems) -> None:
    """Play what is missing, beside other processes of this output folder. A policy is loaded only if it has to play."""
    with named_worker(setting.options.output_dir) as worker:
        for policy in policies:
            names = setting.options.systems_of(policy.name)
            logs = {name: log for name in names if unanswered(log := log_of(policy, name, setting.options), setting)}
            if logs:
                await play_policy(policy, logs, setting, systems, worker)


async def play_policy(
    policy: Policy, logs: Mapping[str, OutcomeLog], setting: Setting, systems: Systems, worker: str
) -> None:
    options = setting.options
    protocol = Protocol.playing(load_tokenizer(policy.card), setting.agent)
    # All of them before anything is played: a scorer or a file that doesn't fit is told now, not hours later.
    strategies = {name: read_system(name, systems)(setting) for name in logs}
    async with open_engine(options.engine, policy.card, options.concurrency, setting.agent.max_tokens) as engine:
        await load_adapter(engine, policy)
        search = BatchedSearch(searching(setting.store, setting.agent), in_line=engine.exact)
        tools = functions_for(setting.agent.tools)
        agent = CachingAgent(engine, protocol, search, setting.agent, options.sampling, tools=tools)
        take_over_samples(agent, policy, setting)
        for name, log in logs.items():
            await play_system(strategies[name], agent, log, setting, worker)


async def play_system(strategy: Strategy, agent: CachingAgent, log: OutcomeLog, setting: Setting, worker: str) -> None:
    """Play one system's questions, several at a time, and log each outcome as it comes."""
    options, questions = setting.options, {question.id: question for question in setting.questions}
    claims = Claims(options.output_dir / "claims" / log.filed, worker)
    file, stopwatch = f"{worker}-{secrets.token_hex(4)}.jsonl", Stopwatch()
    agent.stopwatch.start()
    stopwatch.start()

    async def play_one(name: str) -> None:
        started = time.perf_counter()
        try:
            outcome = complete(await strategy(agent, questions[name], options.seed))
        except EngineError as error:
            cause = str(error) or type(error).__name__
            raise UserError(f"{log.name}, {name}: {cause}; start it, then re-run the same command to resume") from error
        # An episode that an earlier system played took its time then.
        slowest = max(episode.seconds.get("total", 0.0) for episode in outcome.tried)
        seconds = stopwatch.lap() + sum(agent.saved)
        agent.saved.clear()
        plain = agent.plain_seconds(questions[name], options.seed, outcome.tried)
        cost = Cost.of(outcome, max(time.perf_counter() - started, slowest), seconds, plain)
        if claims.holds(name):  # not if this process was asleep so long that another one took over
            log.append(file, cost, outcome.tried)
        view.played(outcome.episode)

    with RolloutView(log.name, len(unanswered(log, setting))) as view:
        await play_all(lambda: unanswered(log, setting), play_one, claims, options.concurrency)


def take_over_samples(agent: CachingAgent, policy: Policy, setting: Setting) -> None:
    """Give the agent what earlier calls played of these questions, by whatever system."""
    questions, options = {question.id: question for question in setting.questions}, setting.options
    for path in sorted((options.output_dir / "outcomes" / policy.name).glob("*/")):
        for episode, seconds in log_of(policy, path.name, options).plain_samples():
            if episode.question_id in questions:
                agent.played[questions[episode.question_id], episode.id, options.seed, ""] = (episode, seconds)


def log_of(policy: Policy, system: str, options: EvaluationOptions) -> OutcomeLog:
    return OutcomeLog(options.output_dir, f"{policy.name}/{system}")


def unanswered(log: OutcomeLog, setting: Setting) -> list[str]:
    done = log.done()
    return [question.id for question in setting.questions if question.id not in done]


@dataclass
class Stopwatch:
    """Splits wall-clock seconds among things as they end, so that all laps add up to the whole time.

    Example: after a start at 10 s, things that end at 12 s and 15 s get 2 and 3 s.
    """

    last: float = 0.0

    def start(self) -> None:
        self.last = time.perf_counter()

    def lap(self) -> float:
        before, self.last = self.last, time.perf_counter()
        return self.last - before


@dataclass(frozen=True)
class CachingAgent(Agent):
    """Remembers episodes and replies, each with its seconds. What the engine gave up on is sampled again."""

    played: dict[tuple[Question, str, int, str], tuple[Episode, float]] = field(default_factory=dict)
    """By question, the episode's id, seed and what was asked."""
    replies: dict[Request, tuple[Sample, float]] = field(default_factory=dict)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    saved: list[float] = field(default_factory=list)
    """Seconds that were saved since the last outcome."""

    async def play(
        self, question: Question, sample: int = 0, seed: int = 0, speak: Speak | None = None, asked: str = ""
    ) -> Episode:
        if speak:  # this changes what the policy says, so no other system can share the episode
            return await super().play(question, sample, seed, speak, asked)
        key = (question, sample_name(question, sample), seed, asked)
        if key in self.played:
            episode, seconds = self.played[key]
            self.saved.append(seconds)
            return episode
        episode = await super().play(question, sample, seed, asked=asked)
        if episode.stop != "engine":
            self.played[key] = (episode, self.stopwatch.lap())
        return episode

    async def reply(self, request: Request) -> Sample:
        if request in self.replies:
            sampled, seconds = self.replies[request]
            self.saved.append(seconds)
            return sampled
        sampled = await super().reply(request)
        self.replies[request] = (sampled, self.stopwatch.lap())
        return sampled

    def plain_seconds(self, question: Question, seed: int, tried: Sequence[Episode]) -> tuple[float | None, ...]:
        """For each episode the seconds it took if it is a plain sample, which any system may share; else None."""
        known = [self.played.get((question, episode.id, seed, "")) for episode in tried]
        return tuple(
            found[1] if found and found[0] is episode else None for found, episode in zip(known, tried, strict=True)
        )


def complete(outcome: Outcome) -> Outcome:
    """Return the outcome, or raise if the engine failed in an episode, which says nothing about the policy."""
    for episode in outcome.tried:
        if episode.stop == "engine":
            raise EngineError(episode.cause)
    return outcome
