"""Files of episodes in a folder: plain while they are written, compressed once their step is finished."""

from __future__ import annotations

import gzip
from pathlib import Path

from forage.files import replacing


def episode_files(folder: Path) -> list[Path]:
    """The .jsonl and .jsonl.gz files; only the compressed one of a pair, which a killed process leaves."""
    return sorted(path for path in folder.glob("*.jsonl*") if path == _either(path))


def compress(path: Path) -> None:
    """Replace a .jsonl by a .jsonl.gz that was read back and holds the same. At no moment is neither there."""
    whole, packed = path.read_bytes(), path.with_name(f"{path.name}.gz")
    if not packed.exists():
        with replacing(packed) as file:
            file.buffer.write(gzip.compress(whole, 6, mtime=0))
    if gzip.decompress(packed.read_bytes()) == whole:  # not if a late worker wrote more
        path.unlink()


def is_written(path: Path) -> bool:
    """Whether read_episodes finds the file, under its own name or compressed."""
    return path.is_file() or path.with_name(f"{path.name}.gz").is_file()


def _either(path: Path) -> Path | None:
    """Which file to read in the place of `path`; None for temporary files and the like."""
    packed = path if path.suffix == ".gz" else path.with_name(f"{path.name}.gz")
    if not packed.name.endswith(".jsonl.gz") or path.name.startswith("."):
        return None
    return packed if packed.exists() else path
