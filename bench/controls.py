"""What reinforcement adds where an answer needs two documents: policies trained in several ways, beside controls.

    python -m bench.controls --data runs/medquad/data --work runs/controls                      on the dev questions
    python -m bench.controls --data runs/medquad/data --work runs/controls --split held-out     once choices are made
    python -m bench.controls --data runs/medquad/data --work runs/controls --split fresh        last of all

The questions need two documents (data_prep.py --second-hop 6 --eval-share 0.3). Each arm begins with the warm start of
its seed, whose teacher knows no more than the policy: it shows that one searches again, for any phrase of the first
passage. The splits share no question: choices are made on dev ones, and fresh ones are seen last.

Any step can be killed and run again. Measurements are kept in --rows, a line for each look at the questions, so the
table can be printed without the policies, also on another machine. Prints Markdown.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import accumulate, product
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bench.expansion import WHOLE, best_rm3, rm3_queries
from forage.agent.episode import Episode, episode_files, read_episodes, write_episodes
from forage.agent.options import AgentSettings, SearchOptions, read_agent
from forage.agent.protocol import Protocol, write_call
from forage.agent.searcher import searching
from forage.arguments import parse, run_script
from forage.data.records import Question, asked_of, read_answerable
from forage.errors import UserError
from forage.evaluation.outcomes import OutcomeLog
from forage.evaluation.setting import choose
from forage.extras.questions.headroom import whole_documents
from forage.extras.questions.two_documents import AROUND, Mention, Passages, says
from forage.files import in_turn, make_folder, replacing_folder, write_jsonl
from forage.metrics import bootstrapped, by_document, grouped, reciprocal_rank, shown, span, verdict
from forage.policy.manifest import read_policy_manifest
from forage.policy.policy import load_tokenizer
from forage.runs.stats import NO_PHASES, read_stats
from forage.sft.teacher import as_shown, name_queries, recited
from forage.store.fusion import Hit
from forage.store.opening import open_store
from forage.text import IDLE, one_line, words_of

DEV_SEED = 20
K, TOKENS, SHOWN = 3, 40, 300  # passages of a search, and tokens of each; characters of a cell
SMOOTH = 10  # steps that a point of a curve is the mean of
SPLITS = {"held-out": 300, "dev": 100, "fresh": 1000}  # questions of each, drawn one after another
WORDS = 6  # of a description
RAW, TITLE, NAME = "the question", "the first title found", "the name that is to be read"
SEE, PHRASE = 'what follows "see" in what is shown first', "a phrase at random of what is shown first"
READ, READ_ALL = "the rarest two words of what is shown first", "the rarest two words of the first passage"
LISTED = "the name nearest to the description, by a list of all titles"
WARM, IMITATION, RULE, TOLD = "warm start", "imitation of the same", "imitation of the rule", "imitation of the name"
EXPERT, GRPO, LONG, BY_WORDS = "expert iteration", "GRPO", "GRPO, 150 steps", "GRPO, credit by words"
LONG_EXPERT = "expert iteration, 150 steps"
READS, EXPERT_READS = "GRPO after the rule", "expert iteration after the rule"
ALL = -1  # seeds, together
BEST, DOCUMENT, RIVALS = "best@10", "document", (SEE, PHRASE, READ, LISTED, NAME)
LEARNT = {"entropy": "entropy, nats a token", "likelihood_gain": "log-likelihood of what was rewarded, moved"}
MEASURES = {"best@10": "best search's MRR@10", "found": "answer shown", "named": "says the name"}
AGENT = (
    "--mode", "sparse", "--k", str(K), "--passage-tokens", str(TOKENS), "--max-turns", "2", "--max-turn-tokens", "32",
    "--search-first", "--force-search", "--task", "Answer the medical question from a library",
)  # fmt: skip
SHOWING = ("--eval-share", "0.02", "--eval-every", "400", "--keep", "last", "--batch-size", "4")
TRAINED = (
    "--engine", "local", "--eval-every", "0", "--clip-high", "0.28", "--learning-rate", "3e-4",
    "--max-steps", "30", "--weights", "best_search=3", "found=1", "format=1",
)  # fmt: skip
FEW, MANY = ("--batch-size", "4", "--num-rollouts", "16"), ("--batch-size", "8", "--num-rollouts", "8")


@dataclass(frozen=True)
class Arm:
    """A way to train: which arm's policy it starts from, and the script with its options."""

    start: str
    script: str
    flags: tuple[str, ...]

    @property
    def trains_by_reward(self) -> bool:
        return self.script == "grpo_train"


