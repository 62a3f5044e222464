"""Every figure of README and docs: what was measured stands in tables and plots made from the bench's records; what is a setting is held to the code."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench import draw

from holdfast.api.bodies import MOST_BYTES
from holdfast.api.streams import CHECK_SECONDS
from holdfast.core.blobs import LARGE
from holdfast.core.canon import MAX_VALUE_BYTES
from holdfast.core.chunks import RING_BYTES, RUN_BYTES
from holdfast.core.lease import SAFE_PART
from holdfast.core.retry import SECOND
from holdfast.encryption import KEY_BYTES
from holdfast.engine.base.streams import EVERY
from holdfast.integrations.langgraph.writer import WAIT_SECONDS
from holdfast.outbox.pace import QUICK_SECONDS
from holdfast.outbox.webhook import ANSWER_CAP
from holdfast.stores.postgres.news import IDLE_POLL
from holdfast.stores.postgres.server import CROWDED
from holdfast.stores.sqlite.turns import TURN_SECONDS
from tests.docs.pages import PAGES as EVERY_PAGE
from tests.docs.pages import ROOT

PAGES = [page for page in EVERY_PAGE if (page.name == "README.md" and page.parent == ROOT) or ROOT / "docs" in page.parents]

RECORDS = sorted(draw.RESULTS.glob("*.json"))
"""What the repository holds of the bench's results."""


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: file.stem)
def test_a_record_says_when_where_with_what_and_beside_what(file: Path) -> None:
    made = json.loads(file.read_text("utf-8"))
    assert dt.datetime.fromisoformat(made["date"]).tzinfo is not None
    assert made["command"].startswith(f"python bench/{file.stem.partition('-')[0]}.py") and made["seconds"] >= 0
    assert {"cpu", "cores", "memory_gib", "system"} <= set(made["machine"]) and {"holdfast", "python", "sqlite"} <= set(made["versions"])
    assert made["measurements"] and made["beside"] is not None and set(made["load"]) == {"first", "last"}


@pytest.mark.parametrize("name", draw.PLOTS)
def test_drawing_again_gives_the_same_bytes(name: str) -> None:
    drawn = draw.PLOTS[name]()
    assert drawn == draw.PLOTS[name]()
    assert drawn.encode() == (ROOT / "docs" / "images" / name).read_bytes(), "uv run python -m bench.draw draws them from bench/results"
    ElementTree.fromstring(drawn)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_tables_of_a_page_are_what_was_recorded(page: Path) -> None:
    text = page.read_text("utf-8")
    assert draw.written(text) == text, "uv run python -m bench.draw writes them from bench/results"
    assert text.count("<!-- bench: ") == text.count("<!-- end of bench -->") == len(draw.BLOCK.findall(text))


def test_every_plot_and_every_table_stands_on_a_page() -> None:
    texts = "".join(page.read_text("utf-8") for page in PAGES)
    assert all(f"images/{name}" in texts for name in draw.PLOTS)
    assert all(f"<!-- bench: {name} -->" in texts for name in draw.TABLES)


FIGURE = re.compile(r"(?<![\w.-])\d[\d,.]*(?<![,.]) ?(?:µs|us|ms|s|kB|MB|GB|KiB|MiB|GiB|bytes|steps/s|runs/s|times|%)(?!\w)")
SETTINGS = {
    ("docs/architecture.md", "50 ms"): EVERY * 1000,
    ("docs/cli.md", "30 s"): max(30, CHECK_SECONDS),
    ("docs/cli.md", "90s"): 90,  # how a time is written
    ("docs/effects.md", "60 %"): SAFE_PART * 100,
    ("docs/effects.md", "64 KiB"): LARGE / 2**10,
    ("docs/effects.md", "64 MiB"): MAX_VALUE_BYTES / 2**20,
    ("docs/encryption.md", "32 bytes"): KEY_BYTES,
    ("docs/howto/deploy.md", "60 %"): CROWDED * 100,
    ("docs/howto/deploy.md", "50 ms"): 50 if IDLE_POLL * 1.1 <= 0.05 else IDLE_POLL,
    ("docs/http.md", "30 s"): max(30, CHECK_SECONDS),
    ("docs/http.md", "2 MiB"): MOST_BYTES / 2**20,
    ("docs/integrations.md", "2 ms"): WAIT_SECONDS * 1000,
    ("docs/outbox.md", "25 ms"): QUICK_SECONDS * 1000,
    ("docs/outbox.md", "1 s"): SECOND / 1e6,
    ("docs/outbox.md", "2 s"): SECOND * 2 / 1e6,
    ("docs/outbox.md", "4 s"): SECOND * 4 / 1e6,
    ("docs/outbox.md", "64 KiB"): ANSWER_CAP / 2**10,
    ("docs/performance.md", "40 ms"): TURN_SECONDS * 1000,
    ("docs/stuck.md", "1 s"): SECOND / 1e6,
    ("docs/testing.md", "90 s"): 90,  # the default of bench/mutate.py --seconds
    ("docs/streams.md", "4 MiB"): RING_BYTES / 2**20,
    ("docs/streams.md", "32 MiB"): RUN_BYTES / 2**20,
    ("docs/streams.md", "50 ms"): EVERY * 1000,
}
"""Figures within sentences are settings, not measurements: what the code has for each."""


def figures() -> list[tuple[str, str]]:
    """Every figure with a unit that stands within a sentence, with its page."""
    found = []
    for page in PAGES:
        text = re.sub(r"^ *```.*?^ *```", "", draw.BLOCK.sub("", page.read_text("utf-8")), flags=re.M | re.S)
        found += [(str(page.relative_to(ROOT)), figure) for figure in FIGURE.findall(text)]
    return found


def test_a_figure_within_a_sentence_is_what_the_code_has() -> None:
    assert set(figures()) == set(SETTINGS), "a new one is given its setting above; what was measured belongs into a table that bench.draw writes"
    for (page, figure), value in SETTINGS.items():
        assert float(re.sub(r"[^\d.]", "", figure)) == pytest.approx(value), (page, figure)
