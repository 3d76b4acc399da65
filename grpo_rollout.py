"""Stage 4: the rewards, and the agent's episodes. Edit `get_reward_functions` to reward something else.

    python grpo_rollout.py --data data --policy models/warm --run-dir runs/grpo                  one step's episodes
    python grpo_rollout.py --data data --policy models/warm --run-dir runs/grpo --follow         as a service

Reads: --data (questions and store of data_prep.py) and the newest adapter of --run-dir, else of --policy. Writes:
episodes/<step>/<worker>.jsonl in --run-dir, a line an episode, all episodes of a question at once. With --follow it
plays what grpo_train.py plans, with each adapter that comes, until that run is finished; any number of workers may
share the run folder, and no question is played twice. Samples through vLLM servers (--urls; start one by
`make vllm-cpu`) or in this process (--engine local).
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from asyncio import FIRST_COMPLETED as FIRST
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import httpx
import numpy as np

from core.adapters import newest_adapter, versions
from core.agent import Agent, BatchedSearch, Found, Limits
from core.answer_scores import token_f1
from core.claims import Claims
from core.corpus import Question, read_answerable
from core.embedder import Embedder
from core.engines import Engine, Sampling
from core.episode import Episode, append_episodes
from core.errors import UserError, check_at_least_one, check_at_least_zero, run_script
from core.heartbeat import beat
from core.plan import Plan, Played, open_plans
from core.policy import PolicyCard, load_base, load_tokenizer, read_policy_card
from core.protocol import Protocol
from core.rewards import RewardFunction, combine_rewards, reward_matrix, scored
from core.rollout_view import RolloutView
from core.rounds import in_rounds
from core.store_card import NO_EMBEDDER
from core.vllm_engine import ServerOptions, VLLMEngine, served_name
from document_store import DocumentStore, Mode

# The rewards. Each is a function of episodes and their questions, and gives a number from 0 to 1 for each episode.


def get_reward_functions(embedder: Embedder) -> dict[str, RewardFunction]:
    """What an episode is rewarded for, by name: edit this. Their weights are --weights, in this order."""
    return {
        "mrr": get_mrr,
        "answer_similarity": partial(get_answer_similarity, embedder=embedder),  # or get_token_f1
        "format": get_format_reward,
    }


def get_mrr(episodes: Sequence[Episode], questions: Sequence[Question]) -> list[float]:
    """Reciprocal rank of the first relevant chunk among all that the agent saw, each counted once, in that order.

    So a second search helps only if the first one failed. Example: hits (a, b) and then (b, c), of which c answers:
    seen were a, b, c, so 1/3.
    """
    return [
        next((1 / place for place, hit in enumerate(episode.hits, 1) if hit in question.relevant_chunk_ids), 0.0)
        for episode, question in zip(episodes, questions, strict=True)
    ]


def get_answer_similarity(
    episodes: Sequence[Episode], questions: Sequence[Question], embedder: Embedder
) -> list[float]:
    """Cosine between the embeddings of answer and reference, 0 where it is negative or there is no answer.

    Unrelated texts are not at 0: MiniLM gives them about 0.1, E5 about 0.7.
    """
    given = embedder.encode_passages([episode.answer for episode in episodes])
    wanted = embedder.encode_passages([question.answer for question in questions])
    cosines = np.einsum("nd,nd->n", given, wanted).clip(0, 1)
    return [float(c) if episode.answer else 0.0 for c, episode in zip(cosines, episodes, strict=True)]


def get_token_f1(episodes: Sequence[Episode], questions: Sequence[Question]) -> list[float]:
    """Overlap of the answer's words with the reference's."""
    return [token_f1(episode.answer, question.answer) for episode, question in zip(episodes, questions, strict=True)]


def get_format_reward(episodes: Sequence[Episode], questions: Sequence[Question]) -> list[float]:
    """A third each for: a search that was run, an answer that ended it, and turns that keep to the protocol.

    The last third by their share. Example: a well-formed search, then a turn with broken JSON, then an answer:
    1/3 + 1/3 + 1/3 * 2/3.
    """
    return [
        (bool(e.searches) + (e.stop == "answer") + sum(not t.faults for t in e.turns) / max(1, len(e.turns))) / 3
        for e in episodes
    ]


# The options.

EngineChoice = Literal["auto", "vllm", "local"]


@dataclass(frozen=True)
class RolloutOptions:
    """How episodes are played and rewarded."""

    data: Path = Path("data")
    """Folder that data_prep.py wrote."""
    policy: Path = Path("models/policy")
    """Policy folder of create_lora_model.py or sft_train.py."""
    engine: EngineChoice = "auto"
    """What samples: vLLM servers, or this process; auto takes the servers where one answers."""
    server: ServerOptions = field(default_factory=ServerOptions)
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)
    num_rollouts: int = 8
    """Episodes of each question: a group, within which they are compared."""
    batch_size: int = 8
    """Questions of a step."""
    at_once: int = 8
    """Questions a worker plays at the same time, --num-rollouts episodes each; of an evaluation, where they have one
    each, as many episodes. Fewer where several workers share a step."""
    weights: tuple[float, ...] = ()
    """Weight of each reward, in the order of get_reward_functions; all equal if none is given."""
    k: int = 3
    """Passages a search shows."""
    passage_tokens: int = 64
    """Tokens of each passage shown."""
    mode: Mode = "hybrid"
    """How the store is searched."""
    question_weight: int = 0
    """Search for the question, so many times, and the policy's query behind it: it need only add what helps, and BM25
    counts words. 0: its query alone."""
    seed: int = 0
    """Of the choice of questions and of sampling."""

    @property
    def episodes_at_once(self) -> int:
        return self.at_once * self.num_rollouts

    def check(self) -> None:
        """Fail before anything is loaded."""
        self.limits.check()
        self.sampling.check()
        check_at_least_one(self, "num_rollouts", "batch_size", "at_once", "k", "passage_tokens")
        check_at_least_zero(self, "question_weight")


@dataclass(frozen=True)
class Options:
    """One step's episodes, or the service."""

    rollout: RolloutOptions = field(default_factory=RolloutOptions)
    run_dir: Path = Path("runs/grpo")
    """The run folder."""
    follow: bool = False
    """Play what the trainer plans, until its run is finished."""
    worker: str = field(default_factory=socket.gethostname)
    """Name of this worker, unlike any other's; a restarted worker goes on under its old one."""
    max_staleness: int = 0
    """Steps that sampling may run ahead of the newest adapter."""
    poll: float = 1.0
    """Seconds between looks at the run folder."""


