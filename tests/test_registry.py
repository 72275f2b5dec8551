"""Where plugins come from: names without imports, every home, what is refused, and what the source hash covers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attnbench import plan, refusals, registry
from attnbench.errors import AttnbenchError, UnknownName, Unsupported

ROOT = Path(__file__).parents[1]

SOURCES = {
    "mechanisms": "from attnbench import Mechanism\n"
    "MECHANISM = Mechanism(summary='{summary}', paper='p', build=lambda shape, options: None)\n",
    "tasks": "from attnbench.contracts import Classify, Source, Task\n"
    "TASK = Task(summary='{summary}', source=Source(citation='c', licence='l'), head=lambda o: Classify(2),\n"
    "            vocab=lambda o: 2, max_length=lambda o: 4, prepare=lambda o, p: None)\n",
    "regularizers": "from attnbench import Regularizer\n"
    "REGULARIZER = Regularizer(summary='{summary}', paper='p', loss=lambda options: None)\n",
}
KINDS = sorted(SOURCES)
THAWED = "from dataclasses import dataclass\n@dataclass\nclass Thawed:\n    size: int = 3\n"


def source(kind: str, summary: str = "s") -> str:
    return SOURCES[kind].format(summary=summary)


def refused(kind: str, reference: str, error: type[AttnbenchError] = AttnbenchError) -> str:
    """The one line that loading is refused with."""
    with pytest.raises(error) as caught:
        registry.load(kind, reference)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plugin folder that $ATTNBENCH_PLUGINS names."""
    home = tmp_path / "plugins"
    for kind in KINDS:
        (home / kind).mkdir(parents=True)
    monkeypatch.setenv("ATTNBENCH_PLUGINS", str(home))
    return home


