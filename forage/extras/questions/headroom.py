"""Headroom: for how many questions one search shows what answers, for how many a second could, and what to train then.

A search shows what answers if that is among the passages that an agent reads. Measured without a model, in seconds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from forage.agent.options import AgentSettings
from forage.agent.searcher import PER_TOKEN, best_start, search_each
from forage.data.chunking import Chunk
from forage.data.own_questions import SAID
from forage.data.records import Question, asked_of
from forage.data.relevance import by_document
from forage.extras.questions.two_documents import Linked, Passages
from forage.metrics import FEWEST, grouped
from forage.store.bm25 import BM25, Tokenizer
from forage.store.fusion import Hit, hit_of
from forage.store.manifest import NO_EMBEDDER
from forage.store.options import Mode
from forage.text import IDLE, cut_to_words, titled, words_of

if TYPE_CHECKING:
    from forage.store.document_store import DocumentStore

MOST = 300  # questions that are searched for
DEPTH = 10
MORE = 3  # times as many passages, which is what a second and a third search read
WELL, MUCH = 0.7, 0.15  # one search is enough from here on; a second one is worth training for
EVALUATED = 96  # questions that a run plays before and after, at most
CUT = 1 / 3  # of the answers are cut off, from which on more is to be shown first


@dataclass(frozen=True)
class Headroom:
    """Shares of the questions of which the answer is shown."""

    mode: Mode
    one: float
    """By a search for the question."""
    longer: float
    """By one that shows MORE times as many passages."""
    second: float
    """By that for the question, or a search for what is asked with a title or a name that it found."""
    whole: float
    """By the best passages of the documents that the question finds, one document after another."""
    none: float
    """By none of these."""


def headroom(store: DocumentStore, passages: Passages, questions: Sequence[Question], mode: Mode) -> Headroom:
    """The shares that searches in this mode show of the questions."""
    asked = [question.question for question in questions]
    first = store.search(asked, MORE * AgentSettings.k, mode)
    names_in = grouped((mention.chunk.id, " ".join(mention.name)) for mention in passages.mentions)
    names = [
        dict.fromkeys(name for hit in hits[: AgentSettings.k] for name in (hit.title, *names_in.get(hit.chunk_id, ())))
        for hits in first
    ]
    again = [[f"{name} {asked_of(q)}" for name in said] for q, said in zip(questions, names, strict=True)]
    second = search_each(lambda queries: store.search(queries, AgentSettings.k, mode), again)
    one, longer = ([answers(*each, times) for each in zip(questions, first, strict=True)] for times in (1, MORE))
    either = [
        any(answers(q, hits) for hits in (found[: AgentSettings.k], *more))
        for q, found, more in zip(questions, first, second, strict=True)
    ]
    whole = [answers(*each) for each in zip(questions, whole_documents(store, asked, mode), strict=True)]
    none = [not any(each) for each in zip(longer, either, whole, strict=True)]
    return Headroom(mode, *map(share, (one, longer, either, whole, none)))


# What teaches a second search, from the warm start to GRPO, as in docs/training.md, and more steps: people have more
# time than a demo, and a library of varied wording needed twenty.
WARM = (
    "--search-first --force-search --max-turns 2 --max-turn-tokens 32 --blind names --phrases 4 "
    "--num-demonstrations 96 --max-steps 24 --keep last"
)
GRPO = (
    "--weights best_search=3 found=1 format=1 --advantage reinforce++ --batch-size 16 --num-rollouts 4 "
    "--learning-rate 3e-4 --max-steps 24"
)


def advice(found: Headroom, cut: float | None, held_out: int, data: str) -> str:
    """What to train, in a sentence, with the commands; `cut` is the share of the answers that are cut off."""
    name, mode = quote(Path(data).resolve().name), " --mode sparse" * (found.mode == "sparse")
    play = f" --eval-questions {min(held_out, EVALUATED)}"
    sft = f"\n  python sft_train.py --data {quote(data)} --output-dir models/{name}{mode}"
    grpo = f"\n  python grpo_train.py --data {quote(data)} --policy models/{name} --run-dir runs/{name}{play} "
    gain, passages = found.second - max(found.one, found.longer), MORE * AgentSettings.k
    said = f"One {found.mode} search shows what answers {found.one:.0%} of the questions"
    if cut is not None and cut > CUT and found.one >= MUCH:
        said = (
            f"In {cut:.0%} of the questions a passage shows less than most of the answer: show more first, or cut "
            "smaller (data_prep.py --chunk-tokens 100)"
        )
        commands = f"{sft} --passage-tokens 128"
    elif found.one >= WELL:
        said += ", so training the search can gain little: use plain RAG, or train the answers"
        commands = f"{sft}{grpo}--weights answer_similarity=2 format=1"
    elif gain >= MUCH:
        said += (
            f"; a second, for the right title or name of those that it shows, could show {100 * gain:.0f} points more "
            f"than one of {passages} passages does: train the search (it will find passages, and not answer)"
        )
        commands = f"{sft} {WARM}{grpo}{GRPO}"
        if held_out < FEWEST:
            said, commands = f"{said}, once there are more questions", ""
    elif found.longer - found.one >= MUCH:
        said += (
            f", and {found.longer:.0%} if it shows {passages} passages: show more, before a second search is trained"
        )
        commands = f"{sft} --k {passages}"
    else:
        said += (
            f", and a second could show {100 * max(0, gain):.0f} points more: search better first (--embedder, "
            "--language, --chunk-tokens; document_store.py search shows what is found)"
        )
        commands = ""
    least = 1.96 * math.sqrt(0.3 / held_out)
    return f"{said}. With {held_out:,} held out, differences below {least:.2f} may not be shown{commands}"


def attacks(store: DocumentStore, made: Linked) -> str:
    """How many questions for two searches a second one answers that knows what to say, in words."""
    asked, mode = some(made.kept), modes_of(store)[-1]
    if not asked:
        return "; fewer words (--second-hop 3) or --make-questions may make some"
    first = store.search([question.question for question in asked], 1, mode)
    titles = [f"{hits[0].title} {asked_of(q)}" if hits else "" for q, hits in zip(asked, first, strict=True)]
    names = [f"{asked_of(question)} {question.focus}" for question in asked]
    ways = {
        "the first title": store.search(titles, AgentSettings.k, mode),
        "the name that is to be read": store.search(names, AgentSettings.k, mode),
    }
    shown = [
        f"{name} {share([answers(q, hits) for q, hits in zip(asked, found, strict=True)]):.0%}"
        for name, found in ways.items()
    ]
    return f"; shown by {', '.join(shown)} ({mode}); the first passage says the name of {made.named:.0%}"


def modes_of(store: DocumentStore) -> list[Mode]:
    return ["sparse"] if store.options.embedder == NO_EMBEDDER else ["sparse", "hybrid"]


def answers(question: Question, hits: Sequence[Hit], times: int = 1) -> bool:
    """Whether what answers is among the passages that an agent is shown of these, or so many times as many."""
    return any(hit.chunk_id in question.relevant_chunk_ids for hit in hits[: times * AgentSettings.k])


def some(questions: Sequence[Question]) -> list[Question]:
    return random.Random(0).sample(questions, min(MOST, len(questions)))


def share(values: Sequence[bool]) -> float:
    return sum(values) / max(1, len(values))


def whole_documents(store: DocumentStore, questions: Sequence[str], mode: Mode = "sparse") -> list[list[Hit]]:
    """The documents that each question finds, one after another, with the passages of each in order of what is asked.

    The store is searched once. Within a document, BM25 ranks for what is asked with the document's title for "this".
    """
    chunks_of, tokenize = by_document(store.chunks), Tokenizer(store.manifest.options.language)

    def ordered(document: str, asked: str) -> list[Hit]:
        chunks = chunks_of[document]
        words = tokenize(asked.replace("this", chunks[0].title))
        ranking = BM25.build([tokenize(chunk.text) for chunk in chunks]).rank(words, DEPTH)
        best = [chunks[place] for place in ranking.ids.tolist()]
        return [hit_of(chunk, rank=rank) for rank, chunk in enumerate(best, 1)]

    found = store.search(questions, DEPTH, mode)
    documents = [dict.fromkeys(hit.doc_id for hit in hits) for hits in found]
    return [
        [hit for document in each for hit in ordered(document, question.rpartition(": ")[2])][:DEPTH]
        for question, each in zip(questions, documents, strict=True)
    ]


def seen_share(
    questions: Sequence[Question], chunks: Mapping[str, Chunk], stems: Callable[[str], list[str]]
) -> float | None:
    """The share of the questions of whose answer a search for them shows most telling words, if it finds the relevant
    passages; None if none has an answer."""
    asked = [question for question in questions if question.answer and question.relevant_chunk_ids]
    tokens = AgentSettings.passage_tokens
    shares = []
    for question in asked:
        shown = ""  # about what a new policy is shown of each passage
        for chunk in map(chunks.__getitem__, question.relevant_chunk_ids[: AgentSettings.k]):
            window = chunk.text[best_start(chunk.text, question.question, chunk.title, stems, tokens) :]
            shown += f"{cut_to_words(titled(chunk.title, window), round(PER_TOKEN * tokens))} "
        telling = set(words_of(question.answer)) - IDLE
        shares.append(len(telling & set(words_of(shown))) >= SAID * len(telling))
    return sum(shares) / len(shares) if shares else None


def told(
    store: DocumentStore, passages: Passages, train: Sequence[Question], held_out: Sequence[Question], data: str
) -> Mapping[str, str]:
    """What is printed of the questions' headroom, by its mode, and what to do."""
    asked = [question for question in [*train, *held_out] if question.relevant_chunk_ids]
    if not asked or not held_out:
        return {}
    asked = some(asked)
    found = [headroom(store, passages, asked, mode) for mode in modes_of(store)]
    seen = seen_share(asked, store.chunk_by_id, Tokenizer(store.options.language))
    lines = {
        f"answers shown by searches, {each.mode}": (
            f"by one {each.one:.0%}, by one of {MORE * AgentSettings.k} passages {each.longer:.0%}, by whole documents "
            f"{each.whole:.0%}, with the best second one {each.second:.0%}, by none {each.none:.0%}"
        )
        for each in found
    }
    cut = None if seen is None else 1 - seen
    if cut is not None:
        lines["answers mostly cut off in the passages shown"] = f"{cut:.0%}"
    best = max(found, key=lambda each: (each.one, each.longer, each.second))
    return lines | {"so": advice(best, cut, len(held_out), data)}
