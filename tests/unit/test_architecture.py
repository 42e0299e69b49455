"""ARCHITECTURE.md is the picture; these tests hold the code to it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kernelexec
from tests.support.paths import ROOT

PACKAGE = ROOT / "kernelexec"
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
SHARED = (
    "kernelexec.launcher.protocol",
    "kernelexec.launcher.processes.proc",
)  # what others import of the launcher
LONG_FILES: dict[str, str] = {}  # path -> why it may be longer than 300 lines


def block(name: str) -> list[list[str]]:
    found = re.search(rf"```{name}\n(.*?)```", TEXT, re.DOTALL)
    assert found, f"ARCHITECTURE.md has no {name} block"
    return [line.split() for line in found[1].splitlines() if line.strip()]


def floors() -> dict[str, tuple[int, int]]:
    """Module name to (floor, place on the floor)."""
    placed = {}
    for line in block("floors"):
        if line[0] == "apart":
            placed.update(dict.fromkeys(line[1:], (-1, 0)))
        else:
            placed.update({name: (int(line[0]), place) for place, name in enumerate(line[2:])})
    return placed


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE)
        yield (relative.parts[0].removesuffix(".py"), path)


def imports(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0 and node.module in ("kernelexec", "kernelexec.launcher"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif node.level == 0 and node.module:
                yield node.module


SOURCES = [pytest.param(top, path, id=str(path.relative_to(PACKAGE))) for top, path in modules()]


@pytest.mark.parametrize(("top", "path"), SOURCES)
def test_a_module_imports_only_from_below_and_from_its_left(top: str, path: Path) -> None:
    placed = floors()
    if top == "__init__":
        return
    assert top in placed, f"{path.name} stands on no floor"
    for name in imports(path):
        if not name.startswith("kernelexec."):
            continue
        other = name.split(".")[1]
        if other == top:
            continue
        assert top != "launcher", f"launcher imports {name}"
        if name.startswith(SHARED):
            continue
        assert other in placed, name
        floor, place = placed[other]
        own_floor, own_place = placed[top]
        assert other != "launcher", f"{path.name} imports {name}, which runs inside the kernel"
        assert floor < own_floor or (floor == own_floor and place < own_place), f"{top} imports {name}"


@pytest.mark.parametrize(("top", "path"), SOURCES)
def test_each_library_is_imported_at_its_doors_only(top: str, path: Path) -> None:
    doors = {line[0]: set(line[1:]) for line in block("doors")}
    for name in imports(path):
        library = name.split(".")[0]
        if library in sys.stdlib_module_names or library == "kernelexec":
            continue
        assert library in doors, f"{library} has no door"
        assert top in doors[library], f"{top} imports {library}"


@pytest.mark.parametrize("module", SHARED)
def test_modules_that_driver_and_launcher_share_need_the_standard_library_only(module: str) -> None:
    path = ROOT / f"{module.replace('.', '/')}.py"
    assert {name.split(".")[0] for name in imports(path)} <= sys.stdlib_module_names
    assert not re.search(r"^from \.", path.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize(("top", "path"), SOURCES)
def test_no_file_is_longer_than_600_lines(top: str, path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= 600


def test_every_module_on_a_floor_exists() -> None:
    tops = {top for top, _ in modules()}
    assert set(floors()) == tops - {"__init__"}


def test_architecture_stays_readable() -> None:
    assert len(TEXT.splitlines()) <= 200


def test_the_public_names_are_what_all_says() -> None:
    for name in kernelexec.__all__:
        assert hasattr(kernelexec, name), name
    assert kernelexec.__all__ == sorted(kernelexec.__all__)
