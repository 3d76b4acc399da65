"""Report: draws a run's plots, and writes run.html, one file with its curves, figures and episodes to look through.

    python -m forage.runs.report runs/a
    python -m forage.runs.report runs/a runs/b

A second run's curves are drawn over those of the first, and its episodes are included. The page loads nothing from
elsewhere. It is made from the files of the run folder alone, so it can be made again at any time.
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

from forage.arguments import POSITIONAL, run_script
from forage.files import replacing
from forage.runs.page_data import contents, stats_of
from forage.runs.plots import draw_plots
from forage.runs.stats import read_evaluations
from forage.text import encodable, printable

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
