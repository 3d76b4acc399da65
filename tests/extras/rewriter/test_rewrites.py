"""Prompts with and without a chat template, the query made of an answer, and rows that can't be used."""

from collections import Counter

import pytest

from forage.agent.prompts import final_query, prompt_tokens, with_titles
from forage.data.records import Question
from forage.extras.rewriter.actors import left_padded, with_padding
from forage.extras.rewriter.data import make_rows, titles
from forage.extras.rewriter.options import RewriteOptions

NO_TITLES = {}.get


@pytest.fixture
def tokenizer(tiny_tokenizer):
    return tiny_tokenizer


def test_final_queries_by_hand():
    assert final_query("gout", "sore toe", "append", 2) == "gout gout sore toe"
    assert final_query("gout", " sore\n toe ", "replace", 2) == "sore toe"
    assert final_query("gout", "", "append", 1) == "gout"
    assert final_query("gout", "", "replace", 1) == ""


def test_a_chat_template_tells_instruction_and_query(tokenizer):
    text = tokenizer.decode(prompt_tokens(tokenizer, "Rewrite.", "What is gout?"))
    assert text == (
        "<|im_start|>system\nRewrite.<|im_end|>\n<|im_start|>user\nWhat is gout?<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}[{{ m.content }}]"
        "{% endfor %}",
        "{% for m in messages if m.role != 'system' %}[{{ m.content }}]{% endfor %}",
    ],
)
def test_a_template_without_system_turns(tokenizer, template):
    tokenizer.chat_template = template
    assert tokenizer.decode(prompt_tokens(tokenizer, "Rewrite.", "Gout?")) == "[Rewrite.\n\nGout?]"


def test_without_a_template_the_prompt_is_a_text_to_go_on_with(tokenizer):
    tokenizer.chat_template = None
    text = tokenizer.decode(prompt_tokens(tokenizer, "Rewrite.", "Gout?"))
    assert text == "Rewrite.\n\nQuestion: Gout?\nSearch query:"


def test_padding_is_a_token_that_nothing_else_is(tokenizer):
    padded = with_padding(tokenizer)
    assert padded.pad_token_id == len(tokenizer) != padded.eos_token_id
    assert tokenizer.pad_token_id == tokenizer.eos_token_id  # as it was
    assert left_padded([[1, 2], [3]], 9).tolist() == [[1, 2], [9, 3]]


def test_a_question_with_a_long_prompt_is_left_out_and_counted(tokenizer):
    questions = [Question(f"q{n}", text, "", relevant_doc_ids=("a",)) for n, text in enumerate(("x " * 300, "Flu?"))]
    left_out = Counter()
    [row] = make_rows(tokenizer, questions, RewriteOptions(), left_out, NO_TITLES)
    assert (row.query, row.relevant_doc_ids) == ("Flu?", ("a",))
    assert left_out == {"a prompt of over 256 tokens": 1}


def test_titles_that_the_question_finds_are_shown_below_it(tokenizer):
    assert with_titles("Is it hereditary?", ["Gout", "Flu"]) == "Is it hereditary?\nGout; Flu"
    long = " ".join(f"w{n}" for n in range(20))
    texts = {"a": "Gout\nA joint hurts.", "b": "Gout\nRest.", "c": f" Flu \nFever.\n{long}", "d": long}
    found = {"Sore toe?": ["b", "a", "gone", "c", "d"]}

    def titles_for(question):
        return titles(texts, lambda queries: [found[query] for query in queries], question)

    assert titles_for("Sore toe?") == ["Gout", "Flu", "w0 w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11"]
    question = Question("q", "Sore toe?", "", relevant_doc_ids=("a",))
    [row] = make_rows(tokenizer, [question], RewriteOptions(titles=2), Counter(), titles_for)
    assert row.query == "Sore toe?"  # which is what append searches for
    assert "Sore toe?\nGout; Flu<|im_end|>" in tokenizer.decode(row.prompt)
