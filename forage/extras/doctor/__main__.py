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
    must, may = needed(), optional()
    options = [shown(check, "no") for check in may]
    print("Needed", *map(shown, must), "\nOptional: all else works without", *options, sep="\n")
    works = not any(check.lacks for check in must)
    print("\nNothing that is needed is missing. Next: make demo" if works else "\nSomething that is needed is missing.")
    return 0 if works else 1


def shown(check: Check, lacking: str = "--") -> str:
    """A line of 80 columns, or a few; the command is not broken, so that it can be copied."""
    if not check.lacks:
        return f"  ok   {check.what}"
    indent = " " * 7
    text = textwrap.fill(
        f"{check.what}: {check.lacks}", 80, initial_indent=f"  {lacking}   ", subsequent_indent=indent,
        break_on_hyphens=False,
    )  # fmt: skip
    return f"{text}\n{indent}> {check.mend}" if check.mend else text


if __name__ == "__main__":
    if sys.argv[1:]:
        print(__doc__)
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else "error: the doctor takes no options")
    sys.exit(main())