# What follows the warm start takes about as long whichever it is, but for the two of 150 steps.
ARMS: Mapping[str, Arm] = {
    WARM: Arm("", "sft_train", (
        *AGENT, *SHOWING, "--blind", "names", "--phrases", "6", "--num-demonstrations", "150", "--max-steps", "36")),
    IMITATION: Arm(WARM, "sft_train", (
        *SHOWING, "--blind", "names", "--phrases", "6", "--num-demonstrations", "300", "--max-steps", "60")),
    RULE: Arm(WARM, "sft_train", (*SHOWING, "--num-demonstrations", "0", "--max-steps", "64")),
    TOLD: Arm(WARM, "sft_train", (*SHOWING, "--num-demonstrations", "0", "--max-steps", "64")),
    EXPERT: Arm(WARM, "grpo_train", (*TRAINED, *FEW, "--advantage", "best")),
    GRPO: Arm(WARM, "grpo_train", (*TRAINED, *FEW, "--advantage", "reinforce++")),
    LONG: Arm(WARM, "grpo_train", (*TRAINED, *FEW, "--advantage", "reinforce++", "--max-steps", "150")),
    LONG_EXPERT: Arm(WARM, "grpo_train", (
        *TRAINED, *FEW, "--advantage", "best", "--max-steps", "150", "--learning-rate", "1e-4")),
    EXPERT_READS: Arm(RULE, "grpo_train", (*TRAINED, *MANY, "--advantage", "best")),
    READS: Arm(RULE, "grpo_train", (*TRAINED, *MANY, "--advantage", "reinforce++")),
    BY_WORDS: Arm(WARM, "grpo_train", (*TRAINED, *FEW, "--advantage", "reinforce++", "--credit", "words")),
}  # fmt: skip
RECITED = {RULE: READ, TOLD: NAME}  # what the demonstrations search for


@dataclass(frozen=True)
class Options:
    """The comparison."""

    data: Path = Path("runs/medquad/data")
    """Folder that data_prep.py wrote with --embedder none and --second-hop."""
    work: Path = Path("runs/controls")
    """Folder for the split, policies, runs and evaluations."""
    rows: Path = Path("bench/controls.jsonl")
    """File of what was measured."""
    only: tuple[str, ...] = ()
    """Train and measure only these arms; left out: all."""
    seeds: tuple[int, ...] = (1, 2, 3)
    """Seeds of what is trained: each has a warm start of its own."""
    split: Literal["dev", "held-out", "fresh"] = "dev"
    """Questions to measure on."""
    curves: Path | None = None
    """Picture to draw of the runs of --only, or GRPO's, step by step; nothing is measured."""
    measured: bool = False
    """Show what --rows has and measure nothing, so that neither data nor policies are needed."""
    rules: Path | None = None
    """Policy folder: measure what needs no training, on all of --data's held-out questions, as this policy searches.
    Nothing is trained, and the rows are not kept."""
    runs: tuple[Path, ...] = ()
    """With --rules: runs whose policies are played too."""
    over: tuple[Path, ...] = ()
    """As many others, that each of --runs is compared with, and all with all."""
    read: int = 0
    """Print so many of their first seed's greedy episodes, drawn at random; nothing is measured."""

    def check(self) -> None:
        unknown = [name for name in self.only if name not in ARMS]
        if unknown:
            raise UserError(f"--only {', '.join(unknown)}: choose among {', '.join(map(repr, ARMS))}")
        if not self.seeds:
            raise UserError("--seeds is empty; give one or more numbers")

    @property
    def settings(self) -> AgentSettings:
        """How the policies search."""
        return read_agent(self.rules) if self.rules else parse(SearchOptions, AGENT).settle()

    @property
    def protocol(self) -> Protocol:
        base = read_policy_manifest(self.rules or self.work / "policy")
        return Protocol.playing(load_tokenizer(base), self.settings)

    @property
    def shown(self) -> str:
        """The arm that --curves and --read show."""
        return (*self.only, GRPO)[0]

    @property
    def train_data(self) -> Path:
        """The training questions; its eval.jsonl has the dev ones."""
        return self.work / "dev"

    @property
    def played_data(self) -> Path:
        """The folder whose eval.jsonl is measured."""
        return self.work / self.split


