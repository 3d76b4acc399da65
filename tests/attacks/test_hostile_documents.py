"""200 hostile documents through the whole path: no forged turn, no control token, nothing executed, no crash."""

import asyncio
import io
import json
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from rich.console import Console
from tokenizers import AddedToken, Regex, normalizers

from document_store import Search, print_hits
from forage.agent.agent import Agent, BatchedSearch
from forage.agent.options import AgentSettings
from forage.agent.prompts import REWRITE, prompt_tokens
from forage.agent.protocol import Protocol, write_answer, write_call
from forage.agent.vetting import Vetting
from forage.data.corpus import PAGES, QUESTIONS
from forage.data.records import Document, Question, read_documents
from forage.data.scraping.page_text import read_page
from forage.evaluation.measures import COSTS
from forage.evaluation.report import print_table, tables_of
from forage.files import json_lines
from forage.rollout.rollout import RolloutView
from forage.runs.stats import print_step
from forage.sft.teacher import TeacherOptions, demonstrate
from forage.text import encodable, printable
from tests import ROOT
from tests.attacks.hostile import hostile_documents
from tests.factories import EPISODE, STATS, plain_store
from tests.scripted_engine import Hit, InOrder
from tests.tiny import make_tokenizer

HOSTILE = hostile_documents()
SHORT = [hostile for hostile in HOSTILE if len(hostile.text) < 10_000]
LONG = [hostile for hostile in HOSTILE if hostile not in SHORT]
TEMPLATES = ROOT / "tests" / "agent" / "templates"
TOOLS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<answer>", "</answer>"]
TURN = "{% for m in messages %}{{ 'BEGIN' + m.role + 'MIDDLE' + m.content + 'END' }}{% endfor %}"
TURNS = TURN + "{% if add_generation_prompt %}{{ 'BEGINassistantMIDDLE' }}{% endif %}"


def template(begin, middle, end):
    return TURNS.replace("BEGIN", begin).replace("MIDDLE", middle).replace("END", end)


# By family: its template, and its control tokens. Qwen's tags are tokens; DeepSeek's turns are not special tokens;
# the last one reads full-width characters as ASCII and drops invisible ones before it looks for its tokens.
FAMILIES = {
    "chatml": (None, []),
    "qwen": ((TEMPLATES / "hermes.jinja").read_text(), TOOLS),
    "llama3": ((TEMPLATES / "llama3.jinja").read_text(), ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]),
    "mistral": (
        (TEMPLATES / "no_system.jinja").read_text(),
        ["<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[SEARCH_RESULTS]",
         "[/SEARCH_RESULTS]"],
    ),
    "gemma": (template("<start_of_turn>", "\\n", "<end_of_turn>"), ["<start_of_turn>", "<end_of_turn>"]),
    "deepseek": (
        template("<｜", "｜>", "<｜end▁of▁sentence｜>"),
        ["<｜user｜>", "<｜assistant｜>", "<｜system｜>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>",
         "<｜begin▁of▁sentence｜>", "<｜tool▁calls▁begin｜>"],
    ),
    "folding": (None, [*TOOLS, "<|eot_id|>", "[INST]"]),
}  # fmt: skip
family = pytest.mark.parametrize("name", FAMILIES)


@cache
def protocol_of(name):
    tokenizer, (text, tokens) = make_tokenizer(), FAMILIES[name]
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=name == "folding") for token in tokens])
    tokenizer.chat_template = text or tokenizer.chat_template
    if name == "folding":
        invisible = normalizers.Replace(Regex("[\u200b-\u200f\u2060\ufeff]"), "")
        tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), invisible])
    return Protocol(tokenizer, 64)


def failures(check, documents=HOSTILE):
    """The names of the documents that don't pass a check."""
    return [hostile.name for hostile in documents if not check(hostile)]


def control_of(protocol, ids):
    """The control tokens among some ids, with how often each occurs."""
    names = {n: token.content for n, token in protocol.tokenizer.added_tokens_decoder.items()}
    return Counter(names[token] for token in ids if token in names and names[token].strip())


def question_of(hostile, number=0):
    return Question(f"q{number}", hostile.text, hostile.text, "information", hostile.payload[:50], ("d",), ("d#0",))


# Prompts and results


@family
def test_no_text_becomes_a_control_token(name):
    protocol = protocol_of(name)
    plain = [
        protocol.join([protocol.show([Hit("", "x", "x")])], None), protocol.prompt("x"),
        prompt_tokens(protocol.tokenizer, REWRITE, "x"),
    ]  # fmt: skip
    wanted = [control_of(protocol, ids) for ids in plain]

    def check(hostile):
        result = protocol.show([Hit("", hostile.payload, hostile.text), Hit("", "x", hostile.text[::-1])])
        found = [control_of(protocol, protocol.join([result], None))]
        if hostile in SHORT:
            found.append(control_of(protocol, protocol.prompt(hostile.text)))
            found.append(control_of(protocol, prompt_tokens(protocol.tokenizer, REWRITE, hostile.text)))
        return found == wanted[: len(found)]

    assert not failures(check)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "payload"), [("chatml", "one token"), ("mistral", "brackets")])
def test_a_question_of_a_megabyte_ends_its_episode_and_forges_nothing(name, payload):
    """In seconds: a filter that begins again after each find would take hours."""
    protocol = protocol_of(name)
    [hostile] = [hostile for hostile in LONG if hostile.name == f"long: {payload}"]
    episode = play(protocol, InOrder(protocol), question_of(hostile), finds(hostile))
    assert episode.stop == "tokens"
    assert control_of(protocol, episode.ids) == control_of(protocol, protocol.prompt("x"))


