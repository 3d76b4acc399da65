"""Report: draws a run's plots, and writes run.html, one file with its curves, figures and episodes to look through.

    python -m forage.runs.report runs/a
    python -m forage.runs.report runs/a runs/b

A second run's curves are drawn over those of the first, and its episodes are included. The page loads nothing from
elsewhere. It is made from the files of the run folder alone, so it can be made again at any time. Texts are made
printable, all of them at the end, so that no escape sequence and no character that turns the direction of a line
reaches the page.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from forage.agent.episode import STOPS, Episode, episodes_in
from forage.agent.protocol import FAULTS
from forage.arguments import POSITIONAL, run_script
from forage.data.records import Question
from forage.errors import UserError
from forage.files import json_lines, replacing
from forage.metrics import grouped
from forage.policy.manifest import read_policy_manifest
from forage.runs.plots import draw_plots
from forage.runs.stats import (
    WAIT,
    StepStats,
    advice,
    before_beside_after,
    cost,
    data_of,
    first_and_last,
    one_question,
    questions_of,
    read_evaluations,
    read_stats,
    verdict_on_run,
)
from forage.text import changed, encodable, printable, titled

TORN = "�"  # what a tokenizer gives for a part of a character
MOST_PARTS = 8  # tokens that a character may be torn into
Decode: TypeAlias = Callable[[tuple[int, ...]], str]


def contents(run_dirs: Sequence[Path], max_episodes: int, max_tokens: int) -> dict[str, Any]:
    """All that the page shows of one run or two.

    Of too many episodes the latest are kept, as many of each run, and the others counted. The latest `max_tokens` of
    them come with their tokens and with the passages that answer their question.
    """
    histories = [stats_of(path) for path in run_dirs]
    rows: list[dict[str, Any]] = []
    texts, left_out = dict[str, int](), 0
    passages: dict[str, str] = {}
    for number, (run_dir, stats) in enumerate(zip(run_dirs, histories, strict=True)):
        kept, total = latest(run_dir, stats, max_episodes // len(run_dirs))
        left_out += total - len(kept)
        most = max_tokens // len(run_dirs)
        decode = decoder_of(run_dir) if kept and most else None
        data = data_of(run_dir)
        questions = questions_of(data, {episode.question_id for _, episode, _ in kept})
        first = {episode.question_id for _, episode, _ in kept[:most]}
        passages |= passages_of(
            data, {c for name in first & questions.keys() for c in questions[name].relevant_chunk_ids}
        )
        for place, (step, episode, lead) in enumerate(kept):
            shown = row(step, episode, lead, questions.get(episode.question_id)) | {"run": number}
            if place < most:
                shown["tokens"] = tokens(episode, decode, texts)
            rows.append(shown)
    held = {
        "runs": [
            {
                "name": path.resolve().name, "curves": curves(stats, read_evaluations(path)),
                "notes": [*stats[-1].notes, *filter(None, [advice(stats)]), *told_of(path), cost(stats)],
                "tables": tables(stats[-1]),
            }
            for path, stats in zip(run_dirs, histories, strict=True)
        ],
        "stops": STOPS, "faults": FAULTS, "left_out": left_out, "texts": list(texts), "passages": passages,
        "episodes": rows,
    }  # fmt: skip
    return changed(held, lambda text: printable(encodable(text)))


def told_of(run_dir: Path) -> list[str]:
    """What training changed: a table of before, after and plain RAG, the verdict, and one question's episodes."""
    both, table = first_and_last(run_dir), "\n".join(before_beside_after(run_dir))
    return [*filter(None, [table]), *verdict_on_run(run_dir, *both), *one_question(run_dir, *both)]


def stats_of(run_dir: Path) -> list[StepStats]:
    if stats := read_stats(run_dir):
        return stats
    raise UserError(f"{run_dir} has no training_stats_<step>.json; is it the folder of a training run?")


# The last step in words and figures


def tables(stats: StepStats) -> dict[str, Mapping[str, float]]:
    """Figures by caption: what no curve shows of a step. Example: {"Seconds": {"rollout": 2}}."""
    found = {
        "Ended because": explained(stats.stops, STOPS), "Protocol faults": explained(stats.faults, FAULTS),
        "Seconds": stats.seconds, "Workers": stats.workers, "Servers": stats.servers,
    }  # fmt: skip
    return {caption: rows for caption, rows in found.items() if rows}


