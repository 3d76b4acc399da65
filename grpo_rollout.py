"""Stage 4: the rewards, and the agent's episodes. Edit `get_reward_functions` to reward something else.

    python grpo_rollout.py --data data --policy models/warm --run-dir runs/grpo                  one step's episodes
    python grpo_rollout.py --data data --policy models/warm --run-dir runs/grpo --follow         as a service

Reads: --data (questions and store of data_prep.py) and the newest adapter of --run-dir, else of --policy. Writes:
episodes/<step>/<worker>.jsonl in --run-dir, a line an episode, all episodes of a question at once. With --follow it
waits for the next adapter and goes on; any number of workers may share the run folder, and no question is played twice.
Samples through vLLM servers (--urls; start one by `make vllm-cpu`) or in this process (--engine local).
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

from core.adapters import adapter_path, newest_adapter, versions
from core.agent import Agent, BatchedSearch, Found, Limits
from core.answer_scores import token_f1
from core.claims import Claims
from core.corpus import Question, read_questions
from core.embedder import Embedder
from core.engines import Engine, Sampling
from core.episode import Episode, append_episodes, read_episodes
from core.errors import UserError, check_at_least_one, run_script
from core.policy import load_base, load_tokenizer, read_policy_card
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


@dataclass(frozen=True)
class RolloutOptions:
    """How episodes are played and rewarded."""

    data: Path = Path("data")
    """Folder that data_prep.py wrote."""
    policy: Path = Path("models/policy")
    """Policy folder of create_lora_model.py or sft_train.py."""
    engine: Literal["auto", "vllm", "local"] = "auto"
    """What samples: vLLM servers, or this process; auto takes the servers where one answers."""
    server: ServerOptions = field(default_factory=ServerOptions)
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)
    num_rollouts: int = 8
    """Episodes of each question: a group, within which they are compared."""
    batch_size: int = 8
    """Questions of a step."""
    at_once: int = 8
    """Questions a worker plays at the same time; fewer where several workers share a step."""
    weights: tuple[float, ...] = ()
    """Weight of each reward, in the order of get_reward_functions; all equal if none is given."""
    k: int = 3
    """Passages a search shows."""
    passage_tokens: int = 64
    """Tokens of each passage shown."""
    mode: Mode = "hybrid"
    """How the store is searched."""
    seed: int = 0
    """Of the choice of questions and of sampling."""

    def check(self) -> None:
        """Fail before anything is loaded."""
        self.limits.check()
        self.sampling.check()
        check_at_least_one(self, "num_rollouts", "batch_size", "at_once", "k", "passage_tokens")


@dataclass(frozen=True)
class Options:
    """One step's episodes, or the service."""

    rollout: RolloutOptions = field(default_factory=RolloutOptions)
    run_dir: Path = Path("runs/grpo")
    """The run folder."""
    follow: bool = False
    """Go on with each new adapter, until stopped."""
    worker: str = field(default_factory=socket.gethostname)
    """Name of this worker, unlike any other's; a restarted worker goes on under its old one."""
    max_staleness: int = 0
    """Steps that sampling may run ahead of the newest adapter."""
    max_steps: int = 0
    """With --follow, end after this step is played; 0 goes on."""
    poll: float = 1.0
    """Seconds between looks at the run folder."""


# Playing.


class Rollout:
    """Plays questions and rewards the episodes. Made by `open_rollout`."""

    def __init__(self, options: RolloutOptions, engine: Engine, protocol: Protocol, store: DocumentStore) -> None:
        self.options, self.engine, self.store = options, engine, store
        self.questions = [q for q in read_questions(options.data / "train.jsonl") if q.relevant_chunk_ids]
        if not self.questions:
            raise UserError(f"{options.data / 'train.jsonl'} has no question with a chunk that answers it")
        self.functions = get_reward_functions(store.embedder if store.options.embedder != NO_EMBEDDER else Embedder())
        self.try_rewards()
        self.agent = Agent(engine, protocol, BatchedSearch(self.search), options.limits, options.sampling)

    def try_rewards(self) -> None:
        """Try every reward and weight on made-up episodes, so that a broken one shows before anything is played."""
        blank = Episode("trial/0", "trial", (), (), (), (), (), "", "turns", "base")
        self.reward([blank, replace(blank, id="trial/1", answer="yes")], self.questions[:1] * 2)

    def search(self, queries: Sequence[str]) -> Sequence[Sequence[Found]]:
        return self.store.search(queries, self.options.k, self.options.mode)

    async def play(self, question: Question, step: int, view: RolloutView) -> list[Episode]:
        """A question's group of episodes, rewarded."""
        seed = self.options.seed * 1_000_003 + step

        async def one(sample: int) -> Episode:
            episode = await self.agent.play(question, sample, seed)
            view.played(episode)
            return episode

        episodes = await asyncio.gather(*(one(sample) for sample in range(self.options.num_rollouts)))
        episodes = await self.agent.search.in_thread(self.reward, episodes, [question] * len(episodes))
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

    def of_step(self, step: int) -> list[Question]:
        """The questions of a step, none of them twice."""
        return list(dict.fromkeys(in_rounds(self.questions, step, self.options.batch_size, self.options.seed)))


