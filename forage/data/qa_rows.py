"""QARow: one question, answer and page address of a data set, whatever that data set calls its columns."""

from __future__ import annotations

import csv
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from forage.data.options import Columns
from forage.errors import UserError
from forage.files import json_lines
from forage.machine import hub_reachable
from forage.text import composed, say

# Names that data sets give each column, likeliest first; case is ignored.
KindsNames: TypeAlias = Mapping[str, tuple[str, ...]]
KNOWN_NAMES: KindsNames = {
    "question": ("question", "query", "prompt", "input", "text"),
    "answer": ("answer", "response", "output", "ground_truth", "answers"),
    "url": ("document_url", "url", "source_url", "link", "page_url"),
    "id": ("question_id", "id", "qid", "_id", "query_id"),
    "focus": ("question_focus", "focus", "title", "topic", "entity"),
    "type": ("question_type", "qtype", "type"),
}
NEEDED = ("question", "answer")
ALTERNATIVES = "use --dataset-name sample, or the path of a .jsonl, .jsonl.gz, .csv or .parquet file"


@dataclass(frozen=True, slots=True)
class QARow:
    """A row of a data set; missing values are empty strings."""

    id: str
    question: str
    answer: str
    url: str
    focus: str
    type: str


def find_columns(
    names: Iterable[str], wanted: Columns, needs: Sequence[str] = NEEDED, usual: KindsNames = KNOWN_NAMES
) -> dict[str, str]:
    """The column of each kind by its usual names, empty where there is none, unless it is needed.

    Example: names Question, Answer, qtype -> question: Question, answer: Answer, type: qtype, and the others empty.
    """
    names = list(names)
    by_lower = {name.lower(): name for name in reversed(names)}
    found = {}
    for kind, known in usual.items():
        asked = getattr(wanted, f"{kind}_column")
        own = next((name for name in names if composed(name) == composed(asked)), "")
        if asked and not own:
            raise UserError(f"--{kind}-column {asked}: no such column; the data set has {', '.join(names)}")
        found[kind] = own or next((by_lower[name] for name in known if name in by_lower), "")
    for kind in needs:
        if not found[kind]:
            raise UserError(f"no {kind} column among {', '.join(names)}; name it with --{kind}-column")
    return found


def to_rows(
    records: Iterable[Mapping[str, Any]],
    wanted: Columns,
    needs: Sequence[str] = NEEDED,
    usual: KindsNames = KNOWN_NAMES,
    source: str = "the data set",
) -> tuple[list[QARow], Counter[str]]:
    """Rows of all records with unique ids, and how many rows lack a question, an answer or a URL."""
    records = list(records)
    if not records:
        raise UserError(f"{source} has no rows")
    names = dict.fromkeys(name for record in records for name in record)
    columns = find_columns(names, wanted, needs, usual)
    if unused := sorted(names.keys() - set(columns.values())):
        read = ", ".join(f"{kind}={name}" for kind, name in columns.items() if name)
        say(f"{source}: columns {read}; not read: {', '.join(unused)} (--question-column and so on)", sys.stderr)
    rows, lacking, seen = list[QARow](), Counter[str](), Counter[str]()
    given, taken = {_text(record.get(columns["id"])) for record in records}, set[str]()
    for number, record in enumerate(records, 1):
        values = {kind: _text(record.get(name)) if name else "" for kind, name in columns.items()}
        row_id = own = values["id"] or f"row-{number}"
        while own in taken or (own in given and own != values["id"]):  # MedQuAD repeats 34 of its ids
            seen[row_id] += 1
            own = f"{row_id}-r{seen[row_id] + 1}"
        taken.add(own)
        values["id"] = own
        rows.append(QARow(**values))
        lacking.update(f"no {kind}" for kind in ("question", "answer", "url") if not values[kind])
    return rows, lacking


def read_records(dataset_name: str, cache_dir: Path) -> Iterator[dict[str, Any]]:
    """The records of a local file, recognised by its suffix, or of a hub data set's split train."""
    path = Path(dataset_name)
    kind = next((kind for kind in FILES if path.name.endswith(kind)), "")
    if path.exists() and not kind:
        raise UserError(f"{path} is not a .jsonl, .jsonl.gz, .csv or .parquet file; {ALTERNATIVES}")
    if not kind:
        return _hub_records(dataset_name, cache_dir)
    if not path.is_file():
        raise UserError(f"{path}: no such file; {ALTERNATIVES}")
    return FILES[kind](path)


def _json_records(path: Path) -> Iterator[dict[str, Any]]:
    for number, record in json_lines(path):
        if not isinstance(record, dict):
            raise UserError(f"{path}:{number}: not a JSON object; each line must be one row")
        yield record


def _parquet_records(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        yield from pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UserError(f"{path} is not a readable parquet file ({error}); download it again") from error


def _csv_records(path: Path) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(2**30)  # some answers are longer than the default of 128 KiB
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            head = file.readline()
            file.seek(0)
            apart = max(",;\t", key=head.count)
            reader = csv.DictReader(file, delimiter=apart, strict=True)  # a quote that nothing closes is an error
            for record in reader:
                if None in record:
                    raise UserError(
                        f"{path}:{reader.line_num}: more cells than columns; quote a cell with {apart!r} in it"
                    )
                yield record
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"{path} can't be read to its end ({error}); save it as UTF-8, with every quote closed"
        ) from error


FILES = {".jsonl": _json_records, ".jsonl.gz": _json_records, ".csv": _csv_records, ".parquet": _parquet_records}


def _hub_records(name: str, cache_dir: Path) -> Iterator[dict[str, Any]]:
    reachable = hub_reachable()
    if not reachable:
        os.environ["HF_HUB_OFFLINE"] = "1"  # before the import; otherwise the library retries for half a minute
    import datasets
    from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError

    try:
        data = datasets.load_dataset(name, split="train", cache_dir=str(cache_dir))
    except (DatasetNotFoundError, DatasetGenerationError, OSError, ValueError) as error:
        why = "can't be loaded from the hub" if reachable else "is not in the cache, and the hub can't be reached"
        raise UserError(f"data set {name!r} {why}; {ALTERNATIVES}") from error
    return map(dict, data)


def _text(value: Any) -> str:
    """A cell as text: empty for null, the first item of a list."""
    if isinstance(value, list):
        value = value[0] if value else None
    return "" if value is None else composed(str(value).strip())
