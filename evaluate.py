"""Stage 6: policies beside baselines and test-time strategies, on held-out questions, with intervals and costs.

    python evaluate.py --data data --policy warm=models/warm trained=runs/grpo
    python evaluate.py --data data --policy runs/grpo --beside models/warm --systems single plain_rag best_of_8
    python evaluate.py --data data/scifact --policy models/merged      a test collection, by collection_prep.py

Reads: --data (store and eval.jsonl of data_prep.py or collection_prep.py; a collection's qrels/ if it has them) and
policies: folders with adapters, of which the newest counts, or plain models (a base, a merged one, a hub name). Every
system of SYSTEMS, which you may add to, plays every question; the first policy's first system is what the others are
compared with. Samples through vLLM servers (--urls) or in this process.

Writes into --output-dir: eval.json (its schema is in forage/evaluation/summary.py), per_question.jsonl, table.md,
eval.png, episodes/<policy>/<system>.jsonl (every episode), outcomes/ (which of them count, what they cost). Run the
same command again to resume; policies, systems and questions may be added, and what was played is kept.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

from forage.agent.agent import BatchedSearch
from forage.agent.builder import Found
from forage.agent.combination import RewardFunction
from forage.agent.options import (
    AGENT_FILE,
    AgentSettings,
    SearchOptions,
    difference,
    read_agent,
    same_settings,
    write_agent,
)
from forage.agent.protocol import Protocol
from forage.agent.rewards import get_answer_similarity, get_format_reward
from forage.cli import run_script
from forage.data.collection import read_qrels
from forage.data.records import Question, read_answerable
from forage.engines.base import Engine, EngineError, Sampling
from forage.engines.choice import open_engine
from forage.engines.options import EngineOptions
from forage.engines.vllm import VLLMEngine
from forage.errors import UserError, check_at_least_one, check_at_least_zero
from forage.evaluation import baselines
from forage.evaluation.measures import Grades, grades_of, measured
from forage.evaluation.memo import Remembering
from forage.evaluation.outcomes import OutcomeLog, Strategy
from forage.evaluation.plots import draw_evaluation
from forage.evaluation.scorers import Oracle, Total, relevance, support, well_formed
from forage.evaluation.strategies.best_of_n import BestOfN
from forage.evaluation.strategies.budget_forcing import BudgetForcing
from forage.evaluation.strategies.s_star import SStar
from forage.evaluation.strategies.self_consistency import SelfConsistency
from forage.evaluation.strategies.thought_templates import ThoughtTemplates, read_templates
from forage.evaluation.strategies.tpo import TPO
from forage.evaluation.strategies.tree_search import TreeSearch
from forage.evaluation.summary import SCHEMA, Measured, markdown, per_question, print_rows, summary
from forage.files import locked, replacing, write_jsonl
from forage.policy.adapters import newest_adapter, weights_digest
from forage.policy.base_models import resolve_model
from forage.policy.policy import PolicyCard, load_tokenizer, read_policy_card
from forage.rollout.view import RolloutView
from forage.runs.run_folder import changed, plain
from forage.store.card import NO_EMBEDDER
from forage.store.document_store import DocumentStore
from forage.store.embedder import Embedder

# What is looked for in an episode without knowing the answer: kept to the protocol, found what was asked, said what it
# found.
LOOKS_GOOD = Total((well_formed, 1), (relevance, 1), (support, 1))


@dataclass(frozen=True)
class Setting:
    """What is the same for every policy; strategies are made of it."""

    options: Options
    agent: AgentSettings
    store: DocumentStore
    questions: list[Question]
    grades: list[Grades]
    by_document: bool
    """What was found is counted in documents, as `grades` are of them."""

    @cached_property
    def embedder(self) -> Embedder:
        return self.store.embedder if self.store.options.embedder != NO_EMBEDDER else Embedder()

    @property
    def similarity(self) -> RewardFunction:
        """Of answers with the reference. What chooses by it at test time is an upper bound, no way of answering."""
        return partial(get_answer_similarity, embedder=self.embedder)

    def search(self, queries: Sequence[str]) -> Sequence[Sequence[Found]]:
        return self.store.search(queries, self.agent.k, self.agent.mode)


# What can be evaluated, by the name that --systems calls it: a line makes a strategy. Add your own.
SYSTEMS: dict[str, Callable[[Setting], Strategy]] = {
    "plain_rag": lambda _: baselines.plain_rag,
    "no_retrieval": lambda _: baselines.no_retrieval,
    "hyde": lambda _: baselines.hyde,
    "rewrite": lambda _: baselines.rewrite,
    "single": lambda _: baselines.single,
    "best_of_8": lambda _: BestOfN(LOOKS_GOOD, n=8),
    "oracle_8": lambda setting: BestOfN(Oracle(setting.similarity), n=8),  # what any choice among 8 could reach at best
    "self_consistency_8": lambda _: SelfConsistency(n=8),
    "fused_8": lambda _: SelfConsistency(n=8, fuse=True),
    "budget_forcing": lambda _: BudgetForcing(),
    "tpo": lambda _: TPO(LOOKS_GOOD, n=4, rounds=1),  # 8 episodes, as the others
    "s_star": lambda _: SStar(),
    "tree_search": lambda _: TreeSearch(LOOKS_GOOD),
    "templates": lambda setting: ThoughtTemplates(read_templates(setting.options.templates)),
}


@dataclass(frozen=True)
class Options:
    """What is evaluated, on what, and how."""

    data: Path = Path("data")
    """Folder that data_prep.py or collection_prep.py wrote."""
    policy: tuple[str, ...] = ("models/warm",)
    """Policy or run folders, plain models' folders or hub names; name=folder calls it so in the table."""
    beside: tuple[str, ...] = ()
    """More policies, that play `single` and nothing else, to stand in the same table: the warm start, the base."""
    systems: tuple[str, ...] = ("plain_rag", "no_retrieval", "hyde", "single")
    """Ways of answering, by their names in SYSTEMS; the first is the reference."""
    output_dir: Path = Path("runs/eval")
    """Folder for everything that is made."""
    eval_questions: int = 200
    """Held-out questions, chosen at random by --seed; a greater number includes a smaller one's. 0: all."""
    split: Literal["eval", "train"] = "eval"
    """Whose questions."""
    cutoffs: tuple[int, ...] = (3, 10)
    """The k of recall@k and nDCG@k."""
    engine: EngineOptions = field(default_factory=EngineOptions)
    search: SearchOptions = field(default_factory=SearchOptions)
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.7))
    concurrency: int = 16
    """Questions played at the same time; in this process also the number of sequences sampled in one batch."""
    templates: Path = Path("templates.jsonl")
    """Library of forage/evaluation/strategies/thought_templates.py, for the system of that name."""
    seed: int = 0
    """Of the choice of questions and of sampling."""

    def check(self) -> None:
        """Fail before anything is loaded."""
        self.sampling.check()
        check_at_least_one(self, "concurrency")
        check_at_least_zero(self, "eval_questions")
        if not self.cutoffs or min(self.cutoffs) < 1:
            raise UserError("--cutoffs must be one or more numbers of at least 1")
        unknown = [name for name in self.systems if name not in SYSTEMS]
        if unknown or not self.systems:
            raise UserError(f"--systems {' '.join(unknown)}: choose among {', '.join(SYSTEMS)}")
        if "templates" in self.systems and not self.templates.is_file():
            raise UserError(
                f"--templates {self.templates} is missing; make it with "
                "python -m forage.evaluation.strategies.thought_templates"
            )
        if not self.policy or len(self.sources) < len(self.policy + self.beside):
            told = " ".join(self.policy + self.beside)
            raise UserError(f"--policy {told}: give each a name of its own, as name=folder")

    @property
    def sources(self) -> dict[str, str]:
        """Where each policy comes from, by its name. Example: warm=models/warm; models/warm is called warm too."""
        return sources_of(self.policy) | sources_of(self.beside)

    def systems_of(self, policy: str) -> tuple[str, ...]:
        """Example: of a policy beside, ("single",)."""
        return self.systems if policy in sources_of(self.policy) else ("single",)


