"""QARow: one question, answer and page address of a data set, whatever that data set calls its columns."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from forage.data.options import Columns
from forage.errors import UserError
from forage.files import json_lines
from forage.machine import hub_reachable
from forage.spool import digest, new_rows

# Names that data sets give each column, likeliest first; case is ignored.
KNOWN_NAMES: dict[str, tuple[str, ...]] = {
    "question": ("question", "query", "prompt", "input", "text"),
    "answer": ("answer", "response", "output", "ground_truth", "answers"),
    "url": ("document_url", "url", "source_url", "link", "page_url"),
    "id": ("question_id", "id", "qid", "_id", "query_id"),
    "focus": ("question_focus", "focus", "title", "topic", "entity"),
    "type": ("question_type", "qtype", "type"),
}
HEAD = 1_000  # records whose columns are those of all
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


def find_columns(names: Iterable[str], wanted: Columns) -> dict[str, str]:
    """The column of each kind, empty where there is none; a question and an answer column are required.

    Example: names Question, Answer, qtype -> question: Question, answer: Answer, type: qtype, and the others empty.
    """
    names = list(names)
    by_lower = {name.lower(): name for name in reversed(names)}
    found = {}
    for kind, known in KNOWN_NAMES.items():
        asked = getattr(wanted, f"{kind}_column")
        if asked and asked not in names:
            raise UserError(f"--{kind}-column {asked}: no such column; the data set has {', '.join(names)}")
        found[kind] = asked or next((by_lower[name] for name in known if name in by_lower), "")
    for kind in ("question", "answer"):
        if not found[kind]:
            raise UserError(f"no {kind} column among {', '.join(names)}; name it with --{kind}-column")
    return found


class ColumnFinder:
    """The column of each kind, found from the first records; a later one that would have changed that is an error."""

    def __init__(self, head: Iterable[Mapping[str, Any]], wanted: Columns, *, more: bool) -> None:
        """With `more` records to come, a column that was asked for may still appear."""
        self.wanted = wanted
        self.asked = [name for kind in KNOWN_NAMES if (name := getattr(wanted, f"{kind}_column"))]
        self.names = dict.fromkeys(name for record in head for name in record)
        self.columns = find_columns([*self.names, *(self.asked if more else ())], wanted)

    def check(self, record: Mapping[str, Any], number: int) -> None:
        """Refuse a record with a column that would be taken in place of the one that was found."""
        if record.keys() <= self.names.keys():
            return
        self.names |= dict.fromkeys(record)
        for kind, name in find_columns([*self.names, *self.asked], self.wanted).items():
            if name != self.columns[kind]:
                taken = f" (taken so far: {self.columns[kind]})" if self.columns[kind] else ""
                raise UserError(
                    f"row {number:,} has a column {name}, which the first {HEAD:,} rows lack{taken}; say with "
                    f"--{kind}-column which one has the {kind}"
                )

    def end(self) -> None:
        """Refuse a column that was asked for and never came."""
        find_columns(self.names, self.wanted)


def to_rows(
    records: Iterable[Mapping[str, Any]], wanted: Columns, near: Path | None = None
) -> tuple[Sequence[QARow], Counter[str]]:
    """Rows of all records with unique ids, and how many rows lack a question, an answer or a URL.

    With a folder `near`, the rows lie in a file there, and memory holds a digest of each id.
    """
    records = iter(records)
    head = list(islice(records, HEAD))
    if not head:
        raise UserError("the data set has no rows")
    finder = ColumnFinder(head, wanted, more=len(head) == HEAD)
    rows, lacking, seen = new_rows(near), Counter[str](), Counter[bytes]()
    for number, record in enumerate(chain(head, records), 1):
        finder.check(record, number)
        values = {kind: _text(record.get(name)) if name else "" for kind, name in finder.columns.items()}
        row_id = values["id"] or f"row-{number}"
        key = digest(row_id)
        seen[key] += 1
        values["id"] = row_id if seen[key] == 1 else f"{row_id}-r{seen[key]}"  # MedQuAD repeats 34 of its ids
        rows.append(QARow(**values))
        lacking.update(f"no {kind}" for kind in ("question", "answer", "url") if not values[kind])
    finder.end()
    return rows, lacking


def read_records(dataset_name: str, cache_dir: Path, split: str = "train") -> Iterator[dict[str, Any]]:
    """The records of a local file, recognised by its suffix, or of a data set on the hub; one at a time."""
    path = Path(dataset_name)
    if path.suffix in (".jsonl", ".csv", ".parquet") or path.name.endswith(".jsonl.gz"):
        if not path.is_file():
            raise UserError(f"{path}: no such file; {ALTERNATIVES}")
        return _file_records(path)
    if path.exists():
        raise UserError(f"{path} is not a .jsonl, .jsonl.gz, .csv or .parquet file; {ALTERNATIVES}")
    return _hub_records(dataset_name, cache_dir, split)


def _file_records(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix == ".parquet":
        yield from _parquet_records(path)
        return
    if path.suffix == ".csv":
        yield from _csv_records(path)
        return
    for number, record in json_lines(path):
        if not isinstance(record, dict):
            raise UserError(f"{path}:{number}: not a JSON object; each line must be one row")
        yield record


def _parquet_records(path: Path) -> Iterator[dict[str, Any]]:
    """In batches, so that a row group of a million rows is never in memory as Python's objects."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path, buffer_size=2**20) as file:
            for batch in file.iter_batches(batch_size=1_000):
                yield from batch.to_pylist()
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UserError(f"{path} is not a readable parquet file ({error}); download it again") from error


def _csv_records(path: Path) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(2**30)  # some answers are longer than the default of 128 KiB
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            for record in reader:
                if None in record:
                    raise UserError(f"{path}:{reader.line_num}: more cells than columns; quote what has commas in it")
                yield record
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} can't be read to its end ({error}); save it as UTF-8") from error


def _hub_records(name: str, cache_dir: Path, split: str) -> Iterator[dict[str, Any]]:
    """Rows of the file that the library keeps in the cache, which it maps into memory and does not load.

    Its streaming would download the data set again in each run, and not work without a network.
    """
    reachable = hub_reachable()
    if not reachable:
        os.environ["HF_HUB_OFFLINE"] = "1"  # before the import; otherwise the library retries for half a minute
    import datasets
    from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError

    try:
        data = datasets.load_dataset(name, split=split, cache_dir=str(cache_dir))
    except (DatasetNotFoundError, DatasetGenerationError, OSError, ValueError) as error:
        why = "can't be loaded from the hub" if reachable else "is not in the cache, and the hub can't be reached"
        raise UserError(f"data set {name!r} {why}; {ALTERNATIVES}") from error
    return map(dict, data)


def _text(value: Any) -> str:
    """A cell as text: empty for null, the first item of a list."""
    if isinstance(value, list):
        value = value[0] if value else None
    return "" if value is None else str(value).strip()
