"""Lab: does a policy really search? It answers the same questions on altered stores, beside plain RAG and no retrieval.

A policy that answers from memory loses nothing where nothing is found, or what another question's search finds. One
that reads the topic alone loses nothing where the passages that answer are left out. And a question that its own words
find, as they stand, teaches nobody to search: each question has a class, by what could have found its answer.

lab.md has the verdicts, each policy's tables, and its scores by class. lab.json is one JSON object:

    {"schema": 1, "questions": 200, "unanswerable": 0,               of the split, nothing in the store answers those
     "verdicts": {"warm": ["warm searches and reads: ...", ...]},
     "classes": {"q1": "one search", ...}}

eval.json and per_question.jsonl have the figures.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from forage.agent.agent import SearchMany
from forage.agent.episode import Episode
from forage.agent.searcher import search_each, searching
from forage.data.records import Question, asked_of, read_questions
from forage.evaluation.altered import ALTERATIONS
from forage.evaluation.measures import Floats, interval, meanings
from forage.evaluation.options import sources_of
from forage.evaluation.player import log_of
from forage.evaluation.report import (
    SystemScores,
    Table,
    comparable,
    print_table,
    score_names,
    summary,
    tables_of,
)
from forage.evaluation.setting import Setting, questions_file
from forage.files import replacing
from forage.manifest import write_manifest
from forage.metrics import FEWEST, Interval, bootstrapped, figure, needed, shown, signed
from forage.text import IDLE, say, words_of

SCHEMA = 1
ASIS, RAG, OTHERS = "single", "plain_rag", "others_found"
ANSWERS = ("answer_similarity", "token_f1")  # the first that there is judges the answers
BY_CLASS = ("mrr", *ANSWERS, "telling_words", "groundedness")
SAME = 0.02  # a difference whose interval lies within it makes none
CLASSES = {
    "one search": "a search for the question itself shows a passage that answers it",
    "two searches": "a search for a title that the first one finds, with the question or its type, does",
    "neither": "none of these does, though the store has such a passage",
    "unanswerable": "the store lacks every passage that answers it",
}
Arrays = Mapping[str, Mapping[str, Floats]]
"""Each measure's values, (questions,), by system."""


def lab(setting: Setting, systems: Sequence[SystemScores]) -> None:
    """Write lab.md and lab.json of what was played and measured, and print the verdicts."""
    out, questions, path = setting.options.output_dir, setting.questions, questions_file(setting.options)
    texts = {name: f"{chunk.title} {chunk.text}" for name, chunk in setting.chunks.items()}
    titles = {name: chunk.title for name, chunk in setting.chunks.items()}
    kinds = classes_of(questions, searching(setting.store, setting.agent), titles)
    lost = sum(not question.relevant_chunk_ids for question in read_questions(path))
    played = sources_of(setting.options.policy)
    verdicts, tables, by_class = dict[str, list[str]](), list[Table](), list[tuple[str, Sequence[str]]]()
    for policy in [policy for policy in setting.policies if policy.name in played]:
        own = comparable([system for system in systems if system.policy == policy.name])
        rows, arrays = summary(own), {system.system: system.arrays for system in own}
        logs = [log_of(policy, system, setting.options).results() for system in (ASIS, OTHERS)]
        episodes, misled = ([log[question.id].episode for question in questions] for log in logs)
        again = [second_searches(each, questions, texts) for each in (episodes, misled)]
        verdicts[policy.name] = [*verdict_on(policy.name, arrays, episodes), on_second_searches(*again)]
        tables += tables_of(rows, f"{policy.name} on {len(questions)} questions of {path}")
        shown = [name for name in BY_CLASS if name in rows[0]["metrics"]]
        by_class += class_rows(policy.name, {name: arrays[ASIS][name] for name in shown}, kinds)
    tables.append(Table("By what could have found the answer", ("questions", *shown), by_class, explained(CLASSES)))
    told = [line for lines in verdicts.values() for line in lines]
    told += [f"Questions of {path} that are not played, as nothing in the store answers them: {lost}."] * bool(lost)
    words = f"Systems: {explained(conditions())}. Columns: {meanings(score_names(rows), setting.scores)}."
    with replacing(out / "lab.md") as file:
        paragraphs = ["# Does it search?", *(html.escape(line, quote=False) for line in told)]
        file.write("\n\n".join([*paragraphs, *map(str, tables), words]) + "\n")
    classes = {question.id: kind for question, kind in zip(questions, kinds, strict=True)}
    write_manifest(out / "lab.json", {
        "schema": SCHEMA, "questions": len(questions), "unanswerable": lost, "verdicts": verdicts, "classes": classes,
    })  # fmt: skip
    print_table(tables[-1])
    for line in (*told, f"the lab's page: {out / 'lab.md'}"):
        say(line)