def sources_of(policies: Sequence[str]) -> dict[str, str]:
    pairs = (text.partition("=") for text in policies)
    return {name if eq else Path(name).name: source if eq else name for name, eq, source in pairs}


# What one and the same output folder may be called again with: it changes nothing of what was played before.
# (--mode, --k and so on are kept in agent.json instead.)
FREE = ("policy", "beside", "systems", "output_dir", "eval_questions", "cutoffs", "engine", "concurrency", "search")


def main(options: Options) -> None:
    options.check()
    with held(options):
        questions = choose_questions(options)
        policies = [open_policy(name, source, options) for name, source in options.sources.items()]
        setting = open_setting(options, settle_agent(options, policies), questions)
        asyncio.run(play_all(policies, setting))
        report(policies, setting)


@contextmanager
def held(options: Options) -> Iterator[None]:
    """Hold the output folder for this process, and refuse to mix episodes that were played under other options."""
    out = options.output_dir
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / ".lock", f"{out} is being written by another evaluation; give another --output-dir"):
        now = {name: value for name, value in plain(options).items() if name not in FREE}
        before = json.loads((out / "config.json").read_text()) if (out / "config.json").exists() else now
        name = changed(now, before)
        if name:
            was = f"{name} {before[name]}, not {now[name]}"
            raise UserError(f"{out} was begun with {was}; give that, or another --output-dir")
        with replacing(out / "config.json") as file:
            json.dump(now, file, indent=1)
        yield


