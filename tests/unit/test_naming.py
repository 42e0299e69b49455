"""Names of modules, folders and classes, by which a reader finds a place."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import kernelexec

pytestmark = pytest.mark.nightly

PACKAGE = Path(kernelexec.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
#: A module name may stand in two folders that tell its meanings apart, not in more.
MODULE_NAME_LIMIT = 2


def relative(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def test_a_module_name_stands_in_two_folders_at_most() -> None:
    folders = defaultdict(list)
    for path in SOURCES:
        if not path.stem.startswith("__"):
            folders[path.stem].append(relative(path))
    assert {name: paths for name, paths in folders.items() if len(paths) > MODULE_NAME_LIMIT} == {}


def test_no_folder_holds_more_than_fifteen_modules() -> None:
    counts = Counter(relative(path.parent) for path in SOURCES if path.name != "__init__.py")
    assert {folder: count for folder, count in counts.items() if count > 15} == {}


def test_no_public_class_name_stands_twice() -> None:
    classes = defaultdict(list)
    for path in SOURCES:
        for node in ast.iter_child_nodes(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(relative(path))
    assert {name: paths for name, paths in classes.items() if len(paths) > 1} == {}
