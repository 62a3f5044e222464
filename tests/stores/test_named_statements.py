"""Statements are named in a file of SQL, and reached as attributes that no type checker knows: each name that the code uses is one of the file's."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import stores
from holdfast.stores.statements import name_statements

STORES = Path(stores.__file__).parent


def asked(folder: Path) -> Iterator[tuple[str, str]]:
    """What the modules of a folder ask of ``Q``, and where."""
    for file in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Q":
                yield node.attr, f"{file.name}:{node.lineno}"


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_each_statement_that_the_code_names_is_in_the_file(kind: str) -> None:
    found = vars(name_statements((STORES / kind / "queries.sql").read_text("utf-8")))
    names = dict(asked(STORES / kind))
    assert len(names) > 50
    assert {name: place for name, place in names.items() if name not in found} == {}
