"""Budget forcing: what is forced, cut and counted, token by token."""

from forage.agent.protocol import write_answer, write_call
from forage.extras.testtime import s1
from forage.extras.testtime.s1 import BudgetForcing
from tests.scripted_engine import check_books, run

FOUND = {"gout": {"c#0": "Rest helps."}}
THOUGHT = "Passage 1 says: Rest helps. That answers it."  # as the teacher thinks


def script(*parts):
    """The answer turn's parts, one for each request."""
    left = list(parts)

    def say(name, turn, text):
        return write_call("gout") if turn == 0 else left.pop(0)

    return say


def said(episode, protocol):
    """(the answer turn's tokens of the policy's own, the forced ones), as texts."""
    turn = episode.turns[-1]
    pairs = list(zip(episode.ids, episode.mask, strict=True))[turn.start : turn.end]
    return tuple(protocol.tokenizer.decode([token for token, one in pairs if one == own]) for own in (1, 0))


def length(protocol, text):
    return len(protocol.turn_ids(text)) - 1


def test_an_answer_that_comes_too_early_has_to_wait(protocol):
    parts = ("No. " + write_answer("heat"), " it says rest and so on", ". " + write_answer("rest"))
    outcome, engine = run(BudgetForcing(min_thinking=5, max_thinking=40), protocol, script(*parts), FOUND)
    episode = outcome.episode
    assert said(episode, protocol) == ("No. it says rest. <answer>rest</answer><|im_end|>", " Wait")
    assert (episode.answer, episode.stop) == ("rest", "answer")
    # The first part asked for five tokens: "No.", which was kept, and three of the answer, which were cut.
    assert [request.max_tokens for request in engine.requests[1:]] == [5, 3, 40 - 5]
    assert outcome.extra_sampled == 3
    assert all(logprob == 0 for logprob, one in zip(episode.logprobs, episode.mask, strict=True) if not one)
    check_books(outcome, engine)


def test_at_the_budget_the_answer_is_opened(protocol):
    long = "It may be this or that or something else and so on and on"
    outcome, engine = run(BudgetForcing(min_thinking=0, max_thinking=6), protocol, script(long, "rest</answer>"), FOUND)
    own, forced = said(outcome.episode, protocol)
    assert forced == "\n<answer>"
    assert own == protocol.tokenizer.decode(protocol.turn_ids(long)[:6]) + "rest</answer><|im_end|>"
    assert (outcome.episode.answer, outcome.episode.stop, outcome.episode.faults) == ("rest", "answer", ())
    assert outcome.episode.well_formed
    assert outcome.extra_sampled == 0
    check_books(outcome, engine)


def test_a_thought_that_ends_too_early_goes_on_behind_wait_on_its_line(protocol, monkeypatch):
    """Five tokens go beyond the thought: the line break and four of the answer are cut."""
    monkeypatch.setattr(s1, "WAITS", 1)
    thought = length(protocol, THOUGHT)
    parts = (f"{THOUGHT}\n{write_answer('rest')}", " Passage 1 says: Rest helps.\n" + write_answer("Rest."))
    strategy = BudgetForcing(min_thinking=thought + 5, max_thinking=60)
    outcome, engine = run(strategy, protocol, script(*parts), FOUND)
    turn = outcome.episode.turns[-1]
    text = f"{THOUGHT} Wait Passage 1 says: Rest helps.\n<answer>Rest.</answer>"
    assert protocol.text(outcome.episode.ids[turn.start : turn.end]) == text
    assert said(outcome.episode, protocol)[1] == " Wait"
    assert outcome.extra_sampled == 5
    assert [request.max_tokens for request in engine.requests[1:]] == [thought + 5, 60 - thought]
    assert outcome.episode.well_formed
    check_books(outcome, engine)
