"""PPO query rewriting: a language model learns to write the query that finds more of the relevant documents.

    python train_ppo.py                                             a first look, on the sample data
    python train_ppo.py --data data/rewriter --max-steps 500        what data_prep.py prepared
    python train_ppo.py --data data/rewriter --warm-steps 150       PPO after a supervised start
    python train_ppo.py --model gpt2 --mode replace --retriever hybrid --reward ndcg --lora-rank 16

Reads --data: train.jsonl with {"query": ..., "relevant_doc_ids": [...]} a line, pubmed_corpus.json with a list of
{"doc_id": ..., "text": ...}, and eval.jsonl as train.jsonl (without it a fifth of the documents' queries is held out).
Every update: batch_size queries are rewritten, each rewrite is searched for, what was found is the reward, and PPO
with GAE raises what did better than the value model thought.

Writes the model into --output-dir, for plain transformers; into --run-dir metrics.jsonl, episodes/ (what was written
and what it earned), training.png, evaluation.jsonl (held-out queries: raw, by prompt alone, by a pseudo-answer, after
the warm start, trained), warm/ (the model after it), config.json, code.diff and state/. A killed run goes on where it
was saved last when the same command is given again, and comes to the same.

TRL's trainer does the updates (--backend trl); forage/rewriter/ppo.py has the same in 300 lines and is faster
(--backend own).
"""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from forage.agent.prompts import PSEUDO_ANSWER, final_query, prompt_tokens
from forage.cli import run_script
from forage.data.documents import assemble
from forage.data.qa_rows import Columns, read_records, to_rows
from forage.data.records import Document
from forage.data.relevance import make_questions, split_by_document
from forage.data.rewriter_data import CORPUS, export_rewriter_data, import_rewriter_data
from forage.data.sample import QUESTIONS
from forage.errors import UserError, check_at_least_one, check_at_least_zero
from forage.files import write_jsonl
from forage.policy.base_models import resolve_model
from forage.policy.checkpoint import load_checkpoint, save_checkpoint
from forage.rewriter.actors import Actors, Policy, check_replaceable, load_lm, make_actors, save_lm, write_texts
from forage.rewriter.evaluation import (
    RAW,
    Measured,
    difference,
    load_measured,
    measured,
    print_measured,
    result_rows,
    save_measured,
)
from forage.rewriter.options import ActorOptions, PPOOptions, RewriteOptions, SamplingOptions, WarmOptions
from forage.rewriter.plots import draw_metrics
from forage.rewriter.ppo import Batch, make_optimizer, train_own
from forage.rewriter.rewards import Scorer, Search, load_reward
from forage.rewriter.rewrites import Row, left_padded, make_rows, with_padding
from forage.rewriter.trl_backend import train_trl
from forage.rewriter.warm_start import warm_started
from forage.runs.run_folder import plain, run_folder
from forage.runs.trackers import Kind, Tracker, open_tracker
from forage.schedule import in_rounds
from forage.statistics import span
from forage.store.card import NO_EMBEDDER, read_card
from forage.store.document_store import DocumentStore
from forage.store.embedder import Reranker
from forage.store.options import Mode, StoreOptions

MODES: dict[str, Mode] = {"bm25": "sparse", "dense": "dense", "hybrid": "hybrid", "rerank": "dense"}


