"""ARCHITECTURE.md is the picture; these tests hold the code to it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import kernelexec
from tests.support.paths import ROOT

PACKAGE = ROOT / "kernelexec"
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
#: The modules of the launcher that other packages import.
SHARED = tuple(f"kernelexec.launcher.{name}" for name in ("protocol", "relayed_connections", "values", "processes.proc"))


def block(name: str) -> list[list[str]]:
    match = re.search(rf"```{name}\n(.*?)```", TEXT, re.DOTALL)
    assert match, f"ARCHITECTURE.md has no {name} block"
    return [line.split() for line in match[1].splitlines() if line.strip()]


@cache
def floors() -> dict[str, tuple[int, int]]:
    """Return the floor of each module and its position there."""
    positions = {}
    for line in block("floors"):
        if line[0] == "apart":
            positions.update(dict.fromkeys(line[1:], (-1, 0)))
        else:
            positions.update({name: (int(line[0]), position) for position, name in enumerate(line[2:])})
    return positions


@cache
def doors_of_libraries() -> dict[str, set[str]]:
    """Return the packages that may import each library; a library may have several lines."""
    doors: dict[str, set[str]] = {}
    for library, *packages in block("doors"):
        doors.setdefault(library, set()).update(packages)
    return doors


def inner_orders() -> dict[str, list[str]]:
    """Return the order of the folders and modules of each package that has folders; an order may take several lines."""
    orders: dict[str, list[str]] = {}
    for package, *names in block("inner"):
        orders.setdefault(package, []).extend(names)
    return orders


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE)
        yield (relative.parts[0].removesuffix(".py"), path)


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Return the absolute names of the modules, and of the names in them, that a module imports."""
    package, names = ["kernelexec", *path.relative_to(PACKAGE).parent.parts], list[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names += (f"{module}.{alias.name}" for alias in node.names)
    return tuple(names)


SOURCES = [pytest.param(top, path, id=str(path.relative_to(PACKAGE))) for top, path in modules()]


@pytest.mark.parametrize(("top", "path"), SOURCES)
def test_a_module_imports_only_from_below_and_from_its_left(top: str, path: Path) -> None:
    positions = floors()
    if top == "__init__":
        return
    assert top in positions, f"{path.name} stands on no floor"
    for name in imports(path):
        if not name.startswith("kernelexec."):
            continue
        other = name.split(".")[1]
        if other == top:
            continue
        assert top != "launcher", f"launcher imports {name}"
        if name.startswith(SHARED):
            continue
        assert other in positions, name
        assert other != "launcher", f"{path.name} imports {name}, which runs inside the kernel"
        assert positions[other] < positions[top], f"{top} imports {name}"


@pytest.mark.parametrize(("package", "order"), inner_orders().items(), ids=list(inner_orders()))
def test_inside_a_package_imports_lead_to_the_left(package: str, order: list[str]) -> None:
    directory = PACKAGE / package
    prefix = f"kernelexec.{package.replace('/', '.')}."
    entries = {entry.stem for entry in directory.iterdir() if entry.suffix == ".py" or (entry / "__init__.py").exists()}
    assert sorted(order) == sorted(name for name in entries if not name.startswith("__"))
    for path in directory.rglob("*.py"):
        own = path.relative_to(directory).parts[0].removesuffix(".py")
        for name in imports(path):
            other = name.removeprefix(prefix).split(".")[0] if name.startswith(prefix) else own
            if own not in ("__init__", other) and other in order:
                assert order.index(other) < order.index(own), f"{path.relative_to(PACKAGE)} imports {name}"


def test_every_package_with_folders_has_an_inner_order() -> None:
    parents = {path.parent.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE}
    assert {str(parent) for parent in parents if str(parent) != "."} == set(inner_orders())


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("__init__.py")), ids=lambda path: str(path.parent.relative_to(PACKAGE)))
def test_each_folder_says_its_purpose_in_at_most_forty_lines(path: Path) -> None:
    if path.parent == PACKAGE:
        return
    readme = path.with_name("README.md")
    assert readme.exists(), f"{readme.relative_to(ROOT)} is missing"
    assert len(readme.read_text(encoding="utf-8").splitlines()) <= 40


@pytest.mark.parametrize(("top", "path"), SOURCES)
def test_each_library_is_imported_at_its_doors_only(top: str, path: Path) -> None:
    doors = doors_of_libraries()
    for name in imports(path):
        library = name.split(".")[0]
        if library in sys.stdlib_module_names or library == "kernelexec":
            continue
        assert library in doors, f"{library} has no door"
        assert top in doors[library], f"{top} imports {library}"


@pytest.mark.parametrize("module", SHARED)
def test_modules_that_driver_and_launcher_share_need_the_standard_library_only(module: str) -> None:
    path = ROOT / f"{module.replace('.', '/')}.py"
    others = {name for name in imports(path) if not name.startswith("kernelexec.launcher.arrow_stream")}
    assert {name.split(".")[0] for name in others} <= sys.stdlib_module_names


@pytest.mark.parametrize(("top", "path"), SOURCES)
def test_no_file_is_longer_than_600_lines(top: str, path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= 600


def test_every_module_on_a_floor_exists() -> None:
    tops = {top for top, _ in modules()}
    assert set(floors()) == tops - {"__init__"}


def test_architecture_stays_readable() -> None:
    assert len(TEXT.splitlines()) <= 200
    assert [line for line in TEXT.splitlines() if len(line) > 120] == []


def test_the_public_names_are_what_all_says() -> None:
    for name in kernelexec.__all__:
        assert hasattr(kernelexec, name), name
    assert kernelexec.__all__ == sorted(kernelexec.__all__)


@pytest.mark.parametrize("package", ["", ".rules.policy", ".provisioning", ".results", ".session", ".workspace"])
def test_the_names_of_a_package_are_those_that_type_checkers_see(package: str) -> None:
    module: Any = import_module(f"kernelexec{package}")
    blocks = (node for node in ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body if isinstance(node, ast.If))
    imported = {
        (node.module, alias.asname) for node in next(blocks).body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert imported == {(f"{module.__name__}.{relative}", name) for name, relative in module._MODULES.items()}
    assert all(hasattr(module, name) for name in module.__all__)
    with pytest.raises(AttributeError, match=f"kernelexec{package}"):
        _ = module.Sesion


def test_the_reference_is_made_of_modules_that_are_there() -> None:
    text = (ROOT / ".ci" / "reference").read_text(encoding="utf-8")
    names = set(re.findall(r"\bkernelexec(?:\.[a-z_]+)+(?![\w.{])", text)) - {"kernelexec.html", "kernelexec.__all__"}
    assert len(names) > 3
    assert [name for name in names if find_spec(name) is None] == []
