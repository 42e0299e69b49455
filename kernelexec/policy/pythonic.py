"""The commands that a Python text runs, as far as it says them in plain words: ``os.system("…")``, ``subprocess.run([…])``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernelexec.policy.words import UNKNOWN

_BY_TEXT = frozenset({"system", "popen", "getoutput", "getstatusoutput", "create_subprocess_shell"})
_BY_WORDS = frozenset({"run", "call", "check_call", "check_output", "Popen", "spawn", "create_subprocess_exec"})
_WHERE = frozenset({"os", "subprocess", "sp", "pty", "asyncio", "commands", "get_ipython()", "ip"})


def commands(source: str) -> Iterator[str | list[str]]:
    """Each command, as a text for a shell or as words; what is computed is not seen."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and (name := _called(node.func)) is not None:
            given = [_constant(argument) for argument in node.args]
            first = given[0]
            if isinstance(first, str) and name in _BY_TEXT | _BY_WORDS:
                words = [word for word in given if isinstance(word, str)]
                yield words if name == "create_subprocess_exec" else first
            elif isinstance(first, list) and name in _BY_WORDS and first[:1] != [UNKNOWN]:
                yield first


def _called(node: ast.expr) -> str | None:
    match node:
        case ast.Attribute(value=value, attr=name) if name in _BY_TEXT | _BY_WORDS and ast.unparse(value) in _WHERE:
            return name
        case ast.Attribute(value=ast.Call(), attr=name) if name in _BY_TEXT | _BY_WORDS:
            return name  # of what __import__("os") gives
        case ast.Name(id=name) if name in (_BY_TEXT | _BY_WORDS) - {"run", "call", "spawn"}:
            return name
    return None


def _constant(node: ast.expr) -> str | list[str] | None:
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = _constant(left), _constant(right)
            return first + second if isinstance(first, str) and isinstance(second, str) else None
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            words = [_constant(part) for part in parts]
            return [word if isinstance(word, str) else UNKNOWN for word in words]
        case ast.Attribute(value=ast.Name(id="sys"), attr="executable"):
            return "python"
    return None