@dataclass(frozen=True)
class Options:
    """What is trained, on what, for how long."""

    data: Path | None = None
    """Folder of train.jsonl and pubmed_corpus.json; without it data/ and data/rewriter are looked in, and where they
    have none, sample data is made."""
    model: str = "auto"
    """Causal language model to train: a folder, a hub name, auto; with or without a chat template."""
    output_dir: Path = Path("models/query_augmentation_ppo")
    """Where the trained model goes."""
    run_dir: Path = Path("runs/ppo")
    """The run folder; what an earlier start left there is gone on with."""
    retriever: Literal["bm25", "dense", "hybrid", "rerank"] = "bm25"
    """What searches; rerank is dense with a cross-encoder over its best 100."""
    embedder: str = "auto"
    """Of dense, hybrid and rerank; as data_prep.py's."""
    reranker: str = ""
    """Cross-encoder of rerank: a folder or hub name, as cross-encoder/ms-marco-MiniLM-L6-v2."""
    store: Path | None = None
    """A store of data_prep.py whose chunks are the corpus' documents, so that they need not be embedded again."""
    k: int = 5
    """Documents that a search finds."""
    reward: str = "recall"
    """recall, ndcg, mrr (of the best k), tiers (DeepRetrieval's), or module:Class (forage/rewriter/rewards.py)."""
    backend: Literal["trl", "own"] = "trl"
    """Whose loop does the updates."""
    rewrite: RewriteOptions = field(default_factory=RewriteOptions)
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    actor: ActorOptions = field(default_factory=ActorOptions)
    ppo: PPOOptions = field(default_factory=PPOOptions)
    warm: WarmOptions = field(default_factory=WarmOptions)
    max_steps: int = 6
    """Updates; the default is a first look. May be raised when a run is gone on with."""
    eval_queries: int = 32
    """Held-out queries that are measured before and after; 0 for all."""
    pseudo_answer_tokens: int = 48
    """Longest pseudo-answer of the baseline that searches for one."""
    save_every: int = 25
    """Updates between checkpoints; one holds the trained weights three times."""
    report_to: Kind = "none"
    """Where metrics go besides the run folder: wandb (offline without a key), tensorboard, trackio."""
    seed: int = 0
    """Of order and sampling."""

    def check(self) -> None:
        """Fail before anything is loaded."""
        for part in (self.rewrite, self.sampling, self.actor, self.ppo, self.warm):
            part.check()
        check_at_least_one(self, "k", "max_steps", "save_every", "pseudo_answer_tokens")
        check_at_least_zero(self, "eval_queries")
        check_replaceable(self.output_dir)
        if self.output_dir.resolve() in (self.run_dir.resolve(), *self.run_dir.resolve().parents):
            raise UserError(f"--output-dir {self.output_dir} would take the place of --run-dir {self.run_dir}")
        if (self.retriever == "rerank") != bool(self.reranker):
            raise UserError("--retriever rerank and --reranker NAME belong together; give both or neither")


# What a run may be gone on with that is other than before.
FREE = ("max_steps", "report_to", "save_every", "output_dir")


def main(options: Options) -> None:
    options.check()
    with run_folder(options.run_dir, options, FREE):
        model = resolve_model(options.model)
        tokenizer = load_tokenizer(model)
        data = read_data(options, tokenizer)
        search = open_search(options, data)
        scorer = Scorer(load_reward(options.reward, search, options.k), options.rewrite, tokenizer)
        lora = options.actor.lora_rank > 0
        lm = load_lm(model, lora=lora)
        before = measure_before(options, data, policy_of(options, lm, tokenizer), tokenizer, search)
        if options.warm.warm_steps:
            lm = load_lm(warm_start(options, data, model, tokenizer), lora=lora)
            before = measure_warm(options, before, data, policy_of(options, lm, tokenizer), tokenizer, search)
        actors = actors_of(options, lm, tokenizer)
        train(options, data, actors, tokenizer, scorer)
        save_lm(actors.policy, model, tokenizer, options.output_dir)
        print(f"{options.output_dir} is the trained model")
        report_after(options, before, data, actors, tokenizer, search)


# Data


@dataclass(frozen=True)
class Data:
    """Documents, queries to train on, and those that are held out."""

    folder: Path
    documents: list[Document]
    train: list[Row]
    held_out: list[Row]


def read_data(options: Options, tokenizer: Any) -> Data:
    """Rows of the data folder; each that can't be used, or not as it is, is told by its line."""
    folder = find_data(options)
    imported = import_rewriter_data(folder / "train.jsonl", folder / CORPUS)
    problems, questions = list(imported.problems), imported.questions
    if (held_out_file := folder / "eval.jsonl").exists():
        held = import_rewriter_data(held_out_file, folder / CORPUS)
        problems += [problem for problem in held.problems if problem.startswith(str(held_out_file))]
        held_questions = held.questions
    else:
        questions, held_questions = split_by_document(questions, 0.2, options.seed)
        held_out_file = folder / "train.jsonl"
    train, more = make_rows(tokenizer, questions, options.rewrite, folder / "train.jsonl")
    held_rows, yet_more = make_rows(tokenizer, held_questions, options.rewrite, held_out_file)
    both = {row.prompt for row in train} & {row.prompt for row in held_rows}
    if both:
        problems.append(f"{held_out_file}: {len(both)} queries are trained on as well; they are not measured by")
    report_problems([*problems, *more, *yet_more])
    held_rows = [row for row in held_rows if row.prompt not in both]
    if not train or not held_rows:
        raise UserError(f"{folder}: {len(train)} queries to train on and {len(held_rows)} held out; both are needed")
    count = min(options.eval_queries or len(held_rows), len(held_rows))
    chosen = random.Random(options.seed).sample(held_rows, count)
    print(f"{folder}: {len(imported.documents)} documents, {len(train)} queries to train on, {count} to measure by")
    return Data(folder, imported.documents, train, chosen)