# Playing.


class Rollout:
    """Plays questions and rewards the episodes. Made by `open_rollout`."""

    def __init__(self, options: RolloutOptions, engine: Engine, protocol: Protocol, store: DocumentStore) -> None:
        self.options, self.engine, self.protocol, self.store = options, engine, protocol, store
        train = options.data / "train.jsonl"
        self.questions = read_answerable(train)
        if not self.questions:
            raise UserError(f"{train} has no question with a chunk that answers it")
        held_out = options.data / "eval.jsonl"
        self.by_id = {
            "train": {q.id: q for q in self.questions},
            "eval": {q.id: q for q in (read_answerable(held_out) if held_out.exists() else [])},
        }
        self.functions = get_reward_functions(store.embedder if store.options.embedder != NO_EMBEDDER else Embedder())
        self.try_rewards()
        self.exact = not isinstance(engine, VLLMEngine)  # equal seeds give equal episodes, to the last bit
        self.searches = BatchedSearch(self.search, in_line=self.exact)

    def try_rewards(self) -> None:
        """Try every reward and weight on made-up episodes, so that a broken one shows before anything is played."""
        blank = Episode("trial/0", "trial", (), (), (), (), (), "", "turns", "base")
        self.reward([blank, replace(blank, id="trial/1", answer="yes")], self.questions[:1] * 2)

    def search(self, queries: Sequence[str]) -> Sequence[Sequence[Found]]:
        return self.store.search(queries, self.options.k, self.options.mode)

    async def play(self, question: Question, plan: Plan, view: RolloutView) -> list[Episode]:
        """A question's group of episodes, rewarded."""
        sampling = replace(self.options.sampling, temperature=plan.temperature)
        weight = self.options.question_weight
        agent = Agent(self.engine, self.protocol, self.searches, self.options.limits, sampling, weight)

        async def one(sample: int) -> Episode:
            episode = await agent.play(question, sample, plan.seed)
            view.played(episode)
            return episode

        episodes = await asyncio.gather(*(one(sample) for sample in range(plan.num_rollouts)))
        episodes = await self.searches.in_thread(self.reward, episodes, [question] * len(episodes))
        view.rewarded(episodes)
        return episodes

    def reward(self, episodes: Sequence[Episode], questions: Sequence[Question]) -> list[Episode]:
        """Each with its rewards by name and, for people, their weighted mean; training combines a batch's anew."""
        matrix_NR = reward_matrix(self.functions, episodes, questions)
        return scored(
            episodes,
            list(self.functions),
            matrix_NR,
            combine_rewards(matrix_NR, "uniform", self.options.weights or None),
        )

    def question(self, plan: Plan, name: str) -> Question:
        if name not in self.by_id[plan.split]:
            raise UserError(f"{self.options.data} has no {plan.split} question {name}, which plan {plan.name} names")
        return self.by_id[plan.split][name]


