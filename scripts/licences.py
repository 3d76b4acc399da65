"""Prints, as a table, under which licences the packages of the lock files are, by what each says of itself in .venv:
its expression, else its classifiers and free text. Those that are copyleft, unknown or not there are named.

    .venv/bin/python scripts/licences.py
"""

import re
from collections import defaultdict
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

FAMILIES = {
    "Apache-2.0": "Apache", "MIT": r"\bMIT\b", "BSD": "BSD", "PSF-2.0": "PSF|Python Software", "ISC": r"\bISC\b",
    "MPL-2.0": "MPL|Mozilla", "GPL": "GPL|GNU", "NVIDIA's own": "NVIDIA",
}  # fmt: skip
NAMED = ("MPL", "GPL", "NVIDIA", "unknown", "not installed")


def licence(package: str) -> str:
    """Example: "Apache-2.0, MIT" of one that names both."""
    try:
        about = metadata(package)
    except PackageNotFoundError:
        return "not installed here"
    classifiers = [line for line in about.get_all("Classifier", []) if line.startswith("License ::")]
    said = about["License-Expression"] or " ".join([*classifiers, (about["License"] or "")[:100]])
    return ", ".join(name for name, pattern in FAMILIES.items() if re.search(pattern, said)) or "unknown"


groups = defaultdict(list)
locks = Path(__file__).parents[1].glob("requirements/*.lock")
for package in sorted({name for lock in locks for name in re.findall(r"^(\S+)==", lock.read_text(), re.MULTILINE)}):
    groups[licence(package)].append(package)
print("| licence | packages | of these |\n|---|---|---|")
for name, packages in sorted(groups.items(), key=lambda group: -len(group[1])):
    print(f"| {name} | {len(packages)} | {', '.join(packages) if any(word in name for word in NAMED) else ''} |")
