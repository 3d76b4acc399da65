"""The scorer, and the reward bridge through TRL's own get_reward, by hand."""

import pytest
import torch
from trl.experimental.utils import get_reward

from forage.rewriter.data import Row
from forage.rewriter.options import RewriteOptions
from forage.rewriter.rewards import CustomRewardModel, Scorer
from forage.rewriter.trl_backend import RewardBridge

PAD, EOS = 99, 2
ROWS = [Row("one", ("a",), (5, 6)), Row("two", ("b",), (7,)), Row("three", ("c",), (5, 6, 7))]


def summed(rows, responses):
    """A reward that shows which row it was asked of, and with which tokens."""
    return [100.0 * ROWS.index(row) + sum(tokens) for row, tokens in zip(rows, responses, strict=True)]


def test_each_sequence_has_the_reward_of_its_own_row():
    bridge = RewardBridge(ROWS, summed)
    # "three" begins like "one", and the response to "one" begins with the token that would make it "three".
    sequences = torch.tensor([
        [PAD, 7, 30, 31, EOS, PAD],
        [5, 6, 7, 8, EOS, PAD],
        [PAD, 7, EOS, PAD, PAD, PAD],
    ])  # fmt: skip
    bridge.set_prompt_width(2)
    _, rewards, lengths = get_reward(bridge, sequences, PAD, context_length=2)
    assert rewards.tolist() == [100 + 63, 0 + 7 + 8 + EOS, 100 + EOS]
    assert lengths.tolist() == [4, 4, 2]
    bridge.set_prompt_width(3)
    _, rewards, _ = get_reward(bridge, torch.tensor([[5, 6, 7, 9, 9], [PAD, 5, 6, 9, 1]]), PAD, context_length=3)
    assert rewards.tolist() == [200 + 18, 10]


def test_an_unknown_prompt_is_an_error():
    bridge = RewardBridge(ROWS, summed)
    bridge.set_prompt_width(2)
    with pytest.raises(ValueError, match=r"no row has the prompt of 2 tokens that begins \[5, 7\]"):
        get_reward(bridge, torch.tensor([[5, 7, 30, EOS]]), PAD, context_length=2)


class Words(CustomRewardModel):
    def compute_reward(self, query, relevant_doc_ids):
        return len(query.split()) + (10 if "b" in relevant_doc_ids else 0)


def test_the_scorer_searches_for_what_was_written(tiny_tokenizer):
    tokenizer = tiny_tokenizer
    score = Scorer(Words(lambda queries: [], 5), RewriteOptions(rewrite="append", query_weight=2), tokenizer)
    tokens = [*tokenizer(" sore toe")["input_ids"], EOS, EOS]
    assert score(ROWS[:2], [tokens, [EOS]]) == [4, 12]
    assert [(e.query, e.written, e.searched, e.reward) for e in score.episodes] == [
        ("one", "sore toe", "one one sore toe", 4),
        ("two", "", "two two", 12),
    ]
