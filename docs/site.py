"""What the documentation site changes about the pages: its home, the reference, and links that lead out of ``docs``.

Theory of operation. The pages are written for whoever reads them in the repository. The site has no files beside them, so a link to a
file outside of ``docs`` becomes its plain text there, and the home page is the README with its links turned round.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def on_pre_build(config: Any) -> None:
    """Writes the home page and the reference."""
    docs = Path(config["docs_dir"])
    readme = (ROOT / "README.md").read_text("utf-8")
    (docs / "index.md").write_text(re.sub(r"\]\(docs/", "](", readme), "utf-8")
    spec = importlib.util.spec_from_file_location("make_reference", docs / "make_reference.py")
    assert spec is not None and spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    maker.write(docs / "reference")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Makes plain text of links to files outside of ``docs``."""
    here = Path(config["docs_dir"]) / page.file.src_uri
    home = ROOT if page.file.src_uri == "index.md" else here.parent

    def turned(found: re.Match[str]) -> str:
        target = found[2]
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        path = (home / target.partition("#")[0]).resolve()
        if path.is_relative_to(config["docs_dir"]) or not path.is_relative_to(ROOT) or not path.exists():
            return found[0]
        return found[1].strip("[]")

    return re.sub(r"(\[[^\]]*\])\(([^)\s]+)\)", turned, markdown)