def choose_questions(options: Options) -> list[Question]:
    path = options.data / f"{options.split}.jsonl"
    questions = choose(read_answerable(path), options.eval_questions, options.seed)
    if not questions:
        raise UserError(f"{path} has no question with a chunk that answers it")
    return questions


def settle_agent(options: Options, policies: Sequence[Policy]) -> AgentSettings:
    """How all policies play. A plain model has no agent.json: it plays as the first policy that has one."""
    folders = [policy.folder for policy in policies]
    agent = same_settings([(policy.name, options.search.settle(policy.folder, *folders)) for policy in policies])
    keep_agent(agent, options.output_dir)
    return agent


def open_setting(options: Options, agent: AgentSettings, questions: list[Question]) -> Setting:
    store = DocumentStore.open(options.data / "store")
    qrels = options.data / "qrels" / f"{options.split}.tsv"
    judgements = read_qrels(qrels) if qrels.exists() else None
    grades = grades_of(questions)
    if judgements is not None:
        grades = [judgements.get(question.id, {}) for question in questions]
    return Setting(options, agent, store, questions, grades, judgements is not None)


def keep_agent(agent: AgentSettings, out: Path) -> None:
    """Note how the agent plays; refuse to mix episodes that were played in another way."""
    if (out / AGENT_FILE).exists() and (flag := difference(before := read_agent(out), agent)):
        was = f"--{flag.replace('_', '-')} {getattr(before, flag)}, not {getattr(agent, flag)}"
        raise UserError(f"{out} was begun with {was}; give that, or another --output-dir")
    write_agent(agent, out)


def choose(questions: Sequence[Question], count: int, seed: int) -> list[Question]:
    """So many of them in an order by the seed: of 100 and 200, the 100 are the first of the 200."""
    drawn = sorted(questions, key=lambda question: question.id)
    random.Random(seed).shuffle(drawn)
    return drawn[: count or None]


# Policies


@dataclass(frozen=True)
class Policy:
    """A model, with an adapter or without."""

    name: str
    folder: Path
    card: PolicyCard
    adapter: Path | None

    @property
    def version(self) -> str:
        return self.adapter.name if self.adapter else "base"


def open_policy(name: str, source: str, options: Options) -> Policy:
    """The policy as it was when its first episode was played, which policies.json remembers."""
    folder, path = Path(source), options.output_dir / "policies.json"
    known: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.exists() else {}
    if (folder / "model.json").is_file():
        version = known.get(name, {}).get("adapter", "")
        adapter = folder / "adapters" / version if version else newest_adapter(folder)
        policy = Policy(name, folder, read_policy_card(folder), adapter)
    else:
        base = resolve_model(source)
        policy = Policy(name, folder, PolicyCard(folder, base, base, quantized=False), None)
    weights = weights_digest(policy.adapter or Path(policy.card.base))
    now = {"source": source, "adapter": policy.adapter.name if policy.adapter else "", "sha256": weights}
    if known.setdefault(name, now) != now:
        was = f"{known[name]['source']} {known[name]['adapter']}".strip()
        told = f"{path} knows {name} as {was} with other weights"
        raise UserError(f"{told}; give it another name, or another --output-dir")
    with replacing(path) as file:
        json.dump(known, file, indent=1)
    return policy


async def load_adapter(engine: Engine, policy: Policy) -> None:
    """Or, of a plain model, see that the servers serve that one, as far as their folder can be seen from here."""
    if policy.adapter:
        await engine.load_adapter(f"{policy.name}-{policy.version}", policy.adapter)
    elif isinstance(engine, VLLMEngine) and engine.base_root:
        served, asked = Path(engine.base_root), Path(policy.card.base)
        if served.resolve() != asked.resolve() and (served.exists() or not served.is_absolute()):
            told = f"the server at {engine.options.urls[0]} serves {served}, not {asked}"
            raise UserError(f"{told}; start it with that model, or give --engine local")


