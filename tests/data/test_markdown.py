import pytest

from forage.data.markdown import markdown_blocks, without_marks

PAGE = """---
title: not this
---
<!-- a note
over lines --># Care of *bees* #

They **dance** and
[hum](h.md "loud").

Under a line
===
- Wax
  of bees
1. Honey

| a | b |
|---|:-:|
| 1 | 2 |

> quoted `code *x*`
***
```python
# no heading
x = 1
```
Last\\_word
"""


def test_a_page():
    blocks = [(block.text, block.is_heading) for block in markdown_blocks(PAGE)]
    assert blocks == [
        ("Care of bees", True), ("They dance and hum.", False), ("Under a line", True), ("Wax of bees", False),
        ("Honey", False), ("a | b", False), ("1 | 2", False), ("quoted code x", False), ("# no heading", False),
        ("x = 1", False), ("Last_word", False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("![a cat](c.png) and [the guide][1]", "a cat and the guide"),
        ("<https://x.example/> and a < b > c", "https://x.example/ and a < b > c"),
        ("snake_case_name and 2 * 3 * 4", "snake_case_name and 2 * 3 * 4"),
        ("_this_ and __that__", "this and that"),
    ],
)
def test_marks_go_and_text_stays(text, shown):
    assert without_marks(text) == shown


def test_windows_lines_and_an_open_fence():
    assert [block.text for block in markdown_blocks("# A\r\n\r\n~~~\r\ncode")] == ["A", "code"]


def test_marks_that_nothing_closes_take_no_time():
    for mark in ("**a ", "*a ", "`a ", "[a ", "<!-- ", "# " + " " * 1000):
        assert list(markdown_blocks(mark * 5_000 + "\n\nend"))[-1:] != [] or mark == "<!-- "