Install = Callable[[str, str, str], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Makes a distribution importable: its name, the text of its module, its entry points."""

    def make(name: str, text: str, points: str) -> Path:
        site = tmp_path / "site"
        (site / f"{name}-1.0.dist-info").mkdir(parents=True)
        (site / f"{name}-1.0.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (site / f"{name}-1.0.dist-info" / "entry_points.txt").write_text(points)
        (site / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.delitem(sys.modules, name, raising=False)
        return site

    return make


# names


def test_the_built_in_names_are_the_files() -> None:
    folders = {"mechanisms": ROOT / "mechanisms", "tasks": ROOT / "tasks"}
    for kind, place in (folders | {"regularizers": ROOT / "attnbench" / "regularizers"}).items():
        assert registry.names(kind) == sorted(p.stem for p in place.glob("[!_]*.py"))
        assert {registry.home(kind, name).how for name in registry.names(kind)} == {"built-in"}


@pytest.mark.parametrize("kind", KINDS)
def test_names_and_summaries_come_without_running_a_file(folder: Path, kind: str) -> None:
    (folder / kind / "loud.py").write_text("raise SystemExit('I was run')\n" + source(kind, "read, not run"))
    (folder / kind / "_private.py").write_text("raise SystemExit('I was run')\n")
    assert "loud" in registry.names(kind) and "_private" not in registry.names(kind)
    assert registry.summary(kind, "loud") == "read, not run"


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_name_lists_the_closest(kind: str) -> None:
    known = registry.names(kind)[0]
    assert f"did you mean {known}" in refused(kind, f"{known}x", UnknownName)
    assert known in refused(kind, "zzzzzz", UnknownName), "nothing is close: all are shown"


def test_listing_imports_no_package_of_third_parties(tmp_path: Path) -> None:
    """The parent of a dotted module would run, and may load torch or fail in any way."""
    (tmp_path / "heavy").mkdir()
    (tmp_path / "heavy" / "__init__.py").write_text("import sys\nsys.stderr.write('heavy was imported')\n")
    (tmp_path / "heavy" / "mix.py").write_text(source("mechanisms", "from a package"))
    (tmp_path / "heavy-1.0.dist-info").mkdir()
    (tmp_path / "heavy-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: heavy\nVersion: 1.0\n")
    (tmp_path / "heavy-1.0.dist-info" / "entry_points.txt").write_text(
        "[attnbench.mechanisms]\nweighty = heavy.mix:MECHANISM\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "attnbench", "list"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
        cwd=tmp_path,
    )
    assert done.returncode == 0 and "weighty" in done.stdout
    assert "heavy was imported" not in done.stderr


def test_a_package_that_cannot_be_imported_does_not_break_the_list(install: Install) -> None:
    site = install("torn", "", "[attnbench.mechanisms]\ntorn_one = torn_parts.mix:MECHANISM\n")
    (site / "torn_parts").mkdir()
    (site / "torn_parts" / "__init__.py").write_text("raise RuntimeError('built for another machine')\n")
    (site / "torn_parts" / "mix.py").write_text(source("mechanisms"))
    assert "torn_one" in registry.names("mechanisms")
    registry.summary("mechanisms", "torn_one")
    assert "RuntimeError: built for another machine" in refused("mechanisms", "torn_one")


# homes


@pytest.mark.parametrize("kind", KINDS)
def test_a_plugin_is_loaded_from_a_file_and_from_the_folder(folder: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "mine.py").write_text(source(kind, "by path"))
    (folder / kind / "theirs.py").write_text(source(kind, "by name"))
    by_path, by_name = registry.load(kind, str(tmp_path / "mine.py")), registry.load(kind, "theirs")
    assert (by_path.name, by_path.object.summary, by_path.home.how) == ("mine", "by path", "file")
    assert (by_name.name, by_name.object.summary, by_name.home.how) == ("theirs", "by name", "folder")
    assert by_path.home.where == str(tmp_path / "mine.py")


def test_a_relative_path_is_taken_from_where_the_user_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "mine.py").write_text(source("mechanisms", place))
    for place in ("a", "b"):
        monkeypatch.chdir(tmp_path / place)
        assert registry.load("mechanisms", "./mine.py").object.summary == place


def test_a_package_in_the_folder_goes_by_its_own_name(folder: Path) -> None:
    (folder / "mechanisms" / "big").mkdir()
    (folder / "mechanisms" / "big" / "__init__.py").write_text("from .mix import MECHANISM\n")
    (folder / "mechanisms" / "big" / "mix.py").write_text(source("mechanisms", "of two files"))
    found = registry.load("mechanisms", "big")
    assert (found.name, found.object.summary) == ("big", "of two files")


def test_a_file_may_use_private_files_beside_it(folder: Path) -> None:
    """As the built-in plugins do: `from ._own import x`."""
    (folder / "mechanisms" / "_own.py").write_text("SUMMARY = 'from the neighbour'\n")
    text = source("mechanisms").replace("'s'", "SUMMARY")
    (folder / "mechanisms" / "split.py").write_text("from ._own import SUMMARY\n" + text)
    assert registry.load("mechanisms", "split").object.summary == "from the neighbour"


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_offers_plugins_by_entry_points(install: Install, kind: str) -> None:
    variable = registry.KINDS[kind][0]
    install(
        f"third_{kind}",
        source(kind, "from a package"),
        f"[attnbench.{kind}]\nby_name = third_{kind}:{variable}\nby_habit = third_{kind}\nlost = third_{kind}:GONE\n",
    )
    for name in ("by_name", "by_habit"):
        found = registry.load(kind, name)
        assert (found.name, found.object.summary, found.home.how) == (name, "from a package", "package")
        assert f"third_{kind}" in found.home.where and registry.summary(kind, name) == "from a package"
    assert "has no 'GONE'" in refused(kind, "lost")


def test_a_name_with_two_homes_names_both(folder: Path, install: Install) -> None:
    (folder / "mechanisms" / "dense.py").write_text(source("mechanisms"))
    (folder / "mechanisms" / "twice.py").write_text(source("mechanisms"))
    install("doubler", source("mechanisms"), "[attnbench.mechanisms]\ntwice = doubler:MECHANISM\n")
    for name, homes in {"dense": ["built-in", "dense.py", "folder"], "twice": ["doubler", "twice.py"]}.items():
        said = refused("mechanisms", name)
        assert "two homes" in said and all(home in said for home in homes)
    assert registry.load("mechanisms", "local").home.how == "built-in", "the others are still there"


def test_a_plugin_folder_that_is_not_there_is_named_and_a_tilde_is_the_home(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "mechanisms" / "theirs.py").write_text(source("mechanisms"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ATTNBENCH_PLUGINS", "~/plugins")
    assert registry.load("mechanisms", "theirs").home.how == "folder"
    monkeypatch.setenv("ATTNBENCH_PLUGINS", "~/plugin")
    with pytest.raises(AttnbenchError, match=r"ATTNBENCH_PLUGINS=~/plugin: no such folder") as caught:
        registry.names("mechanisms")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("annotation", ["", ": object"])
def test_the_kind_of_a_file_is_seen_without_running_it(tmp_path: Path, kind: str, annotation: str) -> None:
    path = tmp_path / "some.py"
    variable = registry.KINDS[kind][0]
    path.write_text("1 / 0\n" + source(kind).replace(f"{variable} =", f"{variable}{annotation} ="))
    assert registry.kind_of_file(path) == kind


@pytest.mark.parametrize("text", [None, "x = 1", "def (", "\0"])
def test_a_file_that_shows_no_kind_is_taken_for_a_mechanism(tmp_path: Path, text: str | None) -> None:
    """Loading it says what is wrong."""
    if text is not None:
        (tmp_path / "some.py").write_text(text)
    assert registry.kind_of_file(tmp_path / "some.py") == "mechanisms"


# what is refused


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "defines no MECHANISM"),
        ("MECHANISM = 'hst'", "is a str, not a Mechanism or Cell"),
        (SOURCES["tasks"].replace("TASK", "MECHANISM"), "is a Task, not a Mechanism or Cell"),
        ("def (", "SyntaxError"),
        ("from attnbench import Mechanism\nMECHANISM = Mechanism(summry='s')", "summry"),
        ("raise ValueError('first\\nsecond\\nthird')", "ValueError: first second third"),
        ("import attnbench.nothing_there", "nothing_there"),
        ("import sys\nsys.exit()", "importing it failed: SystemExit"),
        ("import sys\nsys.exit('first\\nsecond')", "importing it failed: SystemExit: first second"),
        (source("mechanisms").replace("paper", "causal='yes', paper"), "causal is no, capable or only, got 'yes'"),
        (source("mechanisms").replace("paper", "requires='torch', paper"), "requires is a tuple of package names"),
        (source("mechanisms").replace("paper", "requires=(1,), paper"), "requires is a tuple of package names"),
        (source("mechanisms").replace("paper", "presets=None, paper"), "presets maps names to values"),
        (source("mechanisms").replace("paper", "options=dict, paper"), "options is no frozen dataclass"),
        (source("mechanisms").replace("paper", "options=3, paper"), "options is no frozen dataclass"),
        (THAWED + source("mechanisms").replace("paper", "options=Thawed, paper"), "options is no frozen dataclass"),
        (THAWED + source("mechanisms").replace("paper", "options=Thawed(), paper"), "options is no frozen dataclass"),
    ],
)
def test_a_broken_file_is_one_line_that_names_it(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    found = refused("mechanisms", str(path))
    assert said in found and "broken.py" in found


def test_a_package_that_ends_the_program_when_imported_is_one_line(install: Install) -> None:
    install("quitter", "import sys\nsys.exit(0)\n", "[attnbench.mechanisms]\nquits = quitter:MECHANISM\n")
    assert "importing it failed: SystemExit" in refused("mechanisms", "quits")


def test_a_file_that_broke_can_be_mended_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "mended.py"
    path.write_text("raise ValueError('not yet')")
    refused("mechanisms", str(path))
    path.write_text(source("mechanisms", "now it works"))
    assert registry.load("mechanisms", str(path)).object.summary == "now it works"


def test_a_file_changed_after_loading_is_loaded_anew(tmp_path: Path) -> None:
    """In one session the hash in the record must be that of the code that ran."""
    path = tmp_path / "edited.py"
    path.write_text(source("mechanisms", "first"))
    first = registry.load("mechanisms", str(path))
    path.write_text(source("mechanisms", "second"))
    second = registry.load("mechanisms", str(path))
    assert (first.source_sha == second.source_sha) == (first.object.summary == second.object.summary)
    assert second.object.summary == "second"


@pytest.mark.parametrize("home", ["file", "folder", "package", "class"])
def test_a_package_that_is_missing_is_unsupported_and_named(
    tmp_path: Path, folder: Path, install: Install, home: str
) -> None:
    text = "import no_such_package\n" + source("mechanisms")
    (tmp_path / "needy_file.py").write_text(text)
    (folder / "mechanisms" / "needy_folder.py").write_text(text)
    install("needy_lib", text, "[attnbench.mechanisms]\nneedy_package = needy_lib:MECHANISM\n")
    reference = {"file": str(tmp_path / "needy_file.py"), "class": "needy_lib:Thing"}.get(home, f"needy_{home}")
    assert "no_such_package" in refused("mechanisms", reference, Unsupported)


@pytest.mark.parametrize("requires", ["no_such_package", "no_such_package.kernels"])
def test_a_package_that_is_declared_and_missing_is_unsupported(tmp_path: Path, requires: str) -> None:
    path = tmp_path / "declares.py"
    path.write_text(source("mechanisms").replace("paper=", f"requires=('{requires}',), paper="))
    with pytest.raises(Unsupported, match="no_such_package"):
        refusals.check_runnable(plan.make(str(path), "recall"))


@pytest.mark.parametrize("reference", ["./none.py", "./notes.txt", "./a_folder", "./none"])
def test_a_path_to_no_python_file_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("x = 1")
    (tmp_path / "a_folder").mkdir()
    assert reference.removeprefix("./") in refused("mechanisms", reference)


# the hash


def sha(folder: Path, text: str, neighbour: str = "x = 1\n", name: str = "some", ends: str = "\n") -> str:
    """Hash of a mechanism in a package of its own, which imports `_own` and leaves `_other` alone."""
    folder.mkdir()
    (folder / "_own.py").write_text(neighbour)
    (folder / "_other.py").write_text(f"y = 1  # {folder}\n")
    (folder / f"{name}.py").write_bytes(text.replace("\n", ends).encode())
    return registry.load("mechanisms", str(folder / f"{name}.py")).source_sha


IMPORTING = "if False:\n    from . import _own\n" + SOURCES["mechanisms"].format(summary="s")


def test_the_source_hash_changes_with_the_file_and_its_neighbour_alone(tmp_path: Path) -> None:
    base = sha(tmp_path / "a", IMPORTING)
    assert sha(tmp_path / "b", IMPORTING) == base, "not with the folder, nor with files it does not import"
    assert sha(tmp_path / "c", IMPORTING, ends="\r\n") == base
    assert sha(tmp_path / "d", IMPORTING + "\n") != base
    assert sha(tmp_path / "e", IMPORTING, neighbour="x = 2\n") != base
    assert sha(tmp_path / "f", IMPORTING.replace("from . import _own", "from ._own import x"), "x = 1\n") != base
    assert sha(tmp_path / "g", IMPORTING, neighbour="from ._other import y\n") != base


def test_a_file_with_a_byte_order_mark_loads(tmp_path: Path) -> None:
    """As Windows editors write it, and Python reads it."""
    path = tmp_path / "marked.py"
    path.write_bytes(b"\xef\xbb\xbf" + source("mechanisms", "marked").encode())
    assert registry.load("mechanisms", str(path)).object.summary == "marked"


def test_the_hash_of_a_real_task_covers_its_generator(install: Install) -> None:
    """A copy of Pathfinder, before and after a change in a file that only its own private files import."""
    points = "".join(f"pathfinder_{n} = copied_{n}.pathfinder:TASK\n" for n in "abc")
    site = install("copied", "", f"[attnbench.tasks]\n{points}")
    for name in "abc":
        shutil.copytree(ROOT / "tasks", site / f"copied_{name}")
    changed = site / "copied_c" / "_pathfinder" / "growth.py"
    changed.write_text(changed.read_text("utf-8") + "\nUNUSED = 1\n")
    found = {name: registry.load("tasks", f"pathfinder_{name}").source_sha for name in "abc"}
    assert found["a"] == found["b"] == registry.load("tasks", "pathfinder").source_sha
    assert found["c"] != found["a"]


def test_the_hash_of_a_class_is_that_of_the_file_that_defines_it() -> None:
    """Not of the package that passes it on, which all classes of torch.nn share."""
    identity, relu = (registry.load("mechanisms", f"torch.nn:{name}").source_sha for name in ("Identity", "ReLU"))
    assert identity != relu
    assert relu == registry.load("mechanisms", "torch.nn.modules.activation:ReLU").source_sha != "unknown"


BUILDERS = {
    "function": "def build(shape, options, more=0): return None",
    "lambda": "build = lambda shape, options: None",
    "partial": "import functools\ndef made(shape, options, more): return None\nbuild = functools.partial(made, more=1)",
}


@pytest.mark.parametrize("builder", BUILDERS)
def test_the_hash_of_an_entry_point_that_passes_a_plugin_on_covers_both_files(install: Install, builder: str) -> None:
    text = BUILDERS[builder] + "\n" + source("mechanisms").replace("lambda shape, options: None", "build")
    package = f"passing_{builder}"
    points = f"[attnbench.mechanisms]\n{package} = {package}:MECHANISM\n"
    site = install(package, f"from {package}_parts.inner import MECHANISM\n", points)
    (site / f"{package}_parts").mkdir()
    inner, outer = site / f"{package}_parts" / "inner.py", next(site.glob(f"{package}*.py"))
    inner.write_text(text)
    found = [registry.load("mechanisms", package).source_sha]
    for file in (inner, outer):
        before = file.read_text()
        file.write_text(before + "\n")
        found.append(registry.load("mechanisms", package).source_sha)
        file.write_text(before)
    assert len(set(found)) == 3 and registry.load("mechanisms", package).source_sha == found[0]


# plain classes

MODULES = """
from torch import nn

class Plain(nn.Module):
    def __init__(self, d_model, nhead=8, rate: float = 0.5, deep: bool = False, other=None):
        super().__init__()
        self.got = dict(d_model=d_model, nhead=nhead, rate=rate, deep=deep, other=other)
        self.linear = nn.Linear(d_model, d_model)
    def forward(self, x, key_mask=None):
        self.mask = key_mask
        return self.linear(x)

class Maskless(nn.Linear):
    def __init__(self, dim, max_len):
        super().__init__(dim, dim)

class Pair(nn.Module):
    def __init__(self, dim):
        super().__init__()
    def forward(self, x):
        return x, None

class Secret(nn.Module):
    def __init__(self, dim, codebook):
        super().__init__()

def function(dim):
    return nn.Linear(dim, dim)
"""


@pytest.fixture
def library(install: Install) -> str:
    install("some_library", MODULES, "")
    return "some_library"


def test_a_class_is_filled_by_the_names_of_its_parameters(library: str) -> None:
    import torch

    chosen = plan.make(f"{library}:Plain", "digits", settings={"rate": "0.25", "plain.deep": "true"})
    mechanism = chosen.mechanism.plugin.object
    assert chosen.label == "plain" and mechanism.honours_masks and not mechanism.length_bound
    assert chosen.mechanism.spec()["options"] == {"rate": 0.25, "deep": True}
    from attnbench import MixerShape

    mixer = mechanism.build(MixerShape(dim=12, heads=3, length=7), chosen.mechanism.options)
    assert mixer.module.got == {"d_model": 12, "nhead": 3, "rate": 0.25, "deep": True, "other": None}
    mask = torch.ones(2, 7, dtype=torch.bool)
    assert mixer(torch.zeros(2, 7, 12), mask).shape == (2, 7, 12)
    assert mixer.module.mask is mask


def test_a_class_that_takes_no_mask_or_a_length_says_so(library: str) -> None:
    found = registry.load("mechanisms", f"{library}:Maskless").object
    assert not found.honours_masks and found.length_bound
    with pytest.raises(Unsupported):
        refusals.check_runnable(plan.make(f"{library}:Maskless", "digits", regularizer="sar"))
    refusals.check_runnable(plan.make(f"{library}:Maskless", "digits"))


def test_a_class_that_does_not_fit_is_refused_in_one_line(library: str) -> None:
    import torch

    from attnbench import MixerShape

    assert "needs 'codebook'" in refused("mechanisms", f"{library}:Secret")
    assert "not a torch nn.Module class" in refused("mechanisms", f"{library}:function")
    assert "did you mean Plain" in refused("mechanisms", f"{library}:Plane", UnknownName)
    assert "no_such_library" in refused("mechanisms", "no_such_library:Plain", Unsupported)
    pair = registry.load("mechanisms", f"{library}:Pair").object
    with pytest.raises(AttnbenchError, match=r"Pair returned tuple, expected a tensor \(1, 2, 8\)"):
        pair.build(MixerShape(dim=8, heads=2, length=2), pair.options())(torch.zeros(1, 2, 8))