@dataclass(frozen=True)
class Row:
    """What was measured of one way to search."""

    split: str
    date: str
    arm: str
    seed: int
    questions: str
    """Digest of the questions' ids."""
    measures: dict[str, list[float]]
    """By question, and which document answers it."""
    well_formed: float = 1.0
    tokens: int = 0
    """Tokens of the policy that training learnt from, those of the arms it starts from included."""
    minutes: float = 0.0
    """Minutes of training, those included too."""


def main(options: Options) -> None:
    options.check()
    if options.measured:
        return show(options, known_rows(options))
    untaught = dict.fromkeys(CONTROLS, untrained) | {WHOLE: by_whole_documents}
    if options.rules:
        questions = read_answerable(options.data / "eval.jsonl")
        rows = [Row("rules", "", name, 0, "", **play(options, name, questions)) for name, play in untaught.items()]
        for number, folder in enumerate([*options.runs, *options.over], 1):
            episodes = play_policy(options.data, folder, str(number), options.work / f"rules-{number}")
            measures = measures_of(options, [episodes[question.id] for question in questions], questions)
            rows.append(Row("rules", "", str(folder), number, "", measures))
        show(options, rows)
        documents = [question.document for question in questions]
        runs, over = [*map(str, options.runs)], [*map(str, options.over)]
        pairs = [([run], [rule]) for run, rule in product(runs, (SEE, PHRASE))]
        if over:
            pairs += [*(([run], [other]) for run, other in zip(runs, over, strict=True)), (runs, over)]
        for (ours, theirs), key in product(pairs, (BEST, "found")):
            first, second = ([row.measures[key] for row in rows if row.arm in arms] for arms in (ours, theirs))
            gains = np.subtract(np.mean(first, axis=0), np.mean(second, axis=0)).tolist()
            print(verdict(", ".join(ours), ", ".join(theirs), MEASURES[key], gains, documents))
        return None
    prepare(options)
    if options.curves:
        return draw_curves(options, options.curves)
    questions = read_answerable(options.played_data / "eval.jsonl")
    if options.read:
        return print(episodes_to_read(options, choose(questions, options.read, DEV_SEED + 1)))
    rows = [kept(options, questions, name, 0, partial(play, options, name)) for name, play in untaught.items()]
    for name in options.only or ARMS:
        for seed in options.seeds:
            rows.append(kept(options, questions, name, seed, partial(played, options, name, seed)))
    return show(options, rows)


def show(options: Options, rows: Sequence[Row]) -> None:
    asked = len(rows[0].measures[BEST]) if rows else 0
    print(table(rows, asked, options.split))


def known_rows(options: Options) -> list[Row]:
    """What --rows has of the questions that are measured, in the order of the table."""
    lines = options.rows.read_text().splitlines() if options.rows.exists() else []
    rows = [Row(**json.loads(line)) for line in lines]
    order = [*CONTROLS, WHOLE, *ARMS]
    return sorted(
        (row for row in rows if row.split == options.split and row.arm in order),
        key=lambda row: (order.index(row.arm), row.seed),
    )


def kept(
    options: Options, questions: Sequence[Question], name: str, seed: int,
    measure: Callable[[Sequence[Question]], dict[str, Any]],
) -> Row:  # fmt: skip
    """The row in --rows, or a new one that is put there."""
    digest = hashlib.sha256(" ".join(question.id for question in questions).encode()).hexdigest()[:16]
    found = [row for row in known_rows(options) if (row.arm, row.seed) == (name, seed)]
    if not found:
        new = Row(options.split, time.strftime("%Y-%m-%d"), name, seed, digest, **measure(questions))
        with options.rows.open("a") as file:
            file.write(json.dumps(asdict(new), separators=(",", ":")) + "\n")
        return new
    if found[0].questions != digest:
        raise UserError(f"{options.rows}: {name} was measured on other questions; give another file as --rows")
    return found[0]


