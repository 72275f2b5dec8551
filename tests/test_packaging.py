"""What is shipped is what lies on disk, and what is installed is what is declared."""

from __future__ import annotations

import os
import tarfile
import tomllib
import zipfile
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
CODE = ("attnbench", "mechanisms", "suites", "tasks")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]


def installed_path(path: Path) -> str:
    """Where a file of the checkout lies once installed: mechanisms/, suites/ and tasks/ move below attnbench/."""
    relative = path.relative_to(ROOT)
    return relative.as_posix() if relative.parts[0] == "attnbench" else f"attnbench/{relative.as_posix()}"


def code_files() -> list[Path]:
    """Every file of the folders that become packages."""
    return [p for top in CODE for p in (ROOT / top).rglob("*") if p.is_file() and "__pycache__" not in p.parts]


def direct_requirements() -> list[Requirement]:
    project = PYPROJECT["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    return [r for r in map(Requirement, lines) if r.marker is None or r.marker.evaluate()]


def pins() -> dict[str, Requirement]:
    lines = (line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines())
    return {canonicalize_name(r.name): r for r in map(Requirement, filter(None, lines))}


def test_packages_are_the_folders_on_disk() -> None:
    """A folder that is missing from the list works in the checkout and is silently absent from the wheel."""
    on_disk = [installed_path(p.parent).replace("/", ".") for p in code_files() if p.name == "__init__.py"]
    assert sorted(SETUPTOOLS["packages"]) == sorted(on_disk)


def test_every_folder_with_code_is_a_package() -> None:
    folders = {p.parent for p in code_files() if p.suffix == ".py"}
    assert [str(f) for f in sorted(folders) if not (f / "__init__.py").is_file()] == []


def test_package_data_covers_every_other_file() -> None:
    def covered(path: Path) -> bool:
        for package, patterns in SETUPTOOLS["package-data"].items():
            prefix = package.replace(".", "/") + "/"
            name = installed_path(path)
            if name.startswith(prefix) and any(fnmatch(name.removeprefix(prefix), pattern) for pattern in patterns):
                return True
        return False

    others = [p for p in code_files() if p.suffix != ".py"]
    assert ROOT / "attnbench" / "py.typed" in others
    assert [str(p) for p in others if not covered(p)] == []


@pytest.mark.parametrize("requirement", direct_requirements(), ids=lambda r: r.name)
def test_constraints_pin_every_direct_dependency(requirement: Requirement) -> None:
    pin = pins().get(canonicalize_name(requirement.name))
    assert pin is not None, f"constraints.txt does not name {requirement.name}"
    ((operator, pinned),) = ((s.operator, s.version) for s in pin.specifier)
    assert operator == "=="
    assert requirement.specifier.contains(pinned)


@pytest.mark.parametrize("requirement", direct_requirements(), ids=lambda r: r.name)
def test_installed_versions_satisfy_the_declared_ranges(requirement: Requirement) -> None:
    assert requirement.specifier.contains(version(requirement.name), prereleases=True)


@pytest.fixture
def built() -> Path:
    """The folder with a built sdist and wheel; `make wheel-test` names it."""
    folder = os.environ.get("ATTNBENCH_DIST")
    if not folder:
        pytest.skip("ATTNBENCH_DIST names no folder: run `make wheel-test`")
    return Path(folder)


def test_wheel_holds_exactly_the_code(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == {installed_path(p) for p in code_files()}


def test_sdist_holds_the_code_and_the_licence(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {p.relative_to(ROOT).as_posix() for p in code_files()} | {"LICENSE", "README.md", "pyproject.toml"}
    assert wanted - held == set()
