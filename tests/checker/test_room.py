"""What keeps the second opinion a second one: it is short enough to be read in one sitting, and it stands alone."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOM = Path(__file__).parents[2] / "app" / "checker"
FILES = sorted(ROOM.glob("**/*.py"))


def test_at_most_300_lines() -> None:
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in FILES) <= 300


def test_nothing_of_ours_is_imported() -> None:
    imported = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add("." * node.level + (node.module or ""))
    assert {name for name in imported if name.split(".")[0] not in sys.stdlib_module_names} == {"sha3", ".verifier"}