def prepare(options: Options) -> None:
    """Draw the questions that are measured and those that choices are made on, and make the policy that is warmed."""
    make_folder(options.work)
    with in_turn(options.work / ".prepare.lock"):
        source = options.data / f"second_hop_{WORDS}"
        for (split, count), skipped in zip(SPLITS.items(), accumulate(SPLITS.values(), initial=0), strict=False):
            if not (options.work / split).exists():
                with replacing_folder(options.work / split) as folder:
                    write_jsonl(folder / "train.jsonl", read_answerable(source / "train.jsonl"))
                    played = choose(read_answerable(source / "eval.jsonl"), count, DEV_SEED, skipped)
                    write_jsonl(folder / "eval.jsonl", played)
                    (folder / "store").symlink_to((options.data / "store").resolve())
        policy = options.work / "policy"
        if not policy.exists():
            run("create_lora_model", "--no-quantize", "--output-dir", policy)


# What is measured

store_of = cache(open_store)


def measured(
    options: Options, questions: Sequence[Question], queries: Sequence[Sequence[str]]
) -> dict[str, list[float]]:
    """Each measure of the searches by question."""
    hits_of = found_by(options, [query for several in queries for query in several])
    return measures_by(questions, queries, [[hits_of[query] for query in several] for several in queries])


def measures_by(
    questions: Sequence[Question], queries: Sequence[Sequence[str]], hits: Sequence[Sequence[Sequence[Hit]]]
) -> dict[str, list[float]]:
    """Each measure by question, of what each of its searches found; the first K of each were shown."""
    measures = defaultdict[str, list[float]](list)
    number = {document: float(n) for n, document in enumerate(dict.fromkeys(q.document for q in questions))}
    for question, several, found in zip(questions, queries, hits, strict=True):
        measures[DOCUMENT].append(number[question.document])
        ids = [[hit.chunk_id for hit in hits] for hits in found]
        ranks = [reciprocal_rank(each, question.relevant_chunk_ids) for each in ids]
        shown = {chunk for each in ids for chunk in each[:K]}
        measures["best@10"].append(round(max(ranks, default=0.0), 3))
        measures["found"].append(float(not shown.isdisjoint(question.relevant_chunk_ids)))
        measures["named"].append(float(any(says(words_of(query), words_of(question.focus)) for query in several)))
    return dict(measures)


def found_by(options: Options, texts: Sequence[str]) -> dict[str, list[Hit]]:
    """The 10 best chunks for each text."""
    settings = options.settings
    found = store_of(options.data / "store").search(texts, 10, settings.mode, fusion=settings.fusion)
    return dict(zip(texts, found, strict=True))


# Without training


def untrained(options: Options, name: str, questions: Sequence[Question]) -> dict[str, Any]:
    return {"measures": measured(options, questions, CONTROLS[name](options, questions))}


def themselves(options: Options, questions: Sequence[Question]) -> list[list[str]]:
    return [[question.question] for question in questions]


def by_rm3(options: Options, questions: Sequence[Question]) -> list[list[str]]:
    """Its settings are chosen on the dev questions, or on training questions where there are none."""
    store = store_of(options.data / "store")
    asked = read_answerable(options.data / "train.jsonl" if options.rules else options.train_data / "eval.jsonl")
    dev = choose(asked, SPLITS["dev"], DEV_SEED)

    def search(texts: Sequence[str]) -> list[list[str]]:
        hits_of = found_by(options, texts)
        return [[hit.chunk_id for hit in hits_of[text]] for text in texts]

    return [[text] for text in rm3_queries(store, questions, best_rm3(store, dev, search))]


Second = Callable[[Options, Question, Sequence[Hit], str], str]
"""What to search for after what is asked, given what the question found and how the first of it is shown."""


def again(second: Second, options: Options, questions: Sequence[Question]) -> list[list[str]]:
    """The question, then a search for what is asked and something of what was found."""
    protocol = options.protocol
    search = searching(store_of(options.data / "store"), options.settings)
    found = search([question.question for question in questions])
    whole = found_by(options, [question.question for question in questions])
    return [
        [q.question, f"{asked_of(q)} {second(options, q, whole[q.question], as_shown(hits[0], protocol))}"]
        for q, hits in zip(questions, found, strict=True)
    ]