# Playing


async def play_all(policies: Sequence[Policy], setting: Setting) -> None:
    """What was not played yet; a policy of which nothing is missing is not loaded."""
    options = setting.options
    for policy in policies:
        missing = {}
        for system in options.systems_of(policy.name):
            log = log_of(policy, system, options)
            done = log.open()
            missing[system] = [question for question in setting.questions if question.id not in done]
        if not any(missing.values()):
            continue
        protocol = Protocol(load_tokenizer(policy.card), setting.agent.passage_tokens)
        async with open_engine(options.engine, policy.card, options.concurrency) as engine:
            await load_adapter(engine, policy)
            search = BatchedSearch(setting.search, in_line=not isinstance(engine, VLLMEngine))
            agent = Remembering(engine, protocol, search, setting.agent, options.sampling)
            for system, questions in missing.items():
                strategy = SYSTEMS[system](setting)
                await play(strategy, agent, questions, log_of(policy, system, options), options)


async def play(
    strategy: Strategy, agent: Remembering, questions: Sequence[Question], log: OutcomeLog, options: Options
) -> None:
    """Play questions, a few at once, and write down each as it ends."""
    agent.shares.start()
    gate, failed, last = asyncio.Semaphore(options.concurrency), list[str](), time.perf_counter()

    async def one(question: Question) -> None:
        nonlocal last
        async with gate:
            started = time.perf_counter()
            try:
                outcome = await strategy(agent, question, options.seed)
            except EngineError as error:
                failed.append(str(error))
                return
        # An answer that a server's end cut short says nothing of the policy: it is played when the command is repeated.
        causes = [episode.cause for episode in outcome.tried if episode.stop == "engine"]
        if causes:
            failed.append(causes[0])
            return
        now = time.perf_counter()
        slowest = max(episode.seconds.get("total", 0.0) for episode in outcome.tried)  # may have been played before
        log.append(outcome, max(now - started, slowest), now - last + agent.shares.take_saved())
        last = now
        view.played(outcome.episode)

    if questions:
        with RolloutView(log.name, len(questions)) as view:
            await asyncio.gather(*map(one, questions))
    if failed:
        what = f"{log.name}: {len(failed)} of {len(questions)} questions were not played ({failed[0]})"
        raise UserError(f"{what}; run the same command again to play them")


def log_of(policy: Policy, system: str, options: Options) -> OutcomeLog:
    return OutcomeLog(options.output_dir, f"{policy.name}/{system}")


# The report


def report(policies: Sequence[Policy], setting: Setting) -> None:
    """Measure what was played, and write and show what comes of it."""
    options, questions = setting.options, setting.questions
    functions = reward_functions(setting)
    systems = []
    for policy in policies:
        for system in options.systems_of(policy.name):
            of_question = log_of(policy, system, options).results()
            results = [of_question[question.id] for question in questions]
            arrays = measured(
                results, questions, setting.grades, options.cutoffs, functions, by_document=setting.by_document
            )
            systems.append(Measured(policy.name, system, policy.version, arrays))
    rows = summary(systems, questions)
    unit = "document" if setting.by_document else "chunk"
    title = f"{len(questions)} questions of {options.data}/{options.split}.jsonl, found by {unit}s"
    whole = {
        "schema": SCHEMA, "questions": len(questions), "split": options.split, "unit": unit,
        "reference": rows[0]["name"], "options": plain(options), "systems": rows,
    }  # fmt: skip
    out = options.output_dir
    write_jsonl(out / "per_question.jsonl", per_question(systems, questions))
    with replacing(out / "eval.json") as file:
        json.dump(whole, file, indent=1, default=str, allow_nan=False)
    with replacing(out / "table.md") as file:
        file.write(markdown(rows, title))
    draw_evaluation(rows, out / "eval.png")
    print_rows(rows, title)
    print(f"{out / 'eval.json'}, {out / 'table.md'} and {out / 'eval.png'} have all of it")


def reward_functions(setting: Setting) -> Mapping[str, RewardFunction]:
    """What the training rewards, where it makes sense: similarity needs reference answers."""
    functions: dict[str, RewardFunction] = {"format": get_format_reward}
    if any(question.answer.strip() for question in setting.questions):
        functions = {"answer_similarity": setting.similarity} | functions
    return functions


if __name__ == "__main__":
    run_script(main, description=__doc__)