def plan_of(options: RolloutOptions, ids: Sequence[str], step: int) -> Plan:
    """A step's questions in rounds, none of them twice in a step."""
    chosen = in_rounds(ids, step, options.batch_size, options.seed)
    return Plan(
        f"{step:06d}", step, tuple(dict.fromkeys(chosen)), num_rollouts=options.num_rollouts,
        temperature=options.sampling.temperature, seed=options.seed * 1_000_003 + step,
    )  # fmt: skip


@asynccontextmanager
async def open_rollout(options: RolloutOptions) -> AsyncIterator[Rollout]:
    """Everything that playing needs, the engine among it."""
    options.check()
    card = read_policy_card(options.policy)
    store = DocumentStore.open(options.data / "store")
    protocol = Protocol(load_tokenizer(card), options.passage_tokens)
    async with open_engine(options.engine, options.server, card, options.episodes_at_once) as engine:
        if options.engine == "auto" and not isinstance(engine, VLLMEngine):
            print(f"engine: this process, as no vLLM server answers at {options.server.urls[0]}")
        yield Rollout(options, engine, protocol, store)


@asynccontextmanager
async def open_engine(
    choice: EngineChoice, server: ServerOptions, card: PolicyCard, slots: int
) -> AsyncIterator[Engine]:
    """vLLM servers, or this process with so many sequences at once (64 at most); auto takes servers that answer."""
    if not server.api_key:
        server = replace(server, api_key=os.environ.get("VLLM_API_KEY", ""))
    if choice == "vllm" or (choice == "auto" and answers(server)):
        async with VLLMEngine(server) as engine:
            yield engine
    else:
        from core.local_engine import LocalEngine  # takes seconds: only where it samples

        yield LocalEngine(load_base(card, dequantize=True), min(64, slots))