def at_random(options: Options, question: Question, hits: Sequence[Hit], shown: str) -> str:
    """What the warm start is shown."""
    draw = random.Random(f"{DEV_SEED}/{question.id}")
    return (name_queries(question, shown, 1, draw) or [""])[0].removeprefix(asked_of(question)).strip()


def rarest(options: Options, question: Question, text: str) -> str:
    """The rarest two words within AROUND words of the description's."""
    words, described = words_of(text), set(words_of(question.question.rpartition(": ")[0]))
    near = [place for place, word in enumerate(words) if word in described]
    fit = {word for place in near for word in words[max(0, place - AROUND) : place + AROUND + 1] if len(word) > 3}
    spread = passages_of(options.data / "store").spread
    return " ".join(sorted(fit - described - IDLE, key=lambda word: (spread[word], word))[:2])


@cache
def passages_of(store: Path) -> Passages:
    return Passages(store_of(store).chunks)


def listed(options: Options, question: Question, hits: Sequence[Hit], shown: str) -> str:
    """Of the names that the first passage says, the one with most of the description around it."""
    described = set(words_of(question.question.rpartition(": ")[0]))

    def near(mention: Mention) -> int:
        words = words_of(mention.chunk.text)
        return len(described & set(words[max(0, mention.place - AROUND) : mention.place + len(mention.name) + AROUND]))

    found = passages_of(options.data / "store").mentions
    names = [mention for mention in found if mention.chunk.id == hits[0].chunk_id]
    return " ".join(max(names, key=near).name) if names else hits[0].title


def after_see(options: Options, question: Question, hits: Sequence[Hit], shown: str) -> str:
    """What stands between "see" and the end of the sentence."""
    found = re.search(r"[Ss]ee (?:also )?([^.;,)]+)", shown)
    return found[1] if found else ""


SECOND: Mapping[str, Second] = {
    SEE: after_see,
    PHRASE: at_random,
    TITLE: lambda options, question, hits, shown: hits[0].title,
    READ: lambda options, question, hits, shown: rarest(options, question, shown),
    READ_ALL: lambda options, question, hits, shown: rarest(options, question, hits[0].text),
    LISTED: listed,
    NAME: lambda options, question, hits, shown: question.focus,
}


def by_whole_documents(options: Options, name: str, questions: Sequence[Question]) -> dict[str, Any]:
    store, queries = store_of(options.data / "store"), themselves(options, questions)
    found = zip(whole_documents(store, [query for [query] in queries], options.settings.mode), strict=True)
    return {"measures": measures_by(questions, queries, list(found))}


CONTROLS: Mapping[str, Callable[[Options, Sequence[Question]], list[list[str]]]] = {
    RAW: themselves,
    "RM3": by_rm3,
    **{name: partial(again, second) for name, second in SECOND.items()},
}


# With training


def folder_of(options: Options, name: str, seed: int) -> Path:
    """Where an arm's policy is."""
    return options.work / f"{slug(name)}-{seed}"


def train(options: Options, name: str, seed: int) -> Path:
    """Train the arm, after those that it starts from; nothing is done twice."""
    arm, folder = ARMS[name], folder_of(options, name, seed)
    start = train(options, arm.start, seed) if arm.start else options.work / "policy"
    if not (folder / "trained").exists():
        shown = ("--demonstrations", recite(options, name)) if name in RECITED else ()
        output = "--run-dir" if arm.trains_by_reward else "--output-dir"
        given = ("--data", options.train_data, "--policy", start, output, folder, "--seed", seed)
        run(arm.script, *given, *arm.flags, *shown)
        (folder / "trained").touch()
    return folder