@asynccontextmanager
async def open_rollout(options: RolloutOptions) -> AsyncIterator[Rollout]:
    """Everything that playing needs, the engine among it."""
    options.check()
    card = read_policy_card(options.policy)
    store = DocumentStore.open(options.data / "store")
    protocol = Protocol(load_tokenizer(card), options.passage_tokens)
    server = options.server
    if not server.api_key:
        server = replace(server, api_key=os.environ.get("VLLM_API_KEY", ""))
    if options.engine == "vllm" or (options.engine == "auto" and answers(server)):
        async with VLLMEngine(server) as engine:
            yield Rollout(options, engine, protocol, store)
    else:
        from core.local_engine import LocalEngine  # takes seconds: only where it samples

        if options.engine == "auto":
            print(f"engine: this process, as no vLLM server answers at {server.urls[0]}")
        yield Rollout(options, LocalEngine(load_base(card, dequantize=True)), protocol, store)


def answers(server: ServerOptions) -> bool:
    try:
        return httpx.get(f"{server.urls[0]}/health", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


# A step, shared by workers.


async def play_step(rollout: Rollout, run_dir: Path, step: int, worker: str, *, poll: float = 1.0) -> None:
    """Play what of a step's questions no other worker plays, a few at once, and wait until all are played."""
    folder = run_dir / "episodes" / f"{step:06d}"
    claims, questions = Claims(folder / "claims", worker), rollout.of_step(step)
    playing: dict[asyncio.Task[None], Question] = {}
    total = len(questions) * rollout.options.num_rollouts
    with RolloutView(f"step {step}, {rollout.engine.adapter}", total) as view:
        keeper = asyncio.create_task(keep_fresh(claims, playing))
        try:
            while missing := [q for q in questions if q.id not in played_questions(folder)]:
                for question in missing:
                    room = len(playing) < rollout.options.at_once and question not in playing.values()
                    if room and claims.take(question.id):
                        task = asyncio.create_task(play_question(rollout, question, step, claims, folder, view))
                        playing[task] = question
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
    rollout: Rollout, question: Question, step: int, claims: Claims, folder: Path, view: RolloutView
) -> None:
    episodes = await rollout.play(question, step, view)
    if claims.holds(question.id):  # not if this worker slept so long that another one took over
        append_episodes(folder / f"{claims.worker}.jsonl", episodes)


async def keep_fresh(claims: Claims, playing: Mapping[Any, Question]) -> None:
    while True:
        await asyncio.sleep(claims.lease / 4)
        for question in playing.values():
            claims.refresh(question.id)


def played_questions(folder: Path) -> set[str]:
    return {episode.question_id for episode in step_episodes(folder)}


def step_episodes(folder: Path) -> list[Episode]:
    """All episodes of a step's folder, in an order that does not depend on who played them when."""
    found = (episode for path in sorted(folder.glob("*.jsonl")) for episode in read_episodes(path))
    return sorted(found, key=lambda episode: episode.id)


# The script.


async def main_async(options: Options) -> None:
    async with open_rollout(options.rollout) as rollout:
        step = next_step(options.run_dir)
        while not options.max_steps or step <= options.max_steps:
            adapter = await wait_for_adapter(options, step)
            await rollout.engine.load_adapter(served_name(options.run_dir.name, int(adapter.name[1:])), adapter)
            await play_step(rollout, options.run_dir, step, options.worker, poll=options.poll)
            if not options.follow:
                break
            step = max(step + 1, next_step(options.run_dir))  # what training has left behind, nobody waits for


def next_step(run_dir: Path) -> int:
    """The newest adapter's step, or where there is none the first."""
    return versions(run_dir)[-1] if versions(run_dir) else 0


async def wait_for_adapter(options: Options, step: int) -> Path:
    """The newest adapter, once it is no further behind the step than is allowed; the policy's own where none is yet."""
    if not versions(options.run_dir) and step <= options.max_staleness:
        return newest_adapter(options.rollout.policy)
    while not (there := versions(options.run_dir)) or there[-1] + options.max_staleness < step:
        await asyncio.sleep(options.poll)
    return adapter_path(options.run_dir, there[-1])


def main(options: Options) -> None:
    started = time.perf_counter()
    asyncio.run(main_async(options))
    print(f"played in {time.perf_counter() - started:.0f} s: {options.run_dir / 'episodes'}")


if __name__ == "__main__":
    run_script(main, description=__doc__)
