"""Doctor: what this machine has and lacks, and the command that fixes it.

    python -m forage.extras.doctor

Lists what `make demo` needs, then what only some options need. Exits with status 1 if something needed is missing. It
changes nothing, and uses the network only to see whether the model hub answers.
"""

from __future__ import annotations

import sys
import textwrap

from forage.extras.doctor.checks import Check, needed, optional


def main() -> int:
    must = needed()
    options = [shown(check, "no") for check in optional()]
    print("Needed", *map(shown, must), "\nOptional: all else works without", *options, sep="\n")
    missing = any(check.lacks for check in must)
    print(
        "\nSomething that is needed is missing." if missing else "\nNothing that is needed is missing. Next: make demo"
    )
    return int(missing)


def shown(check: Check, lacking: str = "--") -> str:
    """A line of 80 columns, or a few; the command is not broken, so that it can be copied."""
    if not check.lacks:
        return f"  ok   {check.what}"
    text = textwrap.fill(
        f"  {lacking}   {check.what}: {check.lacks}", 80, subsequent_indent=" " * 7, break_on_hyphens=False
    )
    return f"{text}\n       > {check.mend}" if check.mend else text


if __name__ == "__main__":
    sys.exit(main())