def find_data(options: Options) -> Path:
    """The folder that was named, or the one that is there, or one of sample data."""
    if options.data:
        for name in ("train.jsonl", CORPUS):
            if not (options.data / name).is_file():
                raise UserError(f"{options.data / name} is missing; --data needs train.jsonl and {CORPUS}")
        return options.data
    for folder in (Path("data/rewriter"), Path("data")):
        there = [name for name in ("train.jsonl", CORPUS) if (folder / name).is_file()]
        if len(there) == 2:
            return folder
        if there:
            raise UserError(f"{folder} has {there[0]} alone; it takes train.jsonl and {CORPUS}, or name another --data")
    folder = options.run_dir / "sample"
    if not (folder / "eval.jsonl").exists():  # which is written last
        make_sample(folder, options.seed)
    print(f"sample data, as neither data/ nor data/rewriter has train.jsonl and {CORPUS}")
    return folder


def make_sample(folder: Path, seed: int) -> None:
    """Queries and corpus out of sample_data/: documents of its answers, each chunk a doc."""
    rows, _ = to_rows(read_records(str(QUESTIONS), Path()), Columns())
    library = assemble(rows, {})
    cut = StoreOptions(NO_EMBEDDER, chunk_tokens=80, chunk_overlap=0)
    store = DocumentStore.build(folder / "chunks", library.documents, cut)
    questions, _ = make_questions(rows, library.doc_of_row, store.chunks)
    export_rewriter_data(folder, store.chunks, *split_by_document(questions, 0.2, seed))


def report_problems(problems: Sequence[str], shown: int = 20) -> None:
    for problem in problems[:shown]:
        print(problem)
    if problems:
        left = f", of which {len(problems) - shown} are not shown" if len(problems) > shown else ""
        print(f"{len(problems)} rows with problems{left}")


# Search


def open_search(options: Options, data: Data) -> Search:
    """The best k documents of a query by the chosen retriever; of a document cut into chunks, its best counts."""
    store = open_store(options, data)
    wanted = {document.id for document in data.documents}
    by_chunk = options.store is not None
    if by_chunk and not wanted <= store.chunk_by_id.keys():
        missing = len(wanted - store.chunk_by_id.keys())
        raise UserError(f"--store {options.store} lacks {missing} of the {len(wanted)} documents of {data.folder}")
    pieces = 1 if by_chunk else max(Counter(chunk.doc_id for chunk in store.chunks).values())
    reranker, mode = Reranker(options.reranker) if options.reranker else None, MODES[options.retriever]

    def search(queries: Sequence[str]) -> list[list[str]]:
        # The best k documents are among the best k x pieces chunks, as no document has more pieces.
        hits = store.search(queries, options.k * pieces, mode, reranker=reranker)
        ids = [[hit.chunk_id if by_chunk else hit.doc_id for hit in found] for found in hits]
        return [list(dict.fromkeys(found))[: options.k] for found in ids]

    return search


def open_store(options: Options, data: Data) -> DocumentStore:
    """The named store, or one of the corpus beside it, under a name that says of which corpus."""
    if options.store:
        return DocumentStore.open(options.store)
    words = options.retriever == "bm25"
    # Words alone need no cutting: a document is searched as a whole.
    build = StoreOptions(NO_EMBEDDER, chunk_tokens=10**9) if words else StoreOptions(options.embedder)
    digest = hashlib.sha256(f"{build}".encode() + (data.folder / CORPUS).read_bytes()).hexdigest()[:8]
    path = data.folder / f"store-{'words' if words else 'vectors'}-{digest}"
    if (path / "store.json").exists() and read_card(path).complete:
        return DocumentStore.open(path)
    return DocumentStore.build(path, data.documents, build)


# Models


def load_tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    if tokenizer.eos_token_id is None:
        raise UserError(f"the tokenizer of {model} has no eos token, so no rewrite could end; use another --model")
    return tokenizer


