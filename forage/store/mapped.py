"""Arrays of an .npz file as maps of the file: read page by page when they are looked at, and shared by processes."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

# Bytes that begin each member of a zip file; the last four are the lengths of the two fields after them.
LOCAL_HEADER = 30


def mapped_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays that np.savez wrote, by name, read-only. It doesn't compress, so they lie in the file as in memory."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        return {member.filename.removesuffix(".npy"): _mapped(archive, member, file) for member in archive.infolist()}


def _mapped(archive: zipfile.ZipFile, member: zipfile.ZipInfo, file: IO[bytes]) -> NDArray[Any]:
    if member.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{member.filename} is compressed")
    with archive.open(member) as array:
        npy.read_magic(array)
        shape, _, dtype = npy.read_array_header_1_0(array)
        begins = array.tell()
    if 0 in shape:  # nothing can't be mapped
        return np.zeros(shape, dtype)
    file.seek(member.header_offset)
    name, extra = struct.unpack("<HH", file.read(LOCAL_HEADER)[-4:])
    return np.memmap(file, dtype, "r", member.header_offset + LOCAL_HEADER + name + extra + begins, shape)
