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
from attnbench.source import sha_of, source_sha

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
    """A loaded plugin. `source_sha` covers the file that defines it and the files of its own it imports relatively."""

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
    try:
        value = _definitions(path).get(KINDS[kind][0])
    except (OSError, SyntaxError, ValueError):
        return "(cannot be read)"
    for keyword in value.keywords if isinstance(value, ast.Call) else []:
        if keyword.arg == "summary" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    return ""


def kind_of_file(path: Path) -> str:
    """Which kind of plugin a file defines, without running it; mechanisms where that cannot be seen."""
    try:
        defined = _definitions(path)
    except (OSError, SyntaxError, ValueError):  # loading it says what is wrong
        defined = {}
    return next((kind for kind, (variable, _) in KINDS.items() if variable in defined), "mechanisms")


def _definitions(path: Path) -> dict[str, ast.expr]:
    """What a file assigns to names at module level."""
    found: dict[str, ast.expr] = {}
    for node in ast.parse(path.read_bytes()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            found |= {target.id: node.value for target in targets if isinstance(target, ast.Name)}
    return found


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
        folder = Path(extra).expanduser()
        if not folder.is_dir():
            raise AttnbenchError(f"ATTNBENCH_PLUGINS={extra}: no such folder; make it, or unset the variable")
        for name, path in _files(folder / kind).items():
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
    except (Exception, SystemExit) as error:
        raise _broken(where, error) from error


def _broken(where: object, error: BaseException) -> AttnbenchError:
    """A plugin may fail in any way when it is imported; the message says which and how."""
    if isinstance(error, ModuleNotFoundError):
        return Unsupported(f"{where}: needs the package {error.name!r}, which is not installed")
    what = str(error) if isinstance(error, AttnbenchError) else f"importing it failed: {one_line(error)}"
    return AttnbenchError(f"{where}: {what}")


def _load_path(kind: str, path: Path, where: Home | None = None) -> Plugin:
    if not path.is_file():
        raise AttnbenchError(f"{path}: no such file")
    if path.suffix != ".py":
        raise AttnbenchError(f"{path}: not a .py file")
    path = path.resolve()
    name = path.parent.name if path.stem == "__init__" else path.stem
    where = where or Home("file", str(path))
    digest = hashlib.sha256(f"{path} {sha_of(path)}".encode()).hexdigest()[:12]
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
        except (Exception, SystemExit) as error:
            del sys.modules[module_name]
            raise _broken(path, error) from error
    return _plugin(kind, name, module, where)


def _load_entry_point(kind: str, name: str, where: Home) -> Plugin:
    point: EntryPoint = next(iter(entry_points(group=f"attnbench.{kind}", name=name)))
    module = _import(point.module, where)
    try:
        value = functools.reduce(getattr, (point.attr or KINDS[kind][0]).split("."), module)
    except AttributeError:
        raise AttnbenchError(f"{where}: {point.module} has no {point.attr!r}") from None
    return _checked(kind, name, value, where, module, _defining_module(value, module))


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
    cls = getattr(module, attribute)
    return _checked("mechanisms", name, wrap_module(cls, reference), where, sys.modules.get(cls.__module__, module))


def _defining_module(value: Any, named: ModuleType) -> ModuleType:
    """Where a plugin's code stands: an entry point may name a package that only passes the plugin on."""
    build = next((getattr(value, part) for part in ("build", "prepare", "loss") if hasattr(value, part)), None)
    while isinstance(build, functools.partial):  # which would name functools
        build = build.func
    return sys.modules.get(getattr(build, "__module__", ""), named)


def _plugin(kind: str, name: str, module: ModuleType, where: Home) -> Plugin:
    variable, _ = KINDS[kind]
    if not hasattr(module, variable):
        raise AttnbenchError(f"{where}: it defines no {variable}; write `{variable} = ...` at module level")
    return _checked(kind, name, getattr(module, variable), where, module)


def _is_frozen(options: type) -> bool:
    return bool(getattr(options, "__dataclass_params__").frozen)  # noqa: B009  mypy does not know it


def _checked(kind: str, name: str, value: Any, where: Home, *modules: ModuleType) -> Plugin:
    variable, types = KINDS[kind]
    if not isinstance(value, types):
        wanted = " or ".join(t.__name__ for t in types)
        raise AttnbenchError(f"{where}: {variable} is a {type(value).__name__}, not a {wanted}")
    options = getattr(value, "options", NoOptions)  # a cell has none
    if not (isinstance(options, type) and is_dataclass(options) and _is_frozen(options)):
        raise AttnbenchError(f"{where}: options is no frozen dataclass; write @dataclass(frozen=True, kw_only=True)")
    if not isinstance(getattr(value, "version", 1), int):
        raise AttnbenchError(f"{where}: version is no whole number")
    return Plugin(kind, name, value, where, source_sha(*modules))