def explained(counts: Mapping[str, int], words: Mapping[str, str]) -> dict[str, float]:
    """Counts under names with their words. Example: {"turns": 2} gives {"turns: the last turn allowed ...": 2}."""
    return {f"{name}: {words[name]}" if name in words else name: count for name, count in counts.items()}


# Episodes


def latest(run_dir: Path, stats: Sequence[StepStats], most: int) -> tuple[list[tuple[int, Episode, float]], int]:
    """(step, episode, lead over its group) of the latest steps, the last step first; and how many there are in all."""
    kept: list[tuple[int, Episode, float]] = []
    total = 0
    for each in reversed(stats):
        if len(kept) >= most:
            total += each.episodes["count"]
            continue
        found = list(episodes_in(run_dir / "episodes" / f"{each.step:06d}"))
        total += len(found)
        pairs = zip(found, leads(found), strict=True)
        kept += [(each.step, episode, lead) for episode, lead in pairs][: most - len(kept)]
    return kept, total


def leads(episodes: Sequence[Episode]) -> list[float]:
    """Each reward less the mean of its question's: what every advantage is made of.

    Example: rewards 0, 1 of one question and .5 of another give -.5, .5 and 0.
    """
    groups = grouped((episode.question_id, episode.reward) for episode in episodes)
    means = {name: math.fsum(rewards) / len(rewards) for name, rewards in groups.items()}
    return [episode.reward - means[episode.question_id] for episode in episodes]


def row(step: int, episode: Episode, lead: float, question: Question | None) -> dict[str, Any]:
    """An episode as the page has it. Each search's hits come with whether the data calls them relevant."""
    relevant = set(question.relevant_chunk_ids) if question else set()
    return {
        "step": step, "id": episode.id, "question_id": episode.question_id, "reward": episode.reward,
        "lead": round(lead, 6), "rewards": episode.rewards, "stop": episode.stop, "answer": episode.answer,
        "text": episode.transcript, "faults": episode.faults, "type": question.question_type if question else "",
        "question": question.question if question else None, "reference": question.answer if question else None,
        "wanted": question.relevant_chunk_ids if question else (),
        "searches": [[s.turn, s.query, [[hit, hit in relevant] for hit in s.hits]] for s in episode.searches],
    }  # fmt: skip


def passages_of(data: Path | None, wanted: Collection[str]) -> dict[str, str]:
    """The texts of some chunks; reads no further than the last of them."""
    found: dict[str, str] = {}
    if data is None or not wanted or not (data / "store" / "chunks.jsonl").is_file():
        return found
    for _, row in json_lines(data / "store" / "chunks.jsonl"):
        if (name := f"{row['doc_id']}#{row['index']}") in wanted:
            found[name] = titled(row["title"], row["text"])
            if len(found) == len(wanted):
                break
    return found


# Tokens


def decoder_of(run_dir: Path) -> Decode | None:
    """The base model's tokenizer as a function; None where the run's model.json or the model is not here."""
    # transformers takes seconds to import, which a page without tokens need not wait for.
    from forage.policy.policy import load_tokenizer

    try:
        tokenizer = load_tokenizer(read_policy_manifest(run_dir))
    except (UserError, OSError, ValueError):
        return None
    return cache(lambda ids: str(tokenizer.decode(list(ids))))


def texts_of(ids: Sequence[int], decode: Decode) -> list[str]:
    """The text of each token. Where several make up one character, the first has all of it and the others have ""."""
    found: list[str] = []
    while len(found) < len(ids):
        found += _next_texts(tuple(ids[len(found) : len(found) + MOST_PARTS]), decode)
    return found


def _next_texts(ids: tuple[int, ...], decode: Decode) -> list[str]:
    for length in range(1, len(ids) + 1):
        text = decode(ids[:length])
        if TORN not in text:
            return [text, *[""] * (length - 1)]
    return [decode(ids[:1])]


