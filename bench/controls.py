"""What reinforcement adds where one search is not enough: policies trained in several ways, compared with controls.

    python -m bench.controls --data runs/medquad/data --work runs/controls                 on the dev questions
    python -m bench.controls --data runs/medquad/data --work runs/controls --held-out      when every choice is made

The questions need two searches (data_prep.py --second-hop 5 6). All arms begin with the same warm start, whose teacher
knows no more than the policy: it only shows that a second search is allowed, for words picked at random. Choices are
made on the dev questions, a twentieth of the training questions, split off by document; no arm trains on them, or on
others about the same subject. --held-out measures on questions of eval.jsonl instead.

Any step can be killed and run again. Measurements are kept in --rows, a line for each look at the questions, so the
table can be printed without the policies, also on another machine. Prints Markdown.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.expansion import WHOLE, best_rm3, rm3_queries, whole_documents
from forage.agent.episode import Episode, episode_files, read_episodes
from forage.agent.options import AgentSettings
from forage.agent.rewards import get_telling_words
from forage.agent.searcher import Searcher
from forage.arguments import run_script
from forage.data.records import Question, read_answerable, read_questions
from forage.data.relevance import split_by_document
from forage.errors import UserError
from forage.evaluation.outcomes import OutcomeLog
from forage.evaluation.setting import choose
from forage.extras.questions.behind_names import apart
from forage.files import in_turn, make_folder, replacing_folder, write_jsonl
from forage.metrics import bootstrapped, clear, reciprocal_rank, span
from forage.runs.stats import NO_PHASES, read_stats
from forage.sft.teacher import random_query, title_query
from forage.store.fusion import Hit
from forage.store.opening import open_store
from forage.store.options import Mode
from forage.text import cut_to_words, one_line, titled, words_of

DEV_SHARE, DEV_SEED = 0.05, 20
K, WORDS_SHOWN = 3, 20  # passages of a search, and about how many words of each
PLAYED, SEEN = 200, 600  # questions that are measured, and held-out ones that choices were made on before
TRAINED = 6  # words of a description in training
RAW, TITLE = "the question", "the first title found"
SCRIPT = "the script: the first title found, and what is asked"
WARM, IMITATION, COPY, GRPO = "warm start", "imitation of the same", "imitation of the script", "GRPO"
BEST, RIVALS, BY_VECTORS = "best@10", (TITLE, WHOLE), ("dense search", "hybrid search")
LEARNT = {"entropy": "entropy, nats a token", "likelihood_gain": "log-likelihood of what was rewarded, moved"}
MEASURES = {
    "best@10": "best search's MRR@10", "found": "answer shown", "searches": "searches", "named": "names a title",
    "words": "answer's words",
}  # fmt: skip
AGENT = (
    "--mode", "sparse", "--k", "3", "--passage-tokens", "28", "--max-turn-tokens", "64",
    "--max-turns", "3", "--force-search", "--task", "Answer the medical question from a library",
)  # fmt: skip
TEACHER = ("--answer-tokens", "20", "--batch-size", "4")
SHOWN = (*TEACHER, "--num-demonstrations", "4000", "--eval-share", "0.02", "--keep", "last")


@dataclass(frozen=True)
class Arm:
    """A way to train: which arm's policy it starts from, and the script with its options."""

    start: str
    script: str
    flags: tuple[str, ...]
    seeded: bool = True
    """Trained once for each seed; otherwise once for all."""
    system: str = "single"
    """How evaluate.py plays it; without a script, it is the start that is played so."""

    @property
    def trains_by_reward(self) -> bool:
        return self.script.startswith("bench.")