def policy_of(options: Options, lm: Any, tokenizer: Any) -> Policy:
    """A model as it samples; the one of the actors has an adapter besides, if there is to be one."""
    return Policy(lm, options.sampling, tokenizer.eos_token_id, with_padding(tokenizer).pad_token_id)


def actors_of(options: Options, lm: Any, tokenizer: Any) -> Actors:
    pad_id = with_padding(tokenizer).pad_token_id
    actors = make_actors(
        lm, options.actor, options.sampling, tokenizer.eos_token_id, pad_id, options.ppo.micro_batch, options.seed
    )
    trained = sum(weight.numel() for weight in actors.parameters() if weight.requires_grad)
    own = 0 if options.actor.shared else sum(weight.numel() for weight in actors.value_model.parameters())
    print(f"{trained:,} weights are trained, {own:,} of them the value model's ({own * 16 / 2**20:,.0f} MiB with Adam)")
    if options.sampling.top_p < 1:
        print(
            f"--top-p {options.sampling.top_p}: rewrites come from the likeliest tokens, their log-probabilities from "
            "all; the ratio stays exact, the gradient is a little biased (--top-p 1 is not)"
        )
    return actors


def warm_start(options: Options, data: Data, model: str, tokenizer: Any) -> str:
    """The folder of the model that PPO starts from; made once."""
    folder = options.run_dir / "warm"
    if not folder.exists():
        texts = {document.id: document.text for document in data.documents}
        pad_id = with_padding(tokenizer).pad_token_id
        most = options.sampling.max_new_tokens
        lm = warm_started(model, tokenizer, data.train, texts, options.warm, most, pad_id, options.seed)
        save_lm(policy_of(options, lm, tokenizer), model, tokenizer, folder)
    return str(folder)


# Training


def train(options: Options, data: Data, actors: Actors, tokenizer: Any, scorer: Scorer) -> None:
    """From what state/ holds to the last update."""
    norms: list[float] = []
    optimizer = make_optimizer(actors, options.ppo, norms)
    step, rows = load_checkpoint(options.run_dir / "state", actors, optimizer) or (0, [])
    if step:
        print(f"going on from update {step}")
    updates = options.max_steps - step
    if updates <= 0:
        return
    with open_tracker(options.report_to, options.run_dir, options.run_dir.name, plain(options)) as tracker:
        run = Run(options, actors, optimizer, scorer, tracker, norms, rows)
        batches = batches_from(step, options, data.train, actors.policy.pad_id)
        if options.backend == "own":
            train_own(actors, optimizer, batches, updates, scorer, options.ppo, run.after)
        else:
            train_trl(actors, optimizer, batches, updates, scorer, options.ppo, run.after, data.train,
                      with_padding(tokenizer), options.run_dir)  # fmt: skip


def batches_from(step: int, options: Options, rows: Sequence[Row], pad_id: int) -> Iterator[Batch]:
    """The updates' prompts. Each update has random numbers of its own, so that it needs to know no other's."""
    while True:
        random_seed = options.seed * 1_000_003 + step
        torch.manual_seed(random_seed)
        np.random.seed(random_seed)  # TRL draws the order of its passes from it
        chosen = in_rounds(rows, step, options.ppo.batch_size, options.seed)
        yield Batch(chosen, left_padded([row.prompt for row in chosen], pad_id))
        step += 1


