"""Setting: the policies, the questions, the store, and how the agent plays, the same for every policy and system.

All episodes of an output folder are played in the same way, whoever plays them and when: what an evaluation begins
with is kept in evaluation.json.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from forage.agent.options import (
    AGENT_FILE,
    AgentSettings,
    difference,
    read_agent,
    same_settings,
    write_agent,
)
from forage.agent.rewards import (
    MakeRewards,
    RewardFunction,
    get_answer_similarity,
    get_groundedness,
    get_telling_words,
    rewards_of,
)
from forage.agent.searcher import Searcher
from forage.data.chunking import Chunk
from forage.data.collection import read_qrels
from forage.data.records import Question, read_answerable
from forage.engines.base import Engine
from forage.errors import UserError
from forage.evaluation.measures import Grades, grades_of
from forage.evaluation.options import FREE, MANIFEST, EvaluationOptions
from forage.files import in_turn, make_folder
from forage.manifest import agree, file_digest, plain, read_manifest
from forage.policy.adapters import newest_adapter, undamaged, weights_digest
from forage.policy.base_models import resolve_model
from forage.policy.manifest import PolicyManifest, read_policy_manifest
from forage.rollout.agreement import embedder_digest, open_embedder
from forage.store.document_store import read_chunks
from forage.store.embedder import Embedder
from forage.store.manifest import CHUNKS_FILE, NO_EMBEDDER
from forage.store.opening import Store, manifest_at, open_address
from forage.store.remote import RemoteStore

WAY_OUT = "another --output-dir"


@dataclass(frozen=True)
class Policy:
    """A model under the name it has in the table."""

    name: str
    folder: Path
    manifest: PolicyManifest
    adapter: Path | None
    """None: a plain model."""

    @property
    def version(self) -> str:
        return self.adapter.name if self.adapter else "base"


def find_policy(name: str, source: str, version: str) -> Policy:
    """A policy folder's adapter (the newest where no version is given), or a plain model."""
    folder = Path(source)
    if (folder / "model.json").is_file():
        adapter = folder / "adapters" / version if version else newest_adapter(folder)
        if not adapter.exists():
            raise UserError(f"{adapter} was removed since {name} was evaluated first; give another --output-dir")
        return Policy(name, folder, read_policy_manifest(folder), undamaged(adapter))
    base = resolve_model(source)
    return Policy(name, folder, PolicyManifest(folder, base, base, quantized=False), None)


async def load_adapter(engine: Engine, policy: Policy) -> None:
    """Load the policy's adapter; a plain model has none."""
    if policy.adapter:
        await engine.load_adapter(f"{policy.name}-{policy.version}", policy.adapter)


@dataclass(frozen=True)
class Setting:
    """Everything that a strategy may be built from."""

    options: EvaluationOptions
    policies: list[Policy]
    agent: AgentSettings
    store: Store
    questions: list[Question]
    grades: list[Grades]
    by_document: bool
    """`grades` judge documents, so retrieval is measured in documents, not in chunks."""
    make_rewards: MakeRewards
    chosen_embedder: Embedder
    """The rewards' embedder if the store has none."""

    @property
    def embedder(self) -> Embedder:
        return self.chosen_embedder if self.store.options.embedder == NO_EMBEDDER else self.store.embedder

    @cached_property
    def rewards(self) -> Mapping[str, RewardFunction]:
        """The training's rewards by name."""
        return rewards_of(self.make_rewards, self.embedder, Searcher(lambda: self.store, self.agent))

    @cached_property
    def scores(self) -> Mapping[str, RewardFunction]:
        """The rewards, and what costs little beside them; how rare a word is, a server of a store does not tell."""
        more: dict[str, RewardFunction] = {"groundedness": get_groundedness}
        if not isinstance(self.store, RemoteStore):
            more["telling_words"] = partial(get_telling_words, searcher=Searcher(lambda: self.store, self.agent))
        return {**self.rewards, **more, **self.rewards}

    @cached_property
    def chunks(self) -> Mapping[str, Chunk]:
        """The store's passages by id; of a store on a server those in the data folder."""
        if not isinstance(self.store, RemoteStore):
            return self.store.chunk_by_id
        path = self.options.data / "store" / CHUNKS_FILE
        if not path.is_file():
            raise UserError(
                f"{path} is missing, and the lab shows its passages; copy it from where the store was built"
            )
        return {chunk.id: chunk for chunk in read_chunks(path)}

    @cached_property
    def all_questions(self) -> list[Question]:
        """The split's questions that some chunk answers, those that are not played too."""
        return read_answerable(questions_file(self.options))

    @property
    def similarity(self) -> RewardFunction:
        """Similarity of answers to the reference: a strategy that chooses by it is an upper bound, not a system."""
        return partial(get_answer_similarity, embedder=self.embedder)


