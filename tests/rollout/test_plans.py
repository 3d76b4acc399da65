"""Plans by hand: what is wanted, what is whole, what another process reads."""

from dataclasses import replace

from forage.agent.episode import append_episodes, compress
from forage.rollout.plans import Plan, Played, open_plans, plan_path, read_plan, write_plan
from tests.factories import EPISODE
from tests.refusals import refused

PLAN = Plan("000007", 7, ("a", "b"), ("c", "d"), num_rollouts=2, temperature=0.7, seed=3)


def group(name, *rewards):
    return [replace(EPISODE, id=f"{name}/{n}", question_id=name, reward=reward) for n, reward in enumerate(rewards)]


def test_a_flat_group_calls_for_a_spare_question():
    assert PLAN.wanted({}) == ("a", "b")
    assert PLAN.wanted({"a": group("a", 1, 0)}) == ("a", "b")
    flat = {"a": group("a", 0.5, 0.5 + 1e-9)}
    assert PLAN.wanted(flat) == ("a", "b", "c")
    assert PLAN.wanted(flat | {"c": group("c", 1, 1)}) == ("a", "b", "c", "d")
    everything = {name: group(name, 0, 0) for name in "abcd"}
    assert PLAN.wanted(everything) == ("a", "b", "c", "d")  # and no more than there are


def test_a_plan_is_read_as_it_was_written(tmp_path):
    write_plan(tmp_path, PLAN)
    write_plan(tmp_path, replace(PLAN, name="000006", credit="words", word_cost=0.5))
    assert read_plan(plan_path(tmp_path, "000007")) == PLAN
    assert [(plan.name, plan.credit, plan.word_cost) for plan in open_plans(tmp_path)] == [
        ("000006", "words", 0.5), ("000007", "episode", 0.0),
    ]  # fmt: skip
    later = plan_path(tmp_path, "000007").read_text().replace('"format": 2', '"format": 3')
    plan_path(tmp_path, "000008").write_text(later)
    with refused(r"it has another format.*must run the same version"):
        open_plans(tmp_path)
    plan_path(tmp_path, "000008").write_text('{"name": "000008"}')
    with refused("must run the same version"):
        open_plans(tmp_path)


def test_only_whole_groups_count_each_once_and_in_order(tmp_path):
    folder, played = tmp_path / "episodes" / "000007", Played(tmp_path, PLAN)
    assert played.missing() == ["a", "b"]
    append_episodes(folder / "w2.jsonl", group("b", 1, 0)[::-1])
    append_episodes(folder / "w1.jsonl", group("a", 1, 0)[:1])  # killed in between
    assert played.missing() == ["a"]
    append_episodes(folder / "w3.jsonl", group("a", 0, 1))
    append_episodes(folder / "w4.jsonl", group("b", 0, 0))  # the same question a second time
    assert played.missing() == []
    assert [(e.id, e.reward) for e in played.gathered()] == [("a/0", 0), ("a/1", 1), ("b/0", 1), ("b/1", 0)]


def test_episodes_of_adapters_older_than_the_plan_accepts_do_not_count(tmp_path):
    folder, plan = tmp_path / "episodes" / "000007", replace(PLAN, oldest=7)
    old = [replace(episode, adapter="run-v000006-1a2b3c4d") for episode in group("a", 1, 0)]
    new = [replace(episode, adapter="run-v000007-5e6f7a8b") for episode in group("a", 0, 1)]
    older = [replace(episode, adapter="run-v000003") for episode in group("b", 1, 1)]
    append_episodes(folder / "w.jsonl", [*old, *older])
    assert Played(tmp_path, PLAN).missing() == ["c"]  # for b is flat
    assert Played(tmp_path, plan).missing() == ["a", "b"]
    append_episodes(folder / "w.jsonl", new)  # the same worker plays it again
    append_episodes(folder / "late.jsonl", old)  # and another one still held the old plan
    assert Played(tmp_path, plan).missing() == ["b"]
    assert [(e.id, e.reward) for e in Played(tmp_path, plan).groups()["a"]] == [("a/0", 0), ("a/1", 1)]


def test_what_was_read_stays_read_while_a_file_is_gone(tmp_path):
    """The end of a plain file may be seen before its compressed form."""
    folder, played = tmp_path / "episodes" / "000007", Played(tmp_path, PLAN)
    path = folder / "w.jsonl"
    append_episodes(path, group("a", 1, 0))
    assert played.missing() == ["b"]
    append_episodes(path, group("b", 1, 0))
    compress(path)
    packed = path.with_name("w.jsonl.gz")
    packed.rename(tmp_path / "late")
    assert played.missing() == ["b"]
    (tmp_path / "late").rename(packed)
    assert played.missing() == []
    assert len(played.gathered()) == 4


def test_a_group_of_two_adapters_is_none(tmp_path):
    folder, played = tmp_path / "episodes" / "000007", Played(tmp_path, PLAN)
    newer = [replace(episode, adapter="run-v000007-5e6f7a8b") for episode in group("a", 1, 0)]
    append_episodes(folder / "w.jsonl", [group("a", 1, 0)[0], newer[1]])
    assert played.missing() == ["a", "b"]
    append_episodes(folder / "w.jsonl", newer)
    assert played.groups()["a"] == newer


def test_all_agree_on_what_was_played_twice_in_whatever_order_they_see_it(tmp_path):
    """Else one waits for a spare question, as to it a group is flat, that the others don't know is wanted."""
    folder, first, last = tmp_path / "episodes" / "000007", Played(tmp_path, PLAN), Played(tmp_path, PLAN)
    append_episodes(folder / "b.jsonl", [*group("a", 1, 0), *group("b", 1, 0)])
    assert first.missing() == []
    append_episodes(folder / "a.jsonl", group("a", 0, 0))
    assert first.missing() == last.missing() == ["c"]
