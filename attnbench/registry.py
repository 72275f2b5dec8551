"""Finds plugins by name without importing them, loads one on demand, and knows where each came from.

A plugin's homes, by kind (`mechanisms`, `tasks`, `regularizers`): a file of the package folder `attnbench/<kind>`, an
entry point of the group `attnbench.<kind>`, a file `<kind>/NAME.py` below the folder in $ATTNBENCH_PLUGINS, a path to a
`.py` file, or, for a mechanism, `pkg.module:Class` of a plain `nn.Module`.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from attnbench.contracts import Cell, Mechanism, NoOptions, Regularizer, Task
from attnbench.errors import AttnbenchError, UnknownName, Unsupported, one_line

KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "mechanisms": ("MECHANISM", (Mechanism, Cell)),
    "tasks": ("TASK", (Task,)),
    "regularizers": ("REGULARIZER", (Regularizer,)),
}


@dataclass(frozen=True)
class Home:
    """Where a plugin lives: `how` is built-in, package, folder, file or class; `where` names it."""

    how: str
    where: str

    def __str__(self) -> str:
        return f"{self.how} {self.where}"

    @property
    def public(self) -> str:
        """The home without folders of this machine, for records."""
        if self.how == "built-in":
            return self.how
        return f"{self.how} {Path(self.where).name if self.how in ('folder', 'file') else self.where}"


@dataclass(frozen=True)
class Plugin:
    """A loaded plugin. `source_sha` covers its file and the private files (`_name`) it imports beside it."""

    kind: str
    name: str
    object: Any
    home: Home
    source_sha: str


def names(kind: str) -> list[str]:
    """Names of all plugins that can be used without a path, sorted; imports none of them."""
    return sorted(_homes(kind))


def home(kind: str, name: str) -> Home:
    """Where `name` comes from.

    Raises:
        UnknownName: nobody offers it.
        AttnbenchError: two homes offer it.
    """
    found = _homes(kind)
    if name not in found:
        raise UnknownName(kind.removesuffix("s"), name, found)
    if len(found[name]) > 1:
        homes = " and ".join(str(h) for h in found[name])
        raise AttnbenchError(f"{kind.removesuffix('s')} {name!r} has two homes: {homes}; rename or remove one")
    return found[name][0]


def summary(kind: str, name: str) -> str:
    """The plugin's `summary`, read from its source without running it; "" where the source cannot be read."""
    path = _source_path(home(kind, name))
    if path is None:
        return ""
    variable, _ = KINDS[kind]
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return "(cannot be read)"
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        is_plugin = any(isinstance(t, ast.Name) and t.id == variable for t in targets)
        if is_plugin and isinstance(value := getattr(node, "value", None), ast.Call):
            for keyword in value.keywords:
                if keyword.arg == "summary" and isinstance(keyword.value, ast.Constant):
                    return str(keyword.value.value)
    return ""


def load(kind: str, reference: str) -> Plugin:
    """The plugin that `reference` names: a name, a path to a `.py` file, or (mechanisms) `pkg.module:Class`.

    Raises:
        AttnbenchError: not found, broken, of the wrong type, or two homes.
        Unsupported: a package it imports is missing.
    """
    if kind == "mechanisms" and ":" in reference and not _is_path(reference):
        return _load_class(reference)
    if _is_path(reference):
        return _load_path(kind, Path(reference))
    where = home(kind, reference)
    if where.how == "folder":
        return _load_path(kind, Path(where.where), where)
    if where.how == "built-in":
        return _plugin(kind, reference, _import(f"attnbench.{kind}.{reference}", where), where)
    return _load_entry_point(kind, reference, where)


def _is_path(reference: str) -> bool:
    return reference.endswith(".py") or os.sep in reference


@functools.cache
def _builtin_folder(kind: str) -> Path:
    spec = importlib.util.find_spec(f"attnbench.{kind}")
    if spec is None or not spec.submodule_search_locations:
        raise AttnbenchError("this copy of attnbench is not installed: run `pip install -e .` in its folder")
    return Path(next(iter(spec.submodule_search_locations)))


