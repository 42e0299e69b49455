"""Which code may run: modules and built-in functions that are forbidden, judged on the syntax tree."""

from __future__ import annotations

import pytest

from kernelexec.cells import parse
from kernelexec.config import Config
from kernelexec.rules.policy import CodeRules, Policy

RULES = CodeRules.from_config(Config.model_validate({"isolation": "local", "rules": {"code": "tutorial"}}))
FORBIDDEN = {
    "forbidden-module": [
        "import os",
        "import  os",
        "from os import system",
        "import json, os",
        "import os.path as p",
        "importlib.import_module('os')",
        "import_module(name)",
        "import subprocess",
        "import sys",
        "import requests",
        "import urllib.request",
        "from urllib import request",
        "import json, socket",
        "from http import client",
        "import builtins",
        "def f():\n    import os",
    ],
    "forbidden-name": [
        "exec(x)",
        "eval('1')",
        "open('f')",
        "file('f')",
        "__import__('os')",
        "globals()",
        "locals()['x']",
        "f = open",
        "map(eval, texts)",
        "__builtins__['open']",
        "f.__globals__['x']",
        "object.__subclasses__()",
    ],
}
ALLOWED = [
    "import osmnx",
    "import operator",
    "import httpx",
    "import sysconfig",
    "model.eval()",
    "df.eval('a')",
    "reopen(x)",
    "profile('x')",
    "x = 'import sys'",
    "# import os",
    "from . import os",
    "def open(x):\n    return x\nopen(1)",
    "import numpy as np; np.zeros(3)",
]
AS_CELLS = ["%time import os", "%timeit -n 1 eval('1')", "%%time\nimport os", "%%python\nimport os", "!ls\nimport os"]
ALSO_CELLS = ["%matplotlib inline\nx = 1", "%%html\n<b>import os</b>", "!python -c 'import os'", "x = !ls", "%time x = 1"]


@pytest.mark.parametrize(("rule", "code"), [(rule, code) for rule, codes in FORBIDDEN.items() for code in codes])
def test_forbidden_code_is_refused_in_any_spelling(rule: str, code: str) -> None:
    refusal = RULES.check(code)
    assert refusal is not None
    assert refusal.rule == rule


@pytest.mark.parametrize("code", ALLOWED)
def test_code_that_only_looks_forbidden_is_allowed(code: str) -> None:
    assert RULES.check(code) is None


def test_invalid_python_is_refused_only_by_rules() -> None:
    refusal = RULES.check("def f(:")
    assert refusal is not None
    assert refusal.rule == "unread"
    assert CodeRules().check("def f(:") is None


@pytest.mark.parametrize(("cells", "refused"), [(AS_CELLS, True), (ALSO_CELLS, False)], ids=["refused", "allowed"])
def test_cells_are_judged_with_their_magics(cells: list[str], refused: bool) -> None:  # noqa: FBT001 - a parameter
    judge = Policy.from_config(Config.model_validate({"isolation": "local", "rules": {"code": "tutorial"}}))
    judged = {cell: judge.check(parse(cell, limit_bytes=10_000)) for cell in cells}
    assert {cell: actual is not None for cell, actual in judged.items()} == dict.fromkeys(cells, refused)


def test_modules_can_be_added_or_be_the_only_ones() -> None:
    own = CodeRules.from_config(Config.model_validate({"isolation": "local", "rules": {"forbidden_modules": ["ctypes"]}}))
    assert [bool(own.check(code)) for code in ("import ctypes.util", "import os", "open('f')")] == [True, False, False]
    assert RULES.check("import ctypes") is None
