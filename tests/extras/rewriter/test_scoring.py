"""The scorer, and the reward bridge through TRL's own get_reward, by hand."""

import torch
from trl.experimental.utils import get_reward

from forage.extras.rewriter.actors import left_padded
from forage.extras.rewriter.data import Row
from forage.extras.rewriter.options import RewriteOptions
from forage.extras.rewriter.ppo import PromptBatch
from forage.extras.rewriter.rewards import CustomRewardModel, Scorer
from forage.extras.rewriter.trl_backend import RewardBridge

PAD, EOS = 99, 2
ROWS = [Row("one", ("a",), (5, 6)), Row("two", ("b",), (7,))]


def summed(rows, responses):
    """A reward that shows which row it was asked of, and with which tokens."""
    return [100.0 * ROWS.index(row) + sum(tokens) for row, tokens in zip(rows, responses, strict=True)]


def test_each_sequence_has_the_reward_of_its_own_row():
    bridge = RewardBridge(summed)
    bridge.prompts = PromptBatch([ROWS[1], ROWS[0], ROWS[1]], left_padded([(7,), (5, 6), (7,)], PAD))
    sequences = torch.tensor([
        [PAD, 7, 30, 31, EOS, PAD],
        [5, 6, 7, 8, EOS, PAD],
        [PAD, 7, EOS, PAD, PAD, PAD],
    ])  # fmt: skip
    _, rewards, lengths = get_reward(bridge, sequences, PAD, context_length=2)
    assert rewards.tolist() == [100 + 63, 0 + 7 + 8 + EOS, 100 + EOS]
    assert lengths.tolist() == [4, 4, 2]


class Words(CustomRewardModel):
    def compute_reward(self, query, relevant_doc_ids):
        return len(query.split()) + (10 if "b" in relevant_doc_ids else 0)


def test_the_scorer_searches_for_what_was_written(tiny_tokenizer):
    tokenizer = tiny_tokenizer
    score = Scorer(
        Words(lambda queries: [], 5).compute_reward, RewriteOptions(rewrite="append", query_weight=2), tokenizer
    )
    tokens = [*tokenizer(" sore toe")["input_ids"], EOS, EOS]
    assert score(ROWS[:2], [tokens, [EOS]]) == [4, 12]
    assert [(e.query, e.written, e.searched, e.reward) for e in score.episodes] == [
        ("one", "sore toe", "one one sore toe", 4),
        ("two", "", "two two", 12),
    ]
