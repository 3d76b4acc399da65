"""What the warm start prints."""

from forage.sft.training import faults_in_words


def test_faults_are_counted_in_words_most_frequent_first():
    assert faults_in_words({"bad_json": 1, "no_action": 3, "answer_not_closed": 1}) == (
        "; the others: no_action in 3, answer_not_closed in 1, bad_json in 1"
    )
    assert faults_in_words({}) == ""
