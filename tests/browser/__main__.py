"""The operator's pages in a real browser: ``uv run --with playwright python -m tests.browser`` (about three minutes).

Every page at three widths, light and dark, with no data, one run, many, hostile strings and long ones: axe-core finds nothing, nothing scrolls sideways, nothing
is asked of another origin, no script fails. Without JavaScript a run is read, approved, denied, resumed and forked; by keyboard alone a wait is
answered; what happens is on the page without a reload, also under a session. It writes the pictures of docs/operate.md (``--pictures``), or all it sees (``--all``).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from importlib import import_module
from pathlib import Path

from tests.http.scenes import SCENES

WIDTHS = (360, 1024, 1600)

if __name__ == "__main__":
    asked = argparse.ArgumentParser(prog="python -m tests.browser", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--all", type=lambda given: Path(given).resolve(), metavar="FOLDER", help="write a picture of every look there")
    asked.add_argument("--pictures", action="store_true", help="write the pictures of docs/operate.md, and nothing else")
    asked.add_argument("--scenes", default=",".join(SCENES), help="which data [default: %(default)s]")
    asked.add_argument("--widths", default=",".join(map(str, WIDTHS)), help="how wide, in pixels [default: %(default)s]")
    given = asked.parse_args()
    if given.all is not None:
        given.all.mkdir(parents=True, exist_ok=True)
    sys.exit(asyncio.run(import_module("tests.browser.pages").main(given.all, given.pictures, given.scenes.split(","), [int(w) for w in given.widths.split(",")])))
