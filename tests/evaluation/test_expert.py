"""Expert iteration: which episodes are learnt from, behind which prompt, and that sft_train.py learns from them."""

import sys
from dataclasses import replace

import pytest

from forage.agent.episode import append_episodes, read_episodes
from forage.agent.protocol import write_answer, write_call
from forage.cli import run_script
from forage.data.records import Question
from forage.errors import UserError
from forage.evaluation.expert import Options, best_episodes, demonstration, distinct, main, unfit
from forage.evaluation.strategies.budget_forcing import BudgetForcing
from forage.evaluation.strategies.self_consistency import fused
from forage.evaluation.strategies.templates import Template, ThoughtTemplates
from forage.files import write_jsonl
from forage.sft.options import SFTOptions
from tests.options import with_options
from tests.scripted_engine import QUESTION, run, turns

GOUT = Question("q1", "What causes gout?", "uric acid", "causes", "gout", ("d",), ("right#0",))
BY_ID = {"q1": GOUT}
CAUSES = Template("causes", "What causes [topic]?", ("why [topic]", "[topic] origin"), 2, 0.8)


@pytest.fixture(scope="module")
def protocol(tiny_protocol):
    """The tiny policy learns from these episodes."""
    return tiny_protocol


def played(protocol, answer="acid", query="gout", sample=0, reward=0.0, strategy=None):
    """A real episode of the agent's, on GOUT."""

    async def plain(agent, question, seed):
        return await agent.play(question, sample, seed)

    say = turns({str(sample): (query, answer)})
    given, _ = run(strategy or plain, protocol, say, {"gout": {"right#0": "Uric acid."}}, GOUT)
    episode = given.episode if strategy else given
    return replace(episode, reward=reward, rewards={"mrr": reward})


def chosen(protocol, episodes, by="reward", **more):
    return [(e.id, e.answer) for e in best_episodes(episodes, BY_ID, protocol, Options((), by=by, **more))]


def test_the_best_of_a_question_are_kept(protocol):
    episodes = [
        played(protocol, f"a{n}", sample=n, reward=reward) for n, reward in enumerate((0.6, 0.9, 0.4, 0.9, 0.7))
    ]
    assert chosen(protocol, episodes) == [("q1/0", "a1")]  # the first of equal ones
    assert chosen(protocol, episodes, max_per_question=9) == [
        ("q1/0", "a1"),
        ("q1/1", "a3"),
        ("q1/2", "a4"),
        ("q1/3", "a0"),
    ]
    assert chosen(protocol, episodes, min_score=0.95) == []


def test_by_a_scorer(protocol):
    said = ("uric acid", "rain", "acid", "uric acid now")
    episodes = [played(protocol, answer, sample=n) for n, answer in enumerate(said)]
    lost = played(protocol, "uric acid", "nothing", sample=4)
    assert chosen(protocol, [lost, *episodes], "token_f1") == [("q1/0", "uric acid")]
    assert chosen(protocol, [lost], "token_f1", min_score=0.1) == []  # it said so without having found it
    assert chosen(protocol, [episodes[1], *episodes], "support", min_score=1.0) == [("q1/0", "uric acid")]
    assert chosen(protocol, episodes[1:], "agreement", min_score=0.1) == [("q1/0", "acid")]


def test_what_is_not_learnt_from(protocol):
    episode = played(protocol, reward=1.0)
    assert unfit(episode, BY_ID) == ""
    assert unfit(episode, {}) == "not of a training question"
    assert unfit(replace(episode, stop="turns"), BY_ID) == "not well-formed"
    assert unfit(fused(episode, [episode]), BY_ID) == "with fused hits"
    assert chosen(protocol, [fused(episode, [episode]), replace(episode, question_id="eval-1")]) == []


def test_each_once_and_rather_rewarded(protocol):
    episode = played(protocol, reward=1.0)
    other = fused(episode, [episode])
    assert distinct([replace(episode, rewards={}, reward=0.0), episode, other, episode]) == [episode, other]


def test_an_altered_prompt_becomes_the_plain_one(protocol):
    plain = played(protocol)
    hinted = played(protocol, strategy=ThoughtTemplates((CAUSES,)))
    assert "Hint: " in hinted.transcript
    told = demonstration(hinted, GOUT, protocol)
    assert (told.ids, told.mask, told.turns) == (plain.ids, plain.mask, plain.turns)
    assert (told.searches, told.answer, told.transcript) == (plain.searches, plain.answer, plain.transcript)
    assert set(told.logprobs) == {0.0}
    assert demonstration(plain, GOUT, protocol) is plain


