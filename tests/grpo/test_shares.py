"""Shares of a plan: two processes, here threads with an engine each, play what one plays, and again only what is lost.

tests/integration/test_shared_rollouts.py does the same with processes, kills some and lets others fail.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier, Lock

import pytest

from forage.agent.episode import append_episodes
from forage.agent.options import AgentSettings
from forage.grpo.players import Share, SharedPlay, clear_other_divisions, divide, play_here
from forage.policy.adapters import adapter_path
from forage.rollout.plans import Plan, Played
from forage.rollout.rollout import open_rollout
from forage.runs.phases import Phases
from tests.factories import EPISODE
from tests.tiny_training import tiny_options

PLAN = Plan("000000", 0, ("q3", "q0", "q5"), spare=("q1", "q2", "q4"), num_rollouts=2)


def test_questions_are_divided_in_turn():
    assert divide("abc", 2) == [Share("trainer-1of2", ("a", "c")), Share("trainer-2of2", ("b",))]
    assert divide("a", 3, go=2)[1:] == [Share("trainer-2of3-2", ()), Share("trainer-3of3-2", ())]
    share = divide("abc", 2)[0]
    assert share.of(PLAN) == replace(PLAN, questions=("a", "c"), spare=())


LOADING = Lock()  # two threads that load models at once leave transformers unable to tie weights, for good


class Paired:
    """A learner's communication between threads."""

    world = 2

    def __init__(self, rank, sent, barrier):
        self.rank, self.sent, self.barrier = rank, sent, barrier

    def broadcast(self, value):
        return self.all_gather(value)[0]

    def all_gather(self, value):
        self.sent[self.rank] = value
        self.barrier.wait(250)
        values = list(self.sent)
        self.barrier.wait(250)
        return values


def flat_for_some(embedder):
    """All episodes of q0, q1 and q5 earn the same, so two spare questions are played, and a third for the flat q1."""

    def low(episodes, questions):
        flat = ("q0", "q1", "q5")
        return [0.5 if e.question_id in flat else int(e.id[-1]) for e in episodes]

    return {"low": low}


def with_rollout(options, play):
    """What `play(runner, rollout)` returns, with the tiny model."""
    with asyncio.Runner() as runner:
        settings = AgentSettings(mode="sparse", max_turns=2, max_turn_tokens=8)
        opened = open_rollout(options.rollout, settings, flat_for_some)
        with LOADING:
            rollout = runner.run(opened.__aenter__())
        found = play(runner, rollout)
        runner.run(opened.__aexit__(None, None, None))
        return found


def play_in_two(options, plan):
    """The plan's episodes."""
    sent, barrier = [None, None], Barrier(2)

    def process(rank):
        def play(runner, rollout):
            return shared_play(runner, rollout, options.run_dir, Paired(rank, sent, barrier)).play(plan, Phases())

        return with_rollout(options, play)

    with ThreadPoolExecutor(2) as pool:
        return next(iter(pool.map(process, range(2))))


def shared_play(runner, rollout, run_dir, learner):
    """What one process plays with, around a rollout that is open."""
    shared = object.__new__(SharedPlay)
    shared.runner, shared.rollout, shared.run_dir, shared.learner = runner, rollout, run_dir, learner
    return shared


def run_folder(tiny, folder):
    """Options of a run that has published its first adapter."""
    options = tiny_options(tiny, folder / "run")
    path = adapter_path(options.run_dir, 0)
    path.parent.mkdir(parents=True)
    path.symlink_to(adapter_path(tiny / "policy", 0))
    return options


def written(options):
    folder = options.run_dir / "episodes" / PLAN.name
    return {path.stem: path.read_bytes() for path in folder.glob("*.jsonl")}


def test_two_processes_play_what_one_plays_and_again_only_what_was_lost(tiny, tmp_path):
    alone = run_folder(tiny, tmp_path / "alone")
    ones = with_rollout(alone, lambda runner, rollout: runner.run(play_here(rollout, alone.run_dir, PLAN)))
    assert [episode.question_id for episode in ones[::2]] == ["q3", "q0", "q5", "q1", "q2", "q4"]

    options = run_folder(tiny, tmp_path / "two")
    twos = play_in_two(options, PLAN)
    assert [replace(e, seconds={}, logprobs=e.mask) for e in twos] == [
        replace(e, seconds={}, logprobs=e.mask) for e in ones
    ]
    for own, other in zip(twos, ones, strict=True):
        assert own.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    before = written(options)
    assert sorted(before) == ["trainer-1of2", "trainer-1of2-2", "trainer-1of2-3", "trainer-2of2", "trainer-2of2-2"]

    # Of one share the second group is half-written, of another nothing is there.
    folder = options.run_dir / "episodes" / PLAN.name
    (folder / "trainer-1of2.jsonl").write_bytes(before["trainer-1of2"][:-300])
    (folder / "trainer-1of2-3.jsonl").unlink()
    half_claim = folder / "claims" / ".q4.k3j2h1"
    half_claim.touch()
    again = play_in_two(options, PLAN)
    assert [replace(e, seconds={}) for e in again] == [replace(e, seconds={}) for e in twos]  # bit for bit
    assert not half_claim.exists()
    after = written(options)
    assert [name for name in sorted(before) if after[name] != before[name]] == ["trainer-1of2", "trainer-1of2-3"]


def test_a_complete_plan_is_not_played_at_all(tiny, tmp_path):
    options = run_folder(tiny, tmp_path)
    plan = replace(PLAN, spare=())
    groups = [replace(EPISODE, id=f"{name}/{n}", question_id=name) for name in plan.questions for n in range(2)]
    append_episodes(Played(options.run_dir, plan).folder / "trainer.jsonl", groups)
    found = []

    def process(rank):
        found.append(shared_play(None, None, options.run_dir, Paired(rank, sent, barrier)).play(plan, Phases()))

    sent, barrier = [None, None], Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(process, range(2)))
    assert found == [groups, groups]


@pytest.mark.parametrize(
    ("owner", "world", "kept"),
    [("trainer-1of2", 2, True), ("trainer-2of2-3", 2, True), ("trainer", 2, False), ("trainer-1of2", 20, False),
     ("trainer-1of20", 2, False)],
)  # fmt: skip
def test_what_other_than_so_many_processes_left_is_removed(tmp_path, owner, world, kept):
    """The claims too: nobody would take them over before they expire."""
    for what in ("claim", "episodes"):
        played = Played(tmp_path / what, PLAN)
        played.claims.mkdir(parents=True)
        if what == "claim":
            (played.claims / "q3").write_text(owner)
        else:
            append_episodes(played.folder / f"{owner}.jsonl", [EPISODE])
        clear_other_divisions(played, world)
        assert played.folder.exists() == kept