def answers(server: ServerOptions) -> bool:
    try:
        return httpx.get(f"{server.urls[0]}/health", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


# A plan, shared by workers.


async def play_plan(rollout: Rollout, run_dir: Path, plan: Plan, worker: str, *, poll: float = 1.0) -> None:
    """Play what of a plan no other worker plays, a few questions at once, and wait until all are played."""
    played = Played(run_dir, plan)
    claims = Claims(played.folder / "claims", worker)
    playing: dict[asyncio.Task[None], str] = {}
    total = len(plan.questions) * plan.num_rollouts
    at_once = max(1, rollout.options.episodes_at_once // plan.num_rollouts)
    with RolloutView(f"{plan.name}, {rollout.engine.adapter}", total) as view:
        keeper = asyncio.create_task(keep_fresh(claims, playing))
        try:
            while missing := played.missing():
                beat()
                for name in missing:
                    room = len(playing) < at_once and name not in playing.values()
                    if room and claims.take(name):
                        question = rollout.question(plan, name)
                        task = asyncio.create_task(play_question(rollout, question, plan, claims, played.folder, view))
                        playing[task] = name
                # Where others play the rest, look again later: if one of them dies, its claims fall free.
                if not playing:
                    await asyncio.sleep(poll)
                    continue
                done, _ = await asyncio.wait(playing, timeout=poll, return_when=FIRST)
                for task in done:
                    del playing[task]
                    task.result()
        finally:
            for task in (keeper, *playing):
                task.cancel()


async def play_question(
    rollout: Rollout, question: Question, plan: Plan, claims: Claims, folder: Path, view: RolloutView
) -> None:
    episodes = await rollout.play(question, plan, view)
    causes = [episode.cause for episode in episodes if episode.stop == "engine"]
    if causes:  # says nothing of the policy: not kept
        raise UserError(f"{plan.name}: {causes[0]}; start it, and run the same command again to go on from here")
    if claims.holds(question.id):  # not if this worker slept so long that another one took over
        append_episodes(folder / f"{claims.worker}.jsonl", episodes)


async def keep_fresh(claims: Claims, playing: Mapping[Any, str]) -> None:
    while True:
        await asyncio.sleep(claims.lease / 4)
        for name in playing.values():
            claims.refresh(name)


# The script.

FINISHED = "finished"  # in the run folder, when the trainer plans nothing more


async def main_async(options: Options) -> None:
    async with open_rollout(options.rollout) as rollout:
        if not options.follow:
            step = versions(options.run_dir)[-1] if versions(options.run_dir) else 0
            await load_newest(rollout, options.run_dir)
            plan = plan_of(options.rollout, list(rollout.by_id["train"]), step)
            await play_plan(rollout, options.run_dir, plan, options.worker, poll=options.poll)
            return
        done: set[str] = set()
        if (options.run_dir / FINISHED).exists():
            print(f"{options.run_dir} is finished; to go on with it, start grpo_train.py with more --max-steps first")
        while not (options.run_dir / FINISHED).exists():
            beat()
            plan_there = next_plan(options.run_dir, options.max_staleness, done)
            if plan_there is None:
                await asyncio.sleep(options.poll)
                continue
            await load_newest(rollout, options.run_dir)
            await play_plan(rollout, options.run_dir, plan_there, options.worker, poll=options.poll)


def next_plan(run_dir: Path, max_staleness: int, done: set[str]) -> Plan | None:
    """The oldest plan that something is left of to play, and for which there is an adapter that is new enough.

    Plans found to be played are added to `done`, so that their episodes are not read at every look.
    """
    there = versions(run_dir)
    for plan in open_plans(run_dir):
        if plan.name not in done and there and there[-1] + max_staleness >= plan.version:
            if Played(run_dir, plan).missing():
                return plan
            done.add(plan.name)
    return None


async def load_newest(rollout: Rollout, run_dir: Path) -> None:
    """The newest adapter of the run, or the policy's own where there is none yet."""
    adapter = newest_adapter(run_dir if versions(run_dir) else rollout.options.policy)
    version = int(adapter.name[1:]) if versions(run_dir) else 0
    await rollout.engine.load_adapter(served_name(run_dir.name, version), adapter)


def main(options: Options) -> None:
    started = time.perf_counter()
    asyncio.run(main_async(options))
    print(f"played in {time.perf_counter() - started:.0f} s: {options.run_dir / 'episodes'}")


if __name__ == "__main__":
    run_script(main, description=__doc__)