def recite(options: Options, name: str) -> Path:
    """Episodes to imitate, a file: those of the rule that reads, or of one who knows the name."""
    path = options.work / f"{slug(name)}.jsonl"
    if not path.exists():
        questions = choose(read_answerable(options.train_data / "train.jsonl"), 1200, DEV_SEED, 0)
        settings, protocol = options.settings, options.protocol
        queries = again(SECOND[RECITED[name]], options, questions)
        scripts = {(question, 0): [write_call(query)] for question, (_, query) in zip(questions, queries, strict=True)}
        search = searching(store_of(options.data / "store"), settings)
        write_episodes(path, asyncio.run(recited(scripts, search, protocol, settings))[0])
    return path


def cost(options: Options, name: str, seed: int) -> tuple[int, float]:
    """(tokens that the policy learnt from, minutes) of an arm and its warm start."""
    arm, folder = ARMS[name], folder_of(options, name, seed)
    before = cost(options, arm.start, seed) if arm.start else (0, 0.0)
    if arm.trains_by_reward:
        stats = read_stats(folder)
        tokens = sum(step.training["tokens"] for step in stats)
        seconds = sum(took for step in stats for phase, took in step.seconds.items() if phase not in NO_PHASES)
    else:
        last = json.loads((folder / "stats.jsonl").read_text().splitlines()[-1])
        shown = [*read_episodes(folder / "demonstrations.jsonl")]
        a_question = sum(episode.sampled for episode in shown) / len({episode.question_id for episode in shown})
        size = int(arm.flags[arm.flags.index("--batch-size") + 1])
        tokens, seconds = last["step"] * size * a_question, last["seconds"]
    return before[0] + round(tokens), before[1] + seconds / 60


def played(options: Options, name: str, seed: int, questions: Sequence[Question]) -> dict[str, Any]:
    """The arm's greedy episodes of all questions, once it is trained."""
    where = folder_of_play(options, name, seed)
    by_id = play_policy(options.played_data, train(options, name, seed), slug(name), where)
    episodes = [by_id[question.id] for question in questions]
    tokens, minutes = cost(options, name, seed)
    return {
        "measures": measures_of(options, episodes, questions), "tokens": tokens, "minutes": minutes,
        "well_formed": sum(episode.well_formed for episode in episodes) / len(episodes),
    }  # fmt: skip


def folder_of_play(options: Options, name: str, seed: int) -> Path:
    return options.work / "eval" / f"{slug(name)}-{seed}-{options.split}"


def play_policy(data: Path, policy: Path, name: str, where: Path) -> dict[str, Episode]:
    """Its greedy episodes of the held-out questions, by question; they are played once."""
    run(
        "evaluate", "--data", data, "--policy", f"{name}={policy}", "--systems", "single", "--eval-questions", 0,
        "--temperature", 0, "--engine", "local", "--concurrency", 64, "--output-dir", where,
    )  # fmt: skip
    return episodes_in(where, name)


def episodes_in(where: Path, name: str) -> dict[str, Episode]:
    """What was played, by question."""
    return {key: result.episode for key, result in OutcomeLog(where, f"{name}/single").results().items()}


def measures_of(options: Options, episodes: Sequence[Episode], questions: Sequence[Question]) -> dict[str, list[float]]:
    return measured(options, questions, [[search.query for search in episode.read_searches] for episode in episodes])


def run(script: str, *arguments: object) -> None:
    """A script of this repository, in a process of its own."""
    command = [sys.executable, f"{script}.py", *map(str, arguments)]
    print("$", " ".join(command[1:]), file=sys.stderr, flush=True)
    if subprocess.run(command, stdout=2, check=False).returncode:
        raise UserError(f"{script} failed, as it says above; what was done before is kept")


def slug(name: str) -> str:
    """Example: "GRPO, credit by words" gives grpo_credit_by_words."""
    return "_".join(name.lower().replace(",", "").split())


# The table