def conditions() -> dict[str, str]:
    """What each system of the lab is."""
    told = {name: (alter.__doc__ or "").rstrip(".") for name, alter in ALTERATIONS.items()}
    return {ASIS: "The store as it is"} | told | {
        RAG: "One search for the question itself, then the answer", "no_retrieval": "The answer without any search",
    }  # fmt: skip


def explained(names: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {words}" for name, words in names.items())


# What could have found the answer


def classes_of(questions: Sequence[Question], search: SearchMany, titles: Mapping[str, str]) -> list[str]:
    """The class of each question. `search` shows as many passages as the agent's; `titles` are those of all passages.

    Example: "What mends the disease of the big toe?" shows a passage titled Gout, and "Gout What mends the disease of
    the big toe?" shows what answers: two searches.
    """
    first = search([question.question for question in questions])
    seconds = [
        second_queries(question, [hit.title for hit in hits]) for question, hits in zip(questions, first, strict=True)
    ]
    classes = []
    for question, hits, then in zip(questions, first, search_each(search, seconds), strict=True):
        right, one = set(question.relevant_chunk_ids), {hit.chunk_id for hit in hits}
        two = {hit.chunk_id for more in then for hit in more}
        found = "one search" if right & one else "two searches" if right & two else "neither"
        classes.append("unanswerable" if right.isdisjoint(titles) else found)
    return classes


def second_queries(question: Question, titles: Sequence[str]) -> list[str]:
    """Each title with the question, with what is asked after a description, and with its type.

    Example: "Gout red toe: What mends it?", "Gout What mends it?", "Gout treatment".
    """
    parts = (question.question, asked_of(question), question.question_type)
    asked = [text for text in dict.fromkeys(parts) if text]
    return [f"{title} {text}" for title in dict.fromkeys(titles) if title.strip() for text in asked]


def class_rows(policy: str, scores: Mapping[str, Floats], kinds: Sequence[str]) -> list[tuple[str, Sequence[str]]]:
    """A row for each class that has questions, with the policy's scores on them."""
    rows: list[tuple[str, Sequence[str]]] = []
    for kind in CLASSES:
        here_Q = np.array([each == kind for each in kinds])
        means = [interval(values[here_Q]) for values in scores.values()]
        if count := int(here_Q.sum()):
            rows.append((f"{policy}: {kind}", [str(count), *(figure(found) if found else "" for found in means)]))
    return rows


# Verdicts


@dataclass(frozen=True)
class Change:
    """What becomes of a measure where something else is found than the store as it is would."""

    before: float
    after: float
    gains: Sequence[float]
    """After less before, of each question."""

    @cached_property
    def found(self) -> Interval:
        return bootstrapped(self.gains)

    @property
    def kind(self) -> str:
        """falls, rises, or none where that can't be much; open where too little is shown.

        Examples: +.001 (-.010 to .012) is none, +.001 (-.050 to .052) is open, and so is what a few questions agree on.
        """
        if self.found["low"] > -SAME and self.found["high"] < SAME and len(self.gains) >= FEWEST:
            return "none"
        if not shown(self.found, self.gains):
            return "open"
        return "rises" if self.found["mean"] > 0 else "falls"

    def __str__(self) -> str:
        """Example: 0.310, -0.280 (-0.330 to -0.230)."""
        return f"{self.after:.3f}, {signed(self.found)}"


def change(arrays: Arrays, system: str, measure: str, before: str = ASIS) -> Change:
    """Example: of two questions .5 and .7 with the store as it is, .5 and .1 otherwise: .6, .3, (0, -.6)."""
    one, other = arrays[before][measure], arrays[system][measure]
    known = ~np.isnan(other - one)
    return Change(float(one[known].mean()), float(other[known].mean()), (other - one)[known].tolist())


def verdict_on(policy: str, arrays: Arrays, episodes: Sequence[Episode]) -> list[str]:
    """Sentences on what the policy's answers depend on, on what better searches would help, and on its queries.

    That an interval holds zero does not make two means alike, so they say too what is not shown.
    """
    searched = f"it searches in {sum(bool(episode.searches) for episode in episodes)} of {len(episodes)} episodes"
    queries = change(arrays, ASIS, "mrr", before=RAG)
    ends = {"rises": "find more than", "falls": "find less than", "none": "find as much as"}
    finds = ends.get(queries.kind, "are not shown to find more or less than")
    last = f"Its queries {finds} a search for the question itself: mrr {queries.before:.3f}, theirs {queries}."
    names = [name for name in ANSWERS if name in arrays[ASIS] and not np.isnan(arrays[ASIS][name]).all()]
    if not names or not arrays[ASIS]["answered"].any():
        return [f"{policy}: {searched}; it gives no answers, or none has a reference, so they show nothing.", last]
    others, without, first, *memory = (
        change(arrays, name, names[0])
        for name in (OTHERS, "right_left_out", "right_first", "nothing_found", "no_retrieval")
    )
    # Who finds nothing may search on and never answer; who is told not to search does.
    nothing = max(memory, key=lambda each: each.after)
    figures = (
        f"{names[0]} {nothing.before:.3f} with what it found; without passages {nothing}; with another question's "
        f"{others}; without those that answer {without}"
    )
    help_it = {
        "rises": "Better searches would help its answers", "none": "Better searches would not help its answers",
        "falls": "Its answers are worse where a passage that answers comes first",
    }  # fmt: skip
    better = help_it.get(first.kind, "Whether better searches would help its answers is not shown")
    return [
        f"{policy} {conclusion(nothing, others, without)}: {figures}; {searched}.",
        f"{better}: with one that answers first {names[0]} is {first}.",
        last,
    ]


def conclusion(nothing: Change, others: Change, without: Change) -> str:
    """What the changes come to, in words."""
    if others.kind in ("none", "rises"):
        return "does not read: its answers don't depend on what was found"
    if nothing.kind in ("none", "rises"):
        misled = " and is misled by other passages" * (others.kind == "falls")
        return f"answers as well from memory: its answers gain nothing by what was found{misled}"
    if not nothing.kind == others.kind == "falls":
        open_ones = [each for each in (nothing, others) if each.kind == "open" and round(each.found["mean"], 3)]
        most = max((needed(each.gains) for each in open_ones), default=0)
        tell = f" (about {float(f'{most:.2g}'):,.0f} questions would show it)" * bool(most)
        return f"is not shown to need what was found{tell}"
    return {
        "falls": "searches and reads: its answers depend on the passages that answer",
        "open": "reads what was found, and is not shown to need the passages that answer",
    }.get(
        without.kind, "reads for the topic alone: its answers depend on what was found, not on the passages that answer"
    )


@dataclass
class SecondSearches:
    """Counts of episodes."""

    episodes: int = 0
    again: int = 0
    """They search again once something was found."""
    read: int = 0
    """Then add only words of what was found, one or more, that neither the question nor an earlier query has."""
    found: int = 0
    """Only then find a passage that answers."""


def second_searches(
    episodes: Sequence[Episode], questions: Sequence[Question], texts: Mapping[str, str]
) -> SecondSearches:
    """Example: to "What mends the disease of the big toe?", a search that finds a passage that says "gout", then one
    for "gout mends"."""
    counts = SecondSearches(len(episodes))
    for episode, question in zip(episodes, questions, strict=True):
        first = [search for search in episode.searches if search.turn == episode.searches[0].turn and search.hits]
        later = [search for search in episode.searches if search.turn > episode.searches[0].turn]
        if not (first and later):
            continue
        right = set(question.relevant_chunk_ids)
        said = {*words_of(question.question), *words_in(search.query for search in first), *IDLE}
        shown = words_in(texts.get(name, "") for search in first for name in search.hits)
        added = words_in(search.query for search in later) - said
        counts.again += 1
        counts.read += bool(added) and added <= shown
        at_once = any(right.intersection(search.hits) for search in first)
        counts.found += not at_once and any(right.intersection(search.hits) for search in later)
    return counts


def words_in(texts: Iterable[str]) -> set[str]:
    return {word for text in texts for word in words_of(text)}


def on_second_searches(counts: SecondSearches, misled: SecondSearches) -> str:
    """`misled`: where another question's passages were found."""
    if not counts.again:
        return "Once something was found, it never searches again."
    return (
        f"In {counts.again} of {counts.episodes} episodes it searches again once something was found. Of these second "
        f"searches {counts.found} find a passage that answers where the first found none, and {counts.read} add only "
        f"words of what the first found; with another question's passages {misled.read} of {misled.again} add only "
        "words of those."
    )
