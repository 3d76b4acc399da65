"""Browser: writes browser.html, one file with a run's curves and its episodes to search, filter and compare.

    python -m forage.runs.browser runs/a
    python -m forage.runs.browser runs/a runs/b

With a second run its curves are drawn over those of the first, and its episodes are there too. The page loads nothing
from anywhere.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from forage.arguments import POSITIONAL
from forage.cli import run_script
from forage.errors import UserError
from forage.files import replacing
from forage.runs.browser_data import contents
from forage.text import encodable, printable

HERE = Path(__file__).parent
SCRIPTS = ("browser_figures.js", "browser_episode.js", "browser.js")
MAX_EPISODES, MAX_TOKENS = 10_000, 1_000
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


def write_browser(
    run_dir: Path, second: Path | None = None, max_episodes: int = MAX_EPISODES, max_tokens: int = MAX_TOKENS
) -> dict[str, Any]:
    """Write browser.html into the first run's folder, and return what it holds."""
    held = contents([run_dir, second] if second else [run_dir], max_episodes, max_tokens)
    css, js = (HERE / "browser.css").read_text(), "\n".join((HERE / name).read_text() for name in SCRIPTS)
    title = html.escape(printable(encodable(run_dir.resolve().name)))
    page = PAGE.format(title=title, css=css, js=js, css_hash=_hash(css), js_hash=_hash(js), data=packed(held))
    with replacing(run_dir / "browser.html") as file:
        file.write(page)
    return held


def write_after_training(run_dir: Path) -> None:
    """Write the page of a run that has just ended, and say where it is. A fault here is told and raises nothing."""
    try:
        write_browser(run_dir)
    except (UserError, OSError, ValueError, LookupError, TypeError) as error:
        print(f"browser.html was not written ({type(error).__name__}: {printable(str(error))}); see it with "
              f"python -m forage.runs.browser {run_dir}")  # fmt: skip
    else:
        print(f"{run_dir / 'browser.html'} shows its curves and episodes")


def packed(held: Mapping[str, Any]) -> str:
    """JSON of base64 of gzip of JSON: its alphabet has no character that HTML could take for markup."""
    text = encodable(json.dumps(held, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    return json.dumps(base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode())


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@dataclass(frozen=True)
class Options:
    """Write a page to look through a run's curves and episodes."""

    run_dir: Annotated[Path, POSITIONAL]
    """Run folder."""
    second: Annotated[Path | None, POSITIONAL] = None
    """Another run folder, whose curves are drawn over those of the first, and whose episodes are there too."""
    max_episodes: int = MAX_EPISODES
    """Episodes on the page at most, of two runs half of each; the latest steps are kept."""
    max_tokens: int = MAX_TOKENS
    """Episodes, the latest, that come with their tokens and log-probabilities."""

    def __post_init__(self) -> None:
        for flag, number in (("--max-episodes", self.max_episodes), ("--max-tokens", self.max_tokens)):
            if number < 0:
                raise UserError(f"{flag} must be at least 0, got {number}")


def main(options: Options) -> None:
    held = write_browser(options.run_dir, options.second, options.max_episodes, options.max_tokens)
    print(f"{options.run_dir / 'browser.html'} shows {len(held['episodes'])} episodes, {held['left_out']} left out")


if __name__ == "__main__":
    run_script(main, description=__doc__)
