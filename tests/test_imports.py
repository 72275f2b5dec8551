"""The direction of imports, what an import loads and prints, and that the engine names no plugin.

import-linter (`make lint`) holds the layers of the engine; here stands what it cannot see.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLUGIN_FOLDERS = {
    "mechanisms": ROOT / "mechanisms",
    "tasks": ROOT / "tasks",
    "regularizers": ROOT / "attnbench" / "regularizers",
}

LIGHT = ["contracts", "registry", "record", "store", "statistics", "report", "cli", "options", "errors"]
HEAVY = {"torch", "xformers", "datasets", "accelerate"}

SHARED = {"attnbench.contracts", "attnbench.errors", "attnbench.options", "numpy", "pydantic"}
MAY_IMPORT = {
    "mechanisms": SHARED | {"attnbench.layers", "attnbench.sparse", "torch"},
    "tasks": SHARED
    | {"attnbench.metrics", "datasets", "pyarrow", "torch", "sklearn", "PIL", "scipy", "numba", "tokenizers"},
    "regularizers": SHARED | {"torch"},
}
#: Libraries that a task's own file loads only when it prepares data; a private file of it may load them at once.
LAZY_IN_TASKS = {"torch", "sklearn", "PIL", "scipy", "numba", "tokenizers"}

#: Strings of the engine that equal a plugin's name and do not name the plugin, by the folder or file they stand in.
OTHER_MEANINGS = {
    # The default regularizer is the absence of one; the word also means "no positions".
    "none": "attnbench",
    # An execution path of the sparse core has the name of the mechanism it is the reference for.
    "dense": "attnbench/sparse",
}


def fresh(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs code in a new isolated process outside the checkout; pytest's own options do not reach it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return subprocess.run(
        [sys.executable, "-I", "-c", code],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def loaded_by(statement: str, cwd: Path) -> set[str]:
    """The heavy libraries a statement loads."""
    code = f"{statement}\nimport sys\nsys.stderr.write('\\n' + ' '.join({HEAVY} & set(sys.modules)))"
    done = fresh(code, cwd)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def plugins(kind: str) -> dict[str, Path]:
    """File of every built-in plugin by name, as the registry finds them: NAME.py or NAME/__init__.py."""
    folder = PLUGIN_FOLDERS[kind]
    files = {p.stem: p for p in sorted(folder.glob("[!_]*.py"))}
    return files | {p.parent.name: p for p in sorted(folder.glob("[!_]*/__init__.py"))}


ALL_PLUGIN_FILES = [
    pytest.param(kind, path, id=str(path.relative_to(ROOT)))
    for kind, folder in PLUGIN_FOLDERS.items()
    for path in sorted(folder.rglob("*.py"))
]


def imports(nodes: Iterator[ast.AST] | list[ast.stmt]) -> Iterator[tuple[int, str]]:
    """(level, dotted name) of every import; level counts the leading dots."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.level, ".".join(filter(None, (node.module, alias.name)))) for alias in node.names)


def all_imports(path: Path) -> list[tuple[int, str]]:
    return list(imports(ast.walk(ast.parse(path.read_text("utf-8")))))


def is_within(name: str, allowed: set[str]) -> bool:
    return any(name == module or name.startswith(module + ".") for module in allowed)


@pytest.mark.parametrize("module", ["attnbench", *(f"attnbench.{name}" for name in LIGHT)])
def test_light_modules_load_nothing_heavy(module: str, tmp_path: Path) -> None:
    assert loaded_by(f"import {module}", tmp_path) == set()


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["list"],
        ["list", "mechanisms", "--json"],
        ["run", "--help"],
        ["sweep", "--help"],
        ["check", "--help"],
        ["speed", "--help"],
    ],
    ids=" ".join,
)
def test_listing_and_help_load_nothing_heavy(words: list[str], tmp_path: Path) -> None:
    call = (
        f"import sys\nsys.argv = ['attnbench', *{words}]\nfrom attnbench.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code"
    )
    assert loaded_by(call, tmp_path) == set()


def test_import_prints_and_writes_nothing(tmp_path: Path) -> None:
    done = fresh("import attnbench, attnbench.cli", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", PLUGIN_FOLDERS)
def test_importing_all_plugins_prints_and_writes_nothing(kind: str, tmp_path: Path) -> None:
    done = fresh("import " + ", ".join(f"attnbench.{kind}.{name}" for name in plugins(kind)), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_no_folder_of_the_checkout_is_a_top_level_package(tmp_path: Path) -> None:
    code = (
        "from importlib.util import find_spec\n"
        "print([n for n in ('mechanisms', 'tasks', 'suites', 'results', 'tests', 'docs') if find_spec(n)])"
    )
    assert fresh(code, tmp_path).stdout == "[]\n"


@pytest.mark.parametrize(("kind", "path"), ALL_PLUGIN_FILES)
def test_plugins_import_only_what_they_may(kind: str, path: Path) -> None:
    found = all_imports(path)
    strange = {
        name
        for level, name in found
        if level == 0
        and name.partition(".")[0] not in sys.stdlib_module_names
        and not is_within(name, MAY_IMPORT[kind])
    }
    assert strange == set(), "files of the same plugin are imported relatively: from ._name import ..."
    in_private_folder = path.parent != PLUGIN_FOLDERS[kind]
    others = {name for level, name in found if level and not name.startswith("_")}
    assert in_private_folder or others == set(), "a plugin imports no other plugin"
    higher = {name for level, name in found if level > 1 and not (in_private_folder and level == 2 and name[0] == "_")}
    assert higher == set(), "beyond its own folder a private file may only look at private ones"


@pytest.mark.parametrize("path", plugins("tasks").values(), ids=lambda p: p.stem)
def test_tasks_load_their_libraries_late(path: Path) -> None:
    at_once = {name for _, name in imports(ast.parse(path.read_text("utf-8")).body)}
    assert {name for name in at_once if is_within(name, LAZY_IN_TASKS)} == set()


def test_nothing_imports_the_command_line() -> None:
    """`__main__` alone does, for `python -m attnbench`."""
    for path in sorted((ROOT / "attnbench").rglob("*.py")):
        found = {name for _, name in all_imports(path)}
        assert path.name == "__main__.py" or not any(is_within(name, {"attnbench.cli"}) for name in found), path


def engine_files() -> list[Path]:
    return [p for p in sorted((ROOT / "attnbench").rglob("*.py")) if PLUGIN_FOLDERS["regularizers"] not in p.parents]


@pytest.mark.parametrize("path", engine_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_engine_names_no_plugin(path: Path) -> None:
    names = {name for kind in PLUGIN_FOLDERS for name in plugins(kind)}
    allowed = {word for word, where in OTHER_MEANINGS.items() if path.is_relative_to(ROOT / where)}
    tree = ast.parse(path.read_text("utf-8"))
    strings = {
        (node.value, node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert [f"line {line}: {word!r}" for word, line in sorted(strings) if word in names - allowed] == []
    prefixes = {f"attnbench.{kind}" for kind in PLUGIN_FOLDERS}
    assert [name for _, name in all_imports(path) if is_within(name, prefixes)] == []
