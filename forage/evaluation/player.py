"""Player: every policy answers the questions it has not answered yet, with every system.

Equal questions, samples and seeds draw equal tokens, so the eight candidates of best_of:8 are also those of
self_consistency:8, and the first of them is plain sampling. Playing them once saves time, and ways of choosing are
compared on the very same candidates. Each system is charged what it would cost alone.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from forage.agent.agent import Agent, BatchedSearch, Speak
from forage.agent.episode import Episode
from forage.agent.protocol import Protocol
from forage.agent.searcher import searching
from forage.agent.tools import functions_for
from forage.data.records import Question
from forage.engines.base import EngineError, Job
from forage.engines.choice import open_engine, settled
from forage.errors import UserError
from forage.evaluation.options import EvaluationOptions, Systems, read_system
from forage.evaluation.outcomes import Outcome, OutcomeLog, Strategy
from forage.evaluation.setting import Policy, Setting, agree_on, load_adapter
from forage.machine import compute_dtype
from forage.manifest import code_of, digest, made_of
from forage.rollout.plans import Claims, named_worker
from forage.rollout.rollout import RolloutView, play_all


async def play(setting: Setting, systems: Systems) -> None:
    """Play what is missing, beside other processes of this output folder. A policy is loaded only if it has to play.

    What is there must have been played by the same code, or the systems could not be compared.
    """
    options = setting.options
    names = dict.fromkeys(name for policy in setting.policies for name in options.systems_of(policy.name))
    # All of them before anything is played: a scorer or a file that doesn't fit is told now, not hours later.
    strategies = {name: read_system(name, systems)(setting) for name in names}
    code = {f"system {name}": strategy for name, strategy in strategies.items()}
    code |= {f"tool {name}": tool for name, tool in functions_for(setting.agent.tools).items()}
    files = {f"code.{name}": digest for name, digest in code_of(*code.values()).items()}  # beside those of other calls
    agree_on(options.output_dir, {name: made_of(function) for name, function in code.items()} | files)
    with named_worker(options.output_dir) as worker:
        for policy in setting.policies:
            systems_of = options.systems_of(policy.name)
            logs = {name: log for name in systems_of if unanswered(log := log_of(policy, name, options), setting)}
            if logs:
                # Once, so that it is said once, and all policies play with the same.
                setting = replace(setting, options=replace(options, engine=settled(setting.options.engine)))
                await play_policy(policy, logs, setting, strategies, worker)


async def play_policy(
    policy: Policy, logs: Mapping[str, OutcomeLog], setting: Setting, strategies: Mapping[str, Strategy], worker: str
) -> None:
    options = setting.options
    protocol = Protocol.of_policy(policy.manifest, setting.agent)
    async with open_engine(
        options.engine, Job(policy.manifest, options.concurrency, setting.agent.max_tokens)
    ) as engine:
        # What shows the policy's template and tokenizer, and the type it computes in, where that is known here.
        shown = [protocol.tokenizer.chat_template, protocol.prompt("?"), protocol.join(["?"], None)]
        ways = {f"template {policy.name}": digest(json.dumps(shown).encode())}
        ways |= {f"dtype {policy.name}": str(compute_dtype(policy.manifest.dtype))} if engine.exact else {}
        agree_on(options.output_dir, ways)
        await load_adapter(engine, policy)
        search = BatchedSearch(searching(setting.store, setting.agent), in_line=engine.exact)
        tools = functions_for(setting.agent.tools)
        agent = CachingAgent(engine, protocol, search, setting.agent, options.sampling, tools=tools)
        for name, log in logs.items():
            await play_system(strategies[name], agent, log, setting, worker)


async def play_system(strategy: Strategy, agent: Agent, log: OutcomeLog, setting: Setting, worker: str) -> None:
    """Play one system's questions, several at a time, and log each outcome as it comes."""
    options, questions = setting.options, {question.id: question for question in setting.questions}
    claims = Claims(options.output_dir / "claims" / log.filed, worker)
    file = f"{worker}-{secrets.token_hex(4)}.jsonl"

    async def play_one(name: str) -> Outcome:
        started = time.perf_counter()
        try:
            outcome = await strategy(agent, questions[name], options.seed)
            if causes := [episode.cause for episode in outcome.tried if episode.stop == "engine"]:
                raise EngineError(causes[0])  # which says nothing about the policy
        except EngineError as error:
            cause = str(error) or type(error).__name__
            raise UserError(f"{log.name}, {name}: {cause}; start it, then re-run the same command to resume") from error
        # An episode that an earlier system played took its time then.
        slowest = max(episode.seconds.get("total", 0.0) for episode in outcome.tried)
        view.played(outcome.episode)
        return replace(outcome, seconds=max(time.perf_counter() - started, slowest))

    def write(_: str, outcome: Outcome) -> None:
        log.append(file, outcome)

    with RolloutView(log.name, len(unanswered(log, setting))) as view:
        await play_all(lambda: unanswered(log, setting), play_one, write, claims, options.concurrency)


def log_of(policy: Policy, system: str, options: EvaluationOptions) -> OutcomeLog:
    return OutcomeLog(options.output_dir, f"{policy.name}/{system}")


def unanswered(log: OutcomeLog, setting: Setting) -> list[str]:
    done = log.done()
    return [question.id for question in setting.questions if question.id not in done]


@dataclass(frozen=True)
class CachingAgent(Agent):
    """Remembers episodes. What the engine gave up on is sampled again."""

    played: dict[tuple[Question, int, int, str], Episode] = field(default_factory=dict)

    async def play(
        self, question: Question, sample: int = 0, seed: int = 0, speak: Speak | None = None, asked: str = ""
    ) -> Episode:
        key = (question, sample, seed, asked)
        if not speak and key in self.played:
            return self.played[key]
        episode = await super().play(question, sample, seed, speak, asked)
        if not speak and episode.stop != "engine":  # `speak` changes what the policy says
            self.played[key] = episode
        return episode