def test_forced_tokens_are_kept_and_not_learnt(protocol):
    def say(name, turn, text):
        if turn == 0:
            return write_call("gout")
        return write_answer("acid") if "Wait" in text else "So. " + write_answer("no")

    given, _ = run(
        BudgetForcing(min_thinking=9, max_thinking=60, waits=1), protocol, say, {"gout": {"right#0": "Acid."}}, GOUT
    )
    episode = replace(given.episode, reward=1.0)
    (told,) = best_episodes([episode], BY_ID, protocol, Options(()))
    forced = protocol.turn_ids(" Wait")[:-1]
    place = next(n for n in range(len(told.ids)) if list(told.ids[n : n + len(forced)]) == forced)
    assert told.mask[place : place + len(forced)] == (0,) * len(forced)
    assert told.mask[place - 1] == told.mask[place + len(forced)] == 1


@pytest.fixture
def files(tmp_path, protocol, monkeypatch):
    """Episodes of a training and of an eval question, and what the command needs."""
    monkeypatch.setattr("forage.evaluation.expert.read_policy_card", lambda policy: None)
    monkeypatch.setattr("forage.evaluation.expert.load_tokenizer", lambda card: protocol.tokenizer)
    write_jsonl(tmp_path / "train.jsonl", [GOUT, replace(GOUT, id="q2", question="What causes flu?")])
    episodes = [
        played(protocol, "acid", reward=0.9),
        played(protocol, "rain", sample=1, reward=0.6),
        replace(played(protocol, "acid", reward=0.8), question_id="q2"),
        replace(played(protocol, reward=1.0), question_id=QUESTION.id + "-eval"),
    ]
    append_episodes(tmp_path / "a.jsonl", episodes[:2])
    append_episodes(tmp_path / "b.jsonl", episodes)  # the first two again
    return tmp_path


def test_the_command(files, capsys):
    options = Options((files / "a.jsonl", files / "b.jsonl"), files, files, files / "best.jsonl")
    main(options)
    assert "kept 2 of 4 episodes; left out: 1 not of a training question" in capsys.readouterr().out
    assert [(e.id, e.question_id, e.answer) for e in read_episodes(options.out)] == [
        ("q1/0", "q1", "acid"), ("q2/0", "q2", "acid"),
    ]  # fmt: skip
    with pytest.raises(UserError, match="no episode reaches reward 2"):
        main(replace(options, min_score=2.0))
    unrewarded = [replace(e, rewards={}, reward=0.0) for e in read_episodes(files / "a.jsonl")]
    append_episodes(files / "c.jsonl", unrewarded)
    with pytest.raises(UserError, match="none of these episodes has a reward"):
        main(replace(options, files=(files / "c.jsonl",)))
    main(replace(options, files=(files / "c.jsonl",), by="token_f1"))
    assert [e.answer for e in read_episodes(options.out)] == ["acid"]


def test_the_command_line(files, monkeypatch):
    out = files / "out.jsonl"
    paths = ["--data", str(files), "--policy", str(files), "--out", str(out)]
    monkeypatch.setattr(
        sys, "argv", ["x", str(files / "a.jsonl"), str(files / "b.jsonl"), *paths, "--max-per-question", "2"]
    )
    run_script(main)
    assert len(list(read_episodes(out))) == 3
    monkeypatch.setattr(sys, "argv", ["x", *paths])
    with pytest.raises(SystemExit):
        run_script(main)


def test_sft_train_learns_from_what_is_written(files, tiny):
    """A tiny policy, all the way; sft_train.py itself fails where the held-out loss does not fall."""
    import sft_train

    main(Options((files / "b.jsonl",), files, files, files / "best.jsonl", max_per_question=2))
    options = SFTOptions(
        data=tiny / "data", policy=tiny / "policy", output_dir=files / "better", num_demonstrations=0,
        demonstrations=(files / "best.jsonl",), max_steps=4, eval_every=2, batch_size=2, eval_questions=0,
        eval_share=0.3,
    )  # fmt: skip
    sft_train.main(with_options(options, learning_rate=1e-2, mode="sparse"))
    learnt = list(read_episodes(files / "better" / "demonstrations.jsonl"))
    assert learnt == list(read_episodes(files / "best.jsonl"))
    assert (files / "better" / "adapters" / "v000000").is_dir()