def table(rows: Sequence[Row], questions: int, split: str) -> str:
    """Markdown: each way's measures, and its paired differences in the best search's MRR@10."""
    untrained = {row.arm: row for row in rows if not row.seed}
    rivals = [f"over {name}" for name in (WARM, EXPERT, *RIVALS)]
    head = ["", "seed", *MEASURES.values(), *rivals, "format", "tokens", "minutes"]
    lines = [f"{questions} {split} questions:", "", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    of_arm = grouped((row.arm, row) for row in rows)
    rows = [row for own in of_arm.values() for row in (*own, *([together(own)] if len(own) > 1 else ()))]
    for row in rows:
        same = {other.arm: other for other in rows if other.seed == row.seed}
        others = [same.get(WARM), same.get(LONG_EXPERT if row.arm == LONG else EXPERT), *map(untrained.get, RIVALS)]
        cells = [
            row.arm, "all" if row.seed == ALL else f"{row.seed or ''}",
            *(f"{np.mean(row.measures[name]):.3f}" if name in row.measures else "" for name in MEASURES),
            *(over(row, other) if row.seed and other and other.arm != row.arm else "" for other in others),
            *((f"{row.well_formed:.3f}", f"{row.tokens:,}", f"{row.minutes:.0f}") if row.seed else ("", "", "")),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def together(rows: Sequence[Row]) -> Row:
    """An arm's seeds as one: the means of each question."""
    means = {name: np.mean([row.measures[name] for row in rows], axis=0).tolist() for name in rows[0].measures}
    formed, tokens, minutes = np.mean([(row.well_formed, row.tokens, row.minutes) for row in rows], axis=0).tolist()
    return replace(rows[0], seed=ALL, measures=means, well_formed=formed, tokens=round(tokens), minutes=minutes)


def over(row: Row, other: Row) -> str:
    """The paired difference with its interval, for which documents are drawn; bold where that excludes zero."""
    first, second = (np.array(each.measures[BEST]) for each in (row, other))
    gains = by_document((first - second).tolist(), [*map(str, row.measures[DOCUMENT])])
    found = bootstrapped(gains)
    mean = f"**{found['mean']:+.3f}**" if shown(found, gains) else f"{found['mean']:+.3f}"
    return f"{mean} ({span(found)})"


def episodes_to_read(options: Options, questions: Sequence[Question]) -> str:
    """Markdown: what was asked and found first, what was searched for then, beside the name that was to be read."""
    lines = ["| asked | found first | then searched for | the name | place |", "|---|---|---|---|---|"]
    played = episodes_in(folder_of_play(options, options.shown, options.seeds[0]), slug(options.shown))
    for question in questions:
        episode = played[question.id]
        first, *later = [search.query for search in episode.searches]
        found = found_by(options, [first, *later])
        places = [hit.rank for query in later for hit in found[query] if hit.chunk_id in question.relevant_chunk_ids]
        shown = re.findall(r"^\[1\] .*", episode.transcript, re.MULTILINE)[:1]
        cells = [question.question, *shown, "; ".join(later), question.focus, f"{min(places, default='')}"]
        lines.append(f"| {' | '.join(one_line(cell)[:SHOWN].replace('|', ' ') for cell in cells)} |")
    return "\n".join(lines)


def draw_curves(options: Options, path: Path) -> None:
    """What the sampled episodes of each SMOOTH steps did on average, a line for each seed."""
    from matplotlib.figure import Figure

    by_id = {question.id: question for question in read_answerable(options.train_data / "train.jsonl")}
    figure, curves = Figure(figsize=(15, 3), layout="constrained"), MEASURES | LEARNT
    axes = dict(zip(curves, figure.subplots(1, len(curves)), strict=True))
    for seed in options.seeds:
        folder = folder_of(options, options.shown, seed)
        if not folder.exists():
            continue
        points = defaultdict[str, list[float]](list)
        for step in read_stats(folder):
            episodes = [
                one for file in episode_files(folder / "episodes" / f"{step.step:06d}") for one in read_episodes(file)
            ]
            measures = measures_of(options, episodes, [by_id[episode.question_id] for episode in episodes])
            figures = step.training | {name: float(np.mean(measures[name])) for name in MEASURES}
            for name in axes:
                before = points[name][-1:] or [np.nan]  # stays, where a step taught nothing
                points[name].append(figures.get(name, *before))
        for name, panel in axes.items():
            smooth = np.convolve(points[name], np.full(SMOOTH, 1 / SMOOTH), "valid")
            panel.plot(range(SMOOTH, len(points[name]) + 1), smooth, label=f"seed {seed}")
    for name, panel in axes.items():
        panel.set_title(curves[name], fontsize=8)
        panel.set_xlabel("step")
    axes[BEST].legend()
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    run_script(main, __doc__)