# What follows the warm start takes about as long whichever it is.
ARMS: Mapping[str, Arm] = {
    WARM: Arm("", "sft_train", (
        *AGENT, *TEACHER, "--blind", "words", "--num-demonstrations", "700", "--eval-share", "0.03",
        "--max-steps", "160", "--eval-every", "160"), seeded=False),
    "plain RAG by the warm start": Arm(WARM, "", (), seeded=False, system="plain_rag"),
    "HyDE by the warm start": Arm(WARM, "", (), seeded=False, system="hyde"),
    IMITATION: Arm(WARM, "sft_train", (*SHOWN, "--blind", "words", "--max-steps", "300", "--eval-every", "100")),
    COPY: Arm(WARM, "sft_train", (*SHOWN, "--blind", "title", "--max-steps", "300", "--eval-every", "100")),
    GRPO: Arm(WARM, "bench.second_search", (
        "--engine", "local", "--concurrency", "4", "--temperature", "1", "--eval-every", "0", "--batch-size", "4",
        "--num-rollouts", "16", "--learn-from", "8", "--clip-high", "0.28", "--credit", "words", "--word-cost", "0.002",
        "--learning-rate", "3e-4", "--max-steps", "30", "--weights", "3", "1", "1", "1", "--advantage", "reinforce++")),
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """The comparison."""

    data: Path = Path("runs/medquad/data")
    """Folder that data_prep.py wrote with --embedder none and --second-hop."""
    work: Path = Path("runs/controls")
    """Folder for the split, policies, runs and evaluations."""
    rows: Path = Path("bench/controls.jsonl")
    """File of what was measured."""
    vectors: Path | None = None
    """Folder that data_prep.py wrote of the same with an embedder: dense and hybrid search are measured too."""
    only: tuple[str, ...] = ()
    """Train and measure only these arms; left out: all."""
    seeds: tuple[int, ...] = (1, 2, 3)
    """Seeds of what is trained."""
    held_out: bool = False
    """Measure on held-out questions instead of dev ones."""
    words: int = TRAINED
    """Words of the held-out questions' descriptions."""
    curves: Path | None = None
    """Picture to draw of GRPO's runs, step by step; nothing is measured."""
    measured: bool = False
    """Show what --rows has and measure nothing, so that neither data nor policies are needed."""
    read: int = 0
    """Print so many of the greedy episodes of GRPO's first seed, drawn at random; nothing is measured."""

    def check(self) -> None:
        unknown = [name for name in self.only if name not in ARMS]
        if unknown:
            raise UserError(f"--only {', '.join(unknown)}: choose among {', '.join(map(repr, ARMS))}")
        if not self.seeds:
            raise UserError("--seeds is empty; give one or more numbers")
        if self.words != TRAINED and not self.held_out:
            raise UserError(f"--words {self.words}: the dev questions are described by {TRAINED}; add --held-out")

    @property
    def split(self) -> str:
        return f"{'held-out' if self.held_out else 'dev'} {self.words}"

    @property
    def train_data(self) -> Path:
        """Training questions without the dev ones, which are its eval.jsonl."""
        return self.work / "data"

    @property
    def played_data(self) -> Path:
        """The folder whose eval.jsonl is measured."""
        return self.work / self.split.replace(" ", "-")


@dataclass(frozen=True)
class Row:
    """What was measured of one way to search."""

    split: str
    date: str
    arm: str
    seed: int
    temperature: float
    questions: str
    """Digest of the questions' ids."""
    measures: dict[str, list[float]]
    """By question."""
    well_formed: float = 1.0
    tokens: int = 0
    """Tokens of the policy that training learnt from, those of the arms it starts from included."""
    minutes: float = 0.0
    """Minutes of training, those included too."""


def main(options: Options) -> None:
    options.check()
    if options.measured:
        return show(options, known_rows(options))
    prepare(options)
    if options.curves:
        return draw_curves(options, options.curves)
    questions = read_answerable(options.played_data / "eval.jsonl")
    if options.read:
        return print(episodes_to_read(options, choose(questions, options.read, DEV_SEED + 1)))
    untaught = dict.fromkeys(CONTROLS, untrained) | {WHOLE: by_whole_documents}
    untaught |= dict.fromkeys(BY_VECTORS if options.vectors else (), by_vectors)
    rows = [kept(options, questions, name, 0, 0.0, partial(play, options, name)) for name, play in untaught.items()]
    for name in options.only or ARMS:
        for seed in options.seeds if ARMS[name].seeded else options.seeds[:1]:
            for temperature in (0.0, 1.0):
                measure = partial(played, options, name, seed, temperature)
                rows.append(kept(options, questions, name, seed, temperature, measure))
    return show(options, rows)


def show(options: Options, rows: Sequence[Row]) -> None:
    asked = len(rows[0].measures[BEST]) if rows else 0
    print(table(rows, asked, options.split))


def known_rows(options: Options) -> list[Row]:
    """What --rows has of the questions that are measured, in the order of the table."""
    lines = options.rows.read_text().splitlines() if options.rows.exists() else []
    rows = [Row(**json.loads(line)) for line in lines]
    order = [*CONTROLS, WHOLE, *BY_VECTORS, *ARMS]
    return sorted(
        (row for row in rows if row.split == options.split and row.arm in order),
        key=lambda row: (order.index(row.arm), row.seed, row.temperature),
    )


def kept(
    options: Options, questions: Sequence[Question], name: str, seed: int, temperature: float,
    measure: Callable[[Sequence[Question]], dict[str, Any]],
) -> Row:  # fmt: skip
    """The row in --rows, or a new one that is put there."""
    digest = hashlib.sha256(" ".join(question.id for question in questions).encode()).hexdigest()[:16]
    key = (name, seed, temperature)
    found = [row for row in known_rows(options) if (row.arm, row.seed, row.temperature) == key]
    if not found:
        new = Row(options.split, time.strftime("%Y-%m-%d"), name, seed, temperature, digest, **measure(questions))
        with options.rows.open("a") as file:
            file.write(json.dumps(asdict(new), separators=(",", ":")) + "\n")
        return new
    if found[0].questions != digest:
        raise UserError(f"{options.rows}: {name} was measured on other questions; give another file as --rows")
    return found[0]


def prepare(options: Options) -> None:
    """Split off the dev questions, and make the policy that all arms come from; one of several processes does."""
    make_folder(options.work)
    with in_turn(options.work / ".prepare.lock"):
        if not options.train_data.exists():
            source = read_answerable(options.data / f"second_hop_{TRAINED}" / "train.jsonl")
            train, dev = split_by_document(source, DEV_SHARE, DEV_SEED)
            write_data(options, options.train_data, apart(train, dev)[0], dev)
        if not options.played_data.exists():
            of = options.data / f"second_hop_{options.words}" if options.held_out else options.train_data
            every = read_answerable(of / "eval.jsonl")
            unseen = choose(every, PLAYED, DEV_SEED, SEEN if options.held_out else 0)
            write_data(options, options.played_data, [], unseen)
        policy = options.work / "policy"
        if not policy.exists():
            run("create_lora_model", "--no-quantize", "--output-dir", policy)


def write_data(options: Options, path: Path, train: Sequence[Question], played: Sequence[Question]) -> None:
    """Questions to train on and to play, in a folder with the same store."""
    with replacing_folder(path) as folder:
        write_jsonl(folder / "train.jsonl", train)
        write_jsonl(folder / "eval.jsonl", played)
        (folder / "store").symlink_to((options.data / "store").resolve())


# What is measured

store_of = cache(open_store)


def measured(
    options: Options, questions: Sequence[Question], queries: Sequence[Sequence[str]], mode: Mode = "sparse"
) -> dict[str, list[float]]:
    """Each measure of the searches by question."""
    hits_of = found_by(options, [query for several in queries for query in several], mode)
    return measures_by(questions, queries, [[hits_of[query] for query in several] for several in queries])


def measures_by(
    questions: Sequence[Question], queries: Sequence[Sequence[str]], hits: Sequence[Sequence[Sequence[Hit]]]
) -> dict[str, list[float]]:
    """Each measure by question, of what each of its searches found; the first K of each were shown."""
    measures = defaultdict[str, list[float]](list)
    for question, several, found in zip(questions, queries, hits, strict=True):
        ids = [[hit.chunk_id for hit in hits] for hits in found]
        ranks = [reciprocal_rank(each, question.relevant_chunk_ids) for each in ids]
        shown = {chunk for each in ids for chunk in each[:K]}
        measures["best@10"].append(round(max(ranks, default=0.0), 3))
        measures["found"].append(float(not shown.isdisjoint(question.relevant_chunk_ids)))
        measures["searches"].append(len(several))
        measures["named"].append(float(names_a_title(several, [hits[:K] for hits in found])))
    return dict(measures)


def names_a_title(queries: Sequence[str], found: Sequence[Sequence[Hit]]) -> bool:
    """Whether a later query says all words of a title that an earlier one found, which the first query didn't say."""
    return any(
        set(words_of(hit.title)) <= set(words_of(queries[later]))
        and not set(words_of(hit.title)) <= set(words_of(queries[0]))
        for later in range(1, len(queries))
        for hits in found[:later]
        for hit in hits
    )


def found_by(options: Options, texts: Sequence[str], mode: Mode = "sparse") -> dict[str, list[Hit]]:
    """The 10 best chunks for each text."""
    distinct = list(dict.fromkeys(texts))
    return dict(zip(distinct, store_of(options.data / "store").search(distinct, 10, mode), strict=True))


# Without training


def untrained(options: Options, name: str, questions: Sequence[Question]) -> dict[str, Any]:
    return {"measures": measured(options, questions, CONTROLS[name](options, questions))}


def by_vectors(options: Options, name: str, questions: Sequence[Question]) -> dict[str, Any]:
    """Dense or hybrid search for the questions, in the same documents as they are cut for the embedder."""
    assert options.vectors
    other = replace(options, data=options.vectors)
    answered_by = {question.id: question.relevant_chunk_ids for question in read_questions(other.data / "eval.jsonl")}
    answered_by |= {question.id: question.relevant_chunk_ids for question in read_questions(other.data / "train.jsonl")}
    there = [replace(q, relevant_chunk_ids=answered_by[q.id.removesuffix("-behind")]) for q in questions]
    mode: Mode = "dense" if name.startswith("dense") else "hybrid"
    return {"measures": measured(other, there, themselves(other, there), mode)}


def themselves(options: Options, questions: Sequence[Question]) -> list[list[str]]:
    return [[question.question] for question in questions]


def by_rm3(options: Options, questions: Sequence[Question]) -> list[list[str]]:
    """Its settings are chosen on the dev questions."""
    store = store_of(options.data / "store")
    dev = read_answerable(options.train_data / "eval.jsonl")

    def search(texts: Sequence[str]) -> list[list[str]]:
        hits_of = found_by(options, texts)
        return [[hit.chunk_id for hit in hits_of[text]] for text in texts]

    return [[text] for text in rm3_queries(store, questions, best_rm3(store, dev, search))]


def by_title(options: Options, questions: Sequence[Question], asked: bool = True) -> list[list[str]]:
    first = found_by(options, [question.question for question in questions])

    def second(question: Question) -> str:
        hits = first[question.question]
        return title_query(question, hits) if asked or not hits else hits[0].title

    return [[question.question, second(question)] for question in questions]


def at_random(options: Options, questions: Sequence[Question]) -> list[list[str]]:
    """What the warm start is shown, in every episode."""
    first = found_by(options, [question.question for question in questions])
    draw = random.Random(DEV_SEED)

    def second(question: Question) -> str:
        hits = first[question.question][:K]
        shown = "\n".join(cut_to_words(titled(hit.title, hit.text), WORDS_SHOWN) for hit in hits)
        return random_query(question, shown, draw)

    return [[question.question, second(question)] for question in questions]


def by_whole_documents(options: Options, name: str, questions: Sequence[Question]) -> dict[str, Any]:
    store, queries = store_of(options.data / "store"), themselves(options, questions)
    found = zip(whole_documents(store, [query for [query] in queries]), strict=True)
    return {"measures": measures_by(questions, queries, list(found))}


CONTROLS: Mapping[str, Callable[[Options, Sequence[Question]], list[list[str]]]] = {
    RAW: themselves,
    "RM3": by_rm3,
    "a second search at random": at_random,
    TITLE: partial(by_title, asked=False),
    SCRIPT: by_title,
}


# With training


def folder_of(options: Options, name: str, seed: int) -> Path:
    """Where an arm's policy is."""
    return options.work / (f"{slug(name)}-{seed}" if ARMS[name].seeded else slug(name))


def train(options: Options, name: str, seed: int) -> Path:
    """Train the arm, after those that it starts from; nothing is done twice."""
    arm, folder = ARMS[name], folder_of(options, name, seed)
    start = train(options, arm.start, seed) if arm.start else options.work / "policy"
    if not arm.script:
        return start
    if not (folder / "trained").exists():
        output = "--run-dir" if arm.trains_by_reward else "--output-dir"
        run(arm.script, "--data", options.train_data, "--policy", start, output, folder, "--seed", seed, *arm.flags)
        (folder / "trained").touch()
    return folder


def cost(options: Options, name: str, seed: int) -> tuple[int, float]:
    """(tokens that the policy learnt from, minutes) of an arm and those that it starts from."""
    arm, folder = ARMS[name], folder_of(options, name, seed)
    before = cost(options, arm.start, seed) if arm.start else (0, 0.0)
    if not arm.script:
        return before
    if arm.trains_by_reward:
        stats = read_stats(folder)
        tokens = sum(step.training["tokens"] for step in stats)
        seconds = sum(took for step in stats for phase, took in step.seconds.items() if phase not in NO_PHASES)
    else:
        last = json.loads((folder / "stats.jsonl").read_text().splitlines()[-1])
        shown = [episode.sampled for episode in read_episodes(folder / "demonstrations.jsonl")]
        size = int(arm.flags[arm.flags.index("--batch-size") + 1])
        tokens, seconds = last["step"] * size * sum(shown) / len(shown), last["seconds"]
    return before[0] + round(tokens), before[1] + seconds / 60


def played(options: Options, name: str, seed: int, temperature: float, questions: Sequence[Question]) -> dict[str, Any]:
    """The arm's episodes of all questions, greedily or sampled, once it is trained."""
    policy = train(options, name, seed)
    run(
        "evaluate", "--data", options.played_data, "--policy", f"{slug(name)}={policy}", "--systems", ARMS[name].system,
        "--eval-questions", 0, "--temperature", temperature, "--seed", seed, "--engine", "local",
        "--concurrency", 64, "--output-dir", folder_of_play(options, name, seed, temperature),
    )  # fmt: skip
    episodes = episodes_of(options, name, seed, temperature, questions)
    tokens, minutes = cost(options, name, seed)
    return {
        "measures": measures_of(options, episodes, questions), "tokens": tokens, "minutes": minutes,
        "well_formed": sum(episode.well_formed for episode in episodes) / len(episodes),
    }  # fmt: skip


def folder_of_play(options: Options, name: str, seed: int, temperature: float) -> Path:
    return options.work / "eval" / f"{slug(name)}-{seed}-{options.split.replace(' ', '-')}-T{temperature:g}"


def episodes_of(
    options: Options, name: str, seed: int, temperature: float, questions: Sequence[Question]
) -> list[Episode]:
    """What was played."""
    folder = folder_of_play(options, name, seed, temperature)
    results = OutcomeLog(folder, f"{slug(name)}/{ARMS[name].system}").results()
    return [results[question.id].episode for question in questions]


def measures_of(options: Options, episodes: Sequence[Episode], questions: Sequence[Question]) -> dict[str, list[float]]:
    searches = [[search.query for search in episode.read_searches] for episode in episodes]
    searcher = Searcher(lambda: store_of(options.data / "store"), AgentSettings(mode="sparse"))
    answers = get_telling_words(episodes, questions, searcher)
    return measured(options, questions, searches) | {"words": [round(share or 0.0, 3) for share in answers]}


def run(script: str, *arguments: object) -> None:
    """A script of this repository, in a process of its own."""
    module = [f"{script}.py"] if "." not in script else ["-m", script]
    command = [sys.executable, *module, *map(str, arguments)]
    print("$", " ".join(command[1:]), file=sys.stderr, flush=True)
    if subprocess.run(command, stdout=2, check=False).returncode:
        raise UserError(f"{script} failed, as it says above; what was done before is kept")


def slug(name: str) -> str:
    """Example: "GRPO, credit by words" gives grpo_credit_by_words."""
    return "_".join(name.lower().replace(",", "").split())


# The table


def table(rows: Sequence[Row], questions: int, split: str) -> str:
    """Markdown: each way's measures, and its paired differences in the best search's MRR@10; the last column is its
    share of the script's."""
    untrained = {row.arm: row for row in rows if not row.seed}
    best_by_script = float(np.mean(untrained[SCRIPT].measures[BEST])) if SCRIPT in untrained else 0.0
    rivals = [f"over {name}" for name in (WARM, IMITATION, *RIVALS)]
    head = ["", "seed", "T", *MEASURES.values(), *rivals, "of the script's", "format", "tokens", "minutes"]
    lines = [f"{questions} {split} questions:", "", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows:
        same = {other.arm: other for other in rows if (other.seed, other.temperature) == (row.seed, row.temperature)}
        warm = next((other for other in rows if (other.arm, other.temperature) == (WARM, row.temperature)), None)
        others = [warm, same.get(IMITATION), *map(untrained.get, RIVALS)]
        cells = [
            row.arm, f"{row.seed or ''}", f"{row.temperature:g}" if row.seed else "",
            *(f"{np.mean(row.measures[name]):.3f}" if name in row.measures else "" for name in MEASURES),
            *(over(row, other) if row.seed and other and other.arm != row.arm else "" for other in others),
            f"{np.mean(row.measures[BEST]) / best_by_script:.0%}" if best_by_script else "",
            *((f"{row.well_formed:.3f}", f"{row.tokens:,}", f"{row.minutes:.0f}") if row.seed else ("", "", "")),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def over(row: Row, other: Row, measure: str = BEST) -> str:
    """The paired difference with its interval; bold where that excludes zero."""
    first, second = (np.array(each.measures[measure]) for each in (row, other))
    found = bootstrapped((first - second).tolist())
    mean = f"**{found['mean']:+.3f}**" if clear(found) else f"{found['mean']:+.3f}"
    return f"{mean} ({span(found)})"


def episodes_to_read(options: Options, questions: Sequence[Question]) -> str:
    """Markdown: what was asked and found, what was searched for then, and the answer, beside what was wanted."""
    lines = ["| asked | found first | then searched for | place | answered | wanted |", "|---|---|---|---|---|---|"]
    for question, episode in zip(questions, episodes_of(options, GRPO, options.seeds[0], 0.0, questions), strict=True):
        queries = [search.query for search in episode.searches]
        found = found_by(options, queries)
        first = dict.fromkeys(hit.title for hit in found[queries[0]][:K]) if queries else []
        places = [hit.rank for query in queries for hit in found[query] if hit.chunk_id in question.relevant_chunk_ids]
        answers = (cut_to_words(text, WORDS_SHOWN) for text in (episode.answer, question.answer))
        cells = [question.question, "; ".join(first), "; ".join(queries[1:]), f"{min(places, default='')}", *answers]
        lines.append(f"| {' | '.join(one_line(cell).replace('|', ' ') for cell in cells)} |")
    return "\n".join(lines)


def draw_curves(options: Options, path: Path) -> None:
    """Step by step, what GRPO's sampled episodes did, a line for each seed."""
    from matplotlib.figure import Figure

    by_id = {question.id: question for question in read_answerable(options.train_data / "train.jsonl")}
    figure = Figure(figsize=(10, 5.5), layout="constrained")
    panels = figure.subplots(2, 3).flat
    curves = {name: MEASURES[name] for name in ("searches", "named", BEST, "words")} | LEARNT
    axes = dict(zip(curves, panels, strict=True))
    for seed in options.seeds:
        folder = folder_of(options, GRPO, seed)
        if not folder.exists():
            continue
        points = defaultdict[str, list[float]](list)
        for step in read_stats(folder):
            episodes = [
                one for file in episode_files(folder / "episodes" / f"{step.step:06d}") for one in read_episodes(file)
            ]
            measures = measures_of(options, episodes, [by_id[episode.question_id] for episode in episodes])
            for name in axes:
                points[name].append(step.training[name] if name in LEARNT else float(np.mean(measures[name])))
        for name, panel in axes.items():
            panel.plot(points[name], label=f"seed {seed}")
    for name, panel in axes.items():
        panel.set_title(curves[name], fontsize=10)
        panel.set_xlabel("step")
    axes["searches"].legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    run_script(main, __doc__)
