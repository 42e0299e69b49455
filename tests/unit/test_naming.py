"""The words of the package and of its tests are those of their field: this holds the part of that rule that can be counted."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import kernelexec

pytestmark = pytest.mark.nightly

PACKAGE, TESTS_ROOT = Path(kernelexec.__file__).parent, Path(__file__).parents[1]
#: Names that a library calls.
FOREIGN = {("launcher/ipython/messages.py", "closed")}
SOURCES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted(TESTS_ROOT.rglob("*.py"))
#: A module name may stand in two folders that tell its meanings apart, not in more.
MODULE_NAME_LIMIT = 2
VAGUE_NAMES = frozenset({"found", "said", "told", "given", "one", "made", "place", "why"})
#: Participles without the ending "ed"; those that are also verbs or nouns of the field (put, set, read) are left out.
IRREGULAR = frozenset(
    re.findall(
        r"\w+",
        """
    begun bound broken brought built caught chosen done drawn driven drunk eaten fallen felt found given gone grown had heard
    held hidden kept known laid led left lent lost made meant met paid risen said seen sent shown shut spent spoken stood sunk
    sworn taken taught thought told torn understood woken won worn written
    """,
    )
)
#: Words that end in "ed" and are no participles.
NOUNS = frozenset({"embed", "exceed", "feed", "need", "proceed", "seed", "speed", "succeed", "shed", "bed"})
#: Occurrences in 10,000 words of docstrings.
WORD_LIMITS = {"who": 1, "nobody": 1, "whoever": 1, "told": 1, "said": 1, "amid": 1, "what": 20}


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def relative(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def definitions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every variable, parameter, attribute and caught exception that the code binds, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name):
                yield name, node.lineno
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.ExceptHandler(name=str(name)):
                yield name, node.lineno
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, node.lineno


def is_participle(name: str) -> bool:
    return "_" not in name and (name in IRREGULAR or (name.endswith("ed") and name not in NOUNS))


def docstrings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


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
    for path, tree in zip(SOURCES, map(parse, SOURCES), strict=True):
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(relative(path))
    assert {name: paths for name, paths in classes.items() if len(paths) > 1} == {}


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_no_variable_has_a_vague_name(path: Path) -> None:
    assert [(name, line) for name, line in bound_names(parse(path)) if name in VAGUE_NAMES] == []


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_no_public_function_is_named_by_a_bare_participle(path: Path) -> None:
    names = [(node.name, node.lineno) for node in definitions(parse(path)) if is_participle(node.name)]
    assert [(name, line) for name, line in names if (relative(path), name) not in FOREIGN] == []


def test_docstrings_are_plain_english() -> None:
    text = "\n".join(text for tree in map(parse, SOURCES) for text in docstrings(tree))
    words = Counter(re.findall(r"[a-z]+(?:'[a-z]+)?", text.lower()))
    total = sum(words.values())
    assert {word: words[word] for word, limit in WORD_LIMITS.items() if words[word] * 10_000 > limit * total} == {}


def test_tests_have_no_vague_variables_and_plain_english_names() -> None:
    trees = {path.relative_to(TESTS_ROOT): parse(path) for path in TESTS}
    variables = {(str(path), name, line) for path, tree in trees.items() for name, line in bound_names(tree)}
    assert sorted(variable for variable in variables if variable[1] in VAGUE_NAMES) == []
    banned = {word for word, limit in WORD_LIMITS.items() if limit == 1}
    functions = {(str(path), node.name) for path, tree in trees.items() for node in definitions(tree)}
    assert sorted(function for function in functions if banned & set(function[1].split("_"))) == []
