"""The hash of a plugin's source: what tells a record made with other code from one that can be compared."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path
from types import ModuleType


def source_sha(*modules: ModuleType) -> str:
    """Hash of the modules' files and of those they import relatively, to any depth, in a fixed order."""
    files = [getattr(module, "__file__", None) or "" for module in modules]
    written = [Path(file) for file in files if file.endswith(".py")]
    return sha_of(*written) if written else "unknown"


def sha_of(*starts: Path) -> str:
    seen: set[Path] = set()
    todo = list(starts)
    while todo:
        path = todo.pop()
        if path not in seen:
            seen.add(path)
            todo.extend(_private_neighbours(path))
    digest = hashlib.sha256()
    for path in sorted(seen):
        digest.update(path.name.encode() + b"\0" + path.read_bytes().replace(b"\r\n", b"\n") + b"\0")
    return digest.hexdigest()[:16]


def _private_neighbours(path: Path) -> list[Path]:
    """The files beside `path` (or in folders around it) that its relative imports name."""
    found = []
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # running it says what is wrong
        return []
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node.level == 0:
            continue
        base = path.parent
        for _ in range(node.level - 1):
            base = base.parent
        dotted = node.module.split(".") if node.module else []
        targets = [base.joinpath(*dotted)] if dotted else [base / alias.name for alias in node.names]
        targets += [base.joinpath(*dotted, alias.name) for alias in node.names] if dotted else []
        for target in targets:
            found += [p for p in (target.with_suffix(".py"), target / "__init__.py") if p.is_file()]
    return found