@dataclass
class Run:
    """What is done after every update."""

    options: Options
    actors: Actors
    optimizer: torch.optim.Optimizer
    scorer: Scorer
    tracker: Tracker
    norms: list[float]
    rows: list[dict[str, float]]
    """The figures of all updates."""
    started: float = field(default_factory=time.perf_counter)

    def after(self, figures: dict[str, float]) -> None:
        """Show and keep an update's figures; save everything when it is time to."""
        step, size = len(self.rows) + 1, self.options.ppo.batch_size
        now = time.perf_counter()
        row = {"step": step} | figures | {
            "episode": step * size, "policy/entropy": figures["policy/entropy_avg"],
            "lr": self.options.ppo.learning_rate, "grad_norm": sum(self.norms) / len(self.norms),
            "seconds": now - self.started,
        }  # fmt: skip
        bad = next((name for name, value in row.items() if not math.isfinite(value)), None)
        if bad:
            raise UserError(f"update {step}: {bad} is {row[bad]}; training diverged, lower --learning-rate")
        self.rows.append(row)
        self.show(step, row)
        if step % self.options.save_every == 0 or step == self.options.max_steps:
            save_checkpoint(self.options.run_dir / "state", step, self.actors, self.optimizer, self.rows)
        self.norms.clear()
        self.started = time.perf_counter()

    def show(self, step: int, row: dict[str, float]) -> None:
        """On the console, in the run folder, and wherever else metrics go."""
        run_dir, episodes = self.options.run_dir, self.scorer.episodes
        first = (step - 1) * self.options.ppo.batch_size + 1
        for number, episode in enumerate(episodes, first):
            print(f"Episode {number}: Reward = {episode.reward:.3f}")
        print(
            f"update {step} of {self.options.max_steps}, {row['seconds']:.1f} s: reward {row['objective/scores']:.3f}, "
            f"KL {row['objective/kl']:.3f}, entropy {row['policy/entropy']:.2f}, ratio {row['val/ratio']:.3f}, "
            f"losses {row['loss/policy_avg']:.3f} and {row['loss/value_avg']:.3f}",
            flush=True,
        )
        write_jsonl(run_dir / "episodes" / f"{step:06d}.jsonl", episodes)
        write_jsonl(run_dir / "metrics.jsonl", self.rows)
        draw_metrics(self.rows, run_dir / "training.png")
        self.tracker.log(step, row)


# Evaluation


def measure_before(options: Options, data: Data, policy: Policy, tokenizer: Any, search: Search) -> list[Measured]:
    """The held-out queries as they are, and by the untrained model; measured once, kept in the run folder."""
    path = options.run_dir / "evaluation_before.json"
    if not path.exists():
        queries = [row.query for row in data.held_out]
        ways = [measured(RAW, data.held_out, queries, search, options.k)]
        ways += both_ways(
            "untrained", [row.prompt for row in data.held_out], 0, options, data, policy, tokenizer, search
        )
        asked = [prompt_tokens(tokenizer, PSEUDO_ANSWER, query) for query in queries]
        most = options.pseudo_answer_tokens
        ways += both_ways("pseudo-answer (HyDE)", asked, most, options, data, policy, tokenizer, search)
        save_measured(path, ways)
    ways = load_measured(path)
    print_measured(ways, options.k)
    return ways


def measure_warm(
    options: Options, before: Sequence[Measured], data: Data, policy: Policy, tokenizer: Any, search: Search
) -> list[Measured]:
    """With the model after its warm start, which is measured once, too."""
    path = options.run_dir / "evaluation_warm.json"
    if not path.exists():
        prompts = [row.prompt for row in data.held_out]
        save_measured(path, both_ways("warm", prompts, 0, options, data, policy, tokenizer, search))
    ways = [*before, *load_measured(path)]
    print_measured(ways, options.k)
    return ways


def both_ways(
    name: str, prompts: Sequence[Sequence[int]], most: int, options: Options, data: Data, policy: Policy,
    tokenizer: Any, search: Search,
) -> list[Measured]:  # fmt: skip
    """What the model says to these prompts, searched for alone and with the query."""
    texts = write_texts(policy, tokenizer, prompts, most)
    weight = options.rewrite.query_weight
    pairs = list(zip(data.held_out, texts, strict=True))
    alone = [final_query(row.query, text, "replace", 1) for row, text in pairs]
    together = [final_query(row.query, text, "append", weight) for row, text in pairs]
    return [
        measured(name, data.held_out, alone, search, options.k),
        measured(f"query x {weight} + {name}", data.held_out, together, search, options.k),
    ]


def report_after(
    options: Options, before: Sequence[Measured], data: Data, actors: Actors, tokenizer: Any, search: Search
) -> None:
    """The trained model beside all that was measured before."""
    prompts = [row.prompt for row in data.held_out]
    ways = [*before, *both_ways("trained", prompts, 0, options, data, actors.policy, tokenizer, search)]
    print_measured(ways, options.k)
    save_measured(options.run_dir / "evaluation_ways.json", ways)
    write_jsonl(options.run_dir / "evaluation.jsonl", result_rows(ways))
    place = 1 if options.rewrite.mode == "append" else 0
    trained, untrained = ways[-2 + place], ways[1 + place]
    warm = [ways[-4 + place]] if options.warm.warm_steps else []
    for other in (*warm, untrained, ways[0]):
        gain = difference(trained, other)
        print(f"{trained.way} over {other.way}: {gain['mean']:+.3f} ({span(gain)}), paired")


if __name__ == "__main__":
    run_script(main, description=__doc__)