def _files(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        return {}
    files = {p.stem: p for p in sorted(folder.glob("*.py")) if not p.name.startswith("_")}
    return files | {p.parent.name: p for p in sorted(folder.glob("[!_]*/__init__.py"))}


def _homes(kind: str) -> dict[str, list[Home]]:
    found: dict[str, list[Home]] = {}
    for name, path in _files(_builtin_folder(kind)).items():
        found.setdefault(name, []).append(Home("built-in", str(path)))
    for point in entry_points(group=f"attnbench.{kind}"):
        package = point.dist.name if point.dist else "?"
        found.setdefault(point.name, []).append(Home("package", f"{package} ({point.value})"))
    if extra := os.environ.get("ATTNBENCH_PLUGINS"):
        for name, path in _files(Path(extra) / kind).items():
            found.setdefault(name, []).append(Home("folder", str(path)))
    return found


def _source_path(where: Home) -> Path | None:
    if where.how in ("built-in", "folder", "file"):
        return Path(where.where)
    return _locate(where.where.partition("(")[2].removesuffix(")").partition(":")[0])


def _locate(module: str) -> Path | None:
    """The file of a module, without running its parent packages, as `importlib.util.find_spec` would."""
    parts = module.split(".")
    inside, spec = None, None
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        spec = next((s for finder in sys.meta_path if (s := finder.find_spec(name, inside))), None)
        if spec is None:
            return None
        inside = spec.submodule_search_locations
    return Path(spec.origin) if spec and spec.origin else None


def _import(module: str, where: Home) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise Unsupported(f"{where}: needs the package {error.name!r}, which is not installed") from error
    except Exception as error:  # a plugin may fail in any way; the message says which and how
        raise AttnbenchError(f"{where}: importing it failed: {one_line(error)}") from error


def _load_path(kind: str, path: Path, where: Home | None = None) -> Plugin:
    if not path.is_file():
        raise AttnbenchError(f"{path}: no such file")
    if path.suffix != ".py":
        raise AttnbenchError(f"{path}: not a .py file")
    path = path.resolve()
    name = path.parent.name if path.stem == "__init__" else path.stem
    where = where or Home("file", str(path))
    digest = hashlib.sha256(f"{path} {_sha_of(path)}".encode()).hexdigest()[:12]
    package = sys.modules.setdefault(f"attnbench_plugin_{digest}", ModuleType(f"attnbench_plugin_{digest}"))
    package.__path__ = [str(path.parent if path.stem != "__init__" else path.parent.parent)]
    module_name = f"{package.__name__}.{name}"
    module = sys.modules.get(module_name)
    if module is None:
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module  # dataclasses look their module up by name
        try:
            spec.loader.exec_module(module)
        except ModuleNotFoundError as error:
            del sys.modules[module_name]
            raise Unsupported(f"{path}: needs the package {error.name!r}, which is not installed") from error
        except Exception as error:  # as in _import
            del sys.modules[module_name]
            raise AttnbenchError(f"{path}: running it failed: {one_line(error)}") from error
    return _plugin(kind, name, module, where)


def _load_entry_point(kind: str, name: str, where: Home) -> Plugin:
    point: EntryPoint = next(iter(entry_points(group=f"attnbench.{kind}", name=name)))
    module = _import(point.module, where)
    try:
        value = functools.reduce(getattr, (point.attr or KINDS[kind][0]).split("."), module)
    except AttributeError:
        raise AttnbenchError(f"{where}: {point.module} has no {point.attr!r}") from None
    return _checked(kind, name, value, where, module)


def _load_class(reference: str) -> Plugin:
    from attnbench.adapters import wrap_module

    module_name, _, attribute = reference.partition(":")
    where = Home("class", reference)
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    module = _import(module_name, where)
    if not hasattr(module, attribute):
        raise UnknownName(f"class in {module_name}", attribute, [n for n in vars(module) if not n.startswith("_")])
    name = attribute.lower() if attribute.isidentifier() else attribute
    return _checked("mechanisms", name, wrap_module(getattr(module, attribute), reference), where, module)


def _plugin(kind: str, name: str, module: ModuleType, where: Home) -> Plugin:
    variable, _ = KINDS[kind]
    if not hasattr(module, variable):
        raise AttnbenchError(f"{where}: it defines no {variable}; write `{variable} = ...` at module level")
    return _checked(kind, name, getattr(module, variable), where, module)


def _checked(kind: str, name: str, value: Any, where: Home, module: ModuleType) -> Plugin:
    variable, types = KINDS[kind]
    if not isinstance(value, types):
        wanted = " or ".join(t.__name__ for t in types)
        raise AttnbenchError(f"{where}: {variable} is a {type(value).__name__}, not a {wanted}")
    options = getattr(value, "options", NoOptions)  # a cell has none
    if not (isinstance(options, type) and is_dataclass(options)):
        raise AttnbenchError(f"{where}: options is no dataclass")
    if not isinstance(getattr(value, "version", 1), int):
        raise AttnbenchError(f"{where}: version is no whole number")
    return Plugin(kind, name, value, where, _source_sha(module))


def _source_sha(module: ModuleType) -> str:
    """Hash of the module's file and of the private neighbours it imports, to any depth, in a fixed order."""
    start = getattr(module, "__file__", None)
    if start is None or not start.endswith(".py"):
        return "unknown"
    return _sha_of(Path(start))


def _sha_of(start: Path) -> str:
    seen: set[Path] = set()
    todo = [start]
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