def tokens(episode: Episode, decode: Decode | None, numbers: dict[str, int]) -> dict[str, Any] | None:
    """Which text each token is, how long the parts are that the policy did not write and did, and its tokens' figures.

    `numbers`: each text's number, which this extends. None without a tokenizer, or where the texts don't add up to the
    transcript, as one's may depend on what is before it.

    Example of Episode's docstring: {"texts": [1, 2, ...], "parts": [3, 2, 3, 2], "logprobs": [-.2, -.1, -.7, 0]}.
    """
    texts = texts_of(episode.ids, decode) if decode else []
    if not decode or "".join(texts) != episode.transcript:
        return None
    runs = [(sampled, len(list(part))) for sampled, part in groupby(episode.mask)]
    parts = [length for _, length in runs]
    figures = {
        "texts": [numbers.setdefault(text, len(numbers)) for text in texts],
        "parts": [0, *parts] if runs and runs[0][0] else parts,
        "logprobs": list(_sampled(episode, episode.logprobs)),
    }
    return figures | ({"credits": list(_sampled(episode, episode.credits))} if episode.credits else {})


def _sampled(episode: Episode, values: Sequence[float]) -> Iterator[float]:
    return (round(value, 3) for value, sampled in zip(values, episode.mask, strict=True) if sampled)


# Figures


def curves(
    stats: Sequence[StepStats], evaluations: Mapping[int, Mapping[str, Any]]
) -> dict[str, list[tuple[int, float]]]:
    """Points (step, value) by figure. Example: {"reward overall": [(0, 0.2), (1, 0.3)], "kl": ...}."""
    found: dict[str, list[tuple[int, float]]] = {}
    for step in stats:
        figures = {f"reward {name}": summary["mean"] for name, summary in step.summary.items()} | step.training
        figures |= {f"episodes: {name}": float(value) for name, value in step.episodes.items()}  # type: ignore[arg-type]
        figures |= {f"seconds: {WAIT}": step.seconds[WAIT]} if WAIT in step.seconds else {}
        flat = {"": step.groups["flat"]} | {f" of {name}": count for name, count in step.flat_by_reward.items()}
        figures |= {f"flat groups{name}, share": n / max(1, step.groups["total"]) for name, n in flat.items()}
        for name, value in figures.items():
            found.setdefault(name, []).append((step.step, value))
    for version in sorted(evaluations):
        for name, interval in evaluations[version].items():
            found.setdefault(f"held-out {name}", []).append((version, interval["mean"]))
    return found


# The page

HERE = Path(__file__).parent
SCRIPTS = ("page_figures.js", "page_episode.js", "page.js")
# The latest episodes that a page has, and how many of them come with tokens: of a whole run, and while it trains, where
# the page must soon be written.
WHOLE, LIVE = (10_000, 1_000), (500, 0)
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src '{js_hash}'; style-src '{css_hash}'">
<title>{title}</title>
<style>{css}</style>
<body>
<script type="application/json" id="data">{data}</script>
<script>{js}</script>
</body>
</html>
"""


def write_page(run_dir: Path, second: Path | None = None, *, live: bool = False) -> dict[str, Any]:
    """Write run.html into the first run's folder, and return what it holds."""
    held = contents([run_dir, second] if second else [run_dir], *(LIVE if live else WHOLE))
    css, js = (HERE / "page.css").read_text(), "\n".join((HERE / name).read_text() for name in SCRIPTS)
    title = html.escape(printable(encodable(run_dir.resolve().name)))
    page = PAGE.format(title=title, css=css, js=js, css_hash=_hash(css), js_hash=_hash(js), data=packed(held))
    with replacing(run_dir / "run.html") as file:
        file.write(page)
    return held


def packed(held: Mapping[str, Any]) -> str:
    """JSON of base64 of gzip of JSON: its alphabet has no character that HTML could take for markup."""
    text = encodable(json.dumps(held, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    return json.dumps(base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode())


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@dataclass(frozen=True)
class Options:
    """Draw a run's plots, and write its page."""

    run_dir: Annotated[Path, POSITIONAL]
    """Run folder."""
    second: Annotated[Path | None, POSITIONAL] = None
    """Another run folder. Its curves are drawn over those of the first, and its episodes are included."""
    live: bool = False
    """Include only the latest 500 episodes, without tokens, as during training."""


def main(options: Options) -> None:
    draw_plots(options.run_dir, stats_of(options.run_dir), read_evaluations(options.run_dir))
    held = write_page(options.run_dir, options.second, live=options.live)
    print(f"{options.run_dir / 'run.html'} shows its curves and {len(held['episodes'])} of its episodes")


if __name__ == "__main__":
    run_script(main, description=__doc__)