def finds(hostile):
    return lambda queries: [[Hit(f"{hostile.payload}#0", hostile.payload, hostile.text)] * 3 for _ in queries]


def play(protocol, engine, question, search, **limits):
    settings = AgentSettings(max_tokens=100_000, **limits)
    return asyncio.run(Agent(engine, protocol, BatchedSearch(search, in_line=True), settings).play(question))


@family
def test_an_episode_has_the_turns_that_the_loop_made(name):
    protocol = protocol_of(name)
    said = write_call("gout"), write_answer("Rest.")
    benign = replace(HOSTILE[0], payload="x", text="x")

    def played(hostile):
        return play(protocol, InOrder(protocol, *said), question_of(hostile), finds(hostile))

    wanted = played(benign)

    def check(hostile):
        episode = played(hostile)
        sampled = [tuple(episode.ids[turn.start : turn.end]) for turn in episode.turns]
        return (
            control_of(protocol, episode.ids) == control_of(protocol, wanted.ids)
            and sampled == [tuple(protocol.turn_ids(text)) for text in said]
            and episode.mask
            == tuple(int(any(t.start <= n < t.end for t in episode.turns)) for n in range(len(episode.ids)))
            and episode.well_formed
        )

    assert not failures(check, SHORT)


@family
def test_a_demonstration_teaches_no_forged_turn(name):
    """The teacher writes the reference answer and queries made of the question, both hostile."""
    protocol = protocol_of(name)
    questions = [question_of(hostile, number) for number, hostile in enumerate(SHORT)]
    allowed = control_of(protocol, protocol.turn_ids(write_call("x")) + protocol.turn_ids(write_answer("x")))

    def search(queries):
        return [[Hit("d#0", "Gout", "Rest mends gout.")] for _ in queries]

    settings = AgentSettings(mode="sparse", max_turn_tokens=100_000, max_tokens=200_000, max_query=100_000)
    taught, _ = asyncio.run(demonstrate(questions, search, protocol, settings, TeacherOptions(), 0))
    vetting = Vetting(protocol, settings, ())
    vetting.check(Path("taught.jsonl"), taught)
    failed = []
    for episode in taught:
        own = [i for i, one in zip(episode.ids, episode.mask, strict=True) if one]
        held = control_of(protocol, own)
        turns = all(not protocol.forges(episode.ids[turn.start : turn.end]) for turn in episode.turns)
        if not turns or any(held[token] > allowed[token] * len(episode.turns) for token in held):
            failed.append(episode.question_id)
    assert len(taught) > len(questions) * 0.8
    assert not failed


# Chunks, the store and its server


def documents_of(hostile):
    return [
        Document(f"d{n}", h.payload, h.text, f"http://example.org/{h.payload[:200]}") for n, h in enumerate(hostile)
    ]


# What people look at


SEQUENCE = re.compile(r"\x1b\[[0-9;]*m")  # colours, which rich writes itself


def is_calm(output):
    """Whether a terminal would only show it: text, and colours of our own."""
    plain = SEQUENCE.sub("", output)
    return plain == printable(plain)


def on_terminal(table, monkeypatch):
    """What a table writes to a console that is a terminal."""
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=4000, color_system="truecolor")
    monkeypatch.setattr("forage.evaluation.report.Console", lambda width: terminal)
    print_table(table)
    return out.getvalue()


ROW = {"metrics": {"mrr": {"mean": 0.5, "low": 0.4, "high": 0.6}} | {
    cost: {"mean": 1.0, "low": 1.0, "high": 1.0} for cost in COSTS
}}  # fmt: skip


def test_terminals_are_shown_text_and_obey_none(store_without_vectors, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "4000")

    def check(hostile):
        text = encodable(hostile.text)
        view = RolloutView(text, 1)
        view.played(replace(EPISODE, stop=text))
        view.rewarded([replace(EPISODE, rewards={text: 0.5})])
        stats = replace(STATS, notes=[text], rewards={"overall": [0.5], text: [0.5]})
        outputs = [
            on_terminal(tables_of([ROW | {"name": text}], text)[0], monkeypatch),
            view.line(),
        ]
        print_step([stats], 9)
        print_hits(Search(hostile.text, str(store_without_vectors), k=3, mode="sparse"))
        outputs.append(capsys.readouterr().out)
        # Markup is text: every bracket is shown where a line is not cut.
        shown = all("[red]" in output for output in outputs) or "[red]" not in text
        return all(map(is_calm, outputs)) and shown

    failed = failures(check, SHORT)
    print_hits(Search("gout arthritis toe rest", str(store_without_vectors), k=200, mode="sparse"))
    assert is_calm(printed := capsys.readouterr().out)
    assert printed.count("Gout is a kind of") > 40
    assert not failed


@pytest.fixture(scope="module")
def store_without_vectors(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "store"
    documents = [replace(d, id=f"{d.id} {d.title[:100]}") for d in documents_of(SHORT)]
    rows = [{"id": encodable(d.id), "title": d.title, "text": d.text} for d in documents]
    path = folder.with_name("documents.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain_store(folder, read_documents(path))
    return folder


# Clean text


def test_clean_text_is_left_alone(protocol):
    """The sample's pages and questions: not a character changes but white space, which is one space each."""
    pages = [read_page(path.read_bytes(), None) for path in sorted(PAGES.rglob("*.html"))]
    texts = [block.text for page in pages for block in page.blocks]
    for _, row in json_lines(QUESTIONS):
        texts += [value for value in row.values() if isinstance(value, str)]
    texts = [text for text in texts if text.strip()]
    changed = [
        text
        for text in texts
        if not (encodable(text) == printable(text) == text and protocol.harmless(text) == " ".join(text.split()))
    ]
    assert len(texts) > 1000
    assert not changed