def open_setting(options: EvaluationOptions, make_rewards: MakeRewards) -> Setting:
    """Opens the store, and reads the judgements of a test collection if there are any.

    A policy plays with the adapter that it had when its first episode was played.
    """
    questions, out, before = choose_questions(options), options.output_dir, recorded(options.output_dir)
    adapters, qrels = before.get("adapters", {}), options.data / "qrels" / f"{options.split}.tsv"
    policies = [find_policy(name, source, adapters.get(name, "")) for name, source in options.sources.items()]
    # As their agent.json says. A plain model has none: it plays as the first policy that has one.
    folders = [policy.folder for policy in policies]
    agent = same_settings([(policy.name, options.search.settle(policy.folder, *folders)) for policy in policies])
    manifest, fingerprint = manifest_at(options.address, options.data)
    embedder = open_embedder(manifest, before.get("embedder", ""))
    now = {
        "options": {name: value for name, value in plain(options).items() if name not in (*FREE, "address")},
        "store": options.address.store, "embedder": embedder.name, "embedder_weights": embedder_digest(embedder.name),
        "data": {
            options.split: file_digest(questions_file(options)), "qrels": file_digest(qrels),
            "store": fingerprint,
        },
        "adapters": adapters | {policy.name: policy.adapter.name for policy in policies if policy.adapter},
        **{f"policy {p.name}": weights_digest(p.adapter or Path(p.manifest.base)) for p in policies},
    }  # fmt: skip
    if options.scorer and options.learned:  # by which scorer the learned systems choose, once one of them is played
        now["scorer"] = file_digest(options.scorer / "scorer.json")
    make_folder(out)
    if (out / AGENT_FILE).exists() and (differs := difference(read_agent(out), agent)):
        option, was, now_given = differs
        raise UserError(f"{out} was begun with {option} {was}, not {now_given}; give that, or {WAY_OUT}")
    agree_on(out, now)
    write_agent(agent, out)
    store = open_address(options.address, options.data)
    if by_document := qrels.exists():
        judgements = read_qrels(qrels)
        grades: list[Grades] = [judgements.get(question.id, {}) for question in questions]
    else:
        grades = grades_of(questions)
    return Setting(options, policies, agent, store, questions, grades, by_document, make_rewards, embedder)


def agree_on(out: Path, now: Mapping[str, Any]) -> None:
    """Compare with what earlier calls recorded in the output folder, refuse what differs, and record what is new."""
    with in_turn(out / f".{MANIFEST}.lock"):  # of two that begin at once, the second finds what the first wrote
        agree(out / MANIFEST, {**recorded(out), **now}, WAY_OUT)


def recorded(out: Path) -> dict[str, Any]:
    path = out / MANIFEST
    return read_manifest(path, f"put it back, or give {WAY_OUT}") if path.exists() else {}


def questions_file(options: EvaluationOptions) -> Path:
    return options.data / f"{options.split}.jsonl"


def choose_questions(options: EvaluationOptions) -> list[Question]:
    path = questions_file(options)
    questions = choose(read_answerable(path), options.eval_questions, options.seed, options.skip_questions)
    if not questions:
        raise UserError(f"{path} has no question left that a chunk answers; make it again with data_prep.py")
    return questions


def choose(questions: Sequence[Question], count: int, seed: int, skip: int = 0) -> list[Question]:
    """The first `count` questions in the order of the seed after those to skip, so 200 include the 100; 0: all.

    Example: of the order a, b, c, d, two are a and b; two after skipping two are c and d.
    """
    drawn = sorted(questions, key=lambda question: question.id)
    random.Random(seed).shuffle(drawn)
    return drawn[skip:][: count or None]
