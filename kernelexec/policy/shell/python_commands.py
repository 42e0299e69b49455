"""Commands that Python code starts by literal words: ``os.system("…")``, ``subprocess.run([…])``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernelexec.policy.magics import SHELL_CELLS, split_cell
from kernelexec.policy.shell.reader import UnparsableScript
from kernelexec.policy.shell.unknown_text import UNKNOWN

_BY_TEXT = frozenset({"system", "popen", "getoutput", "getstatusoutput", "create_subprocess_shell"})
_BY_WORDS = frozenset({"run", "call", "check_call", "check_output", "Popen", "spawn", "create_subprocess_exec"})
_WHERE = frozenset({"os", "subprocess", "sp", "pty", "asyncio", "commands", "get_ipython()", "ip", "ipython", "shell"})
#: Methods of IPython's shell that take its syntax, with the form of their arguments.
_BY_CELL = {"run_line_magic": "%{} {}", "run_cell_magic": "%%{} {}\n{}", "run_cell": "{}", "magic": "%{}"}
_CALLED = _BY_TEXT | _BY_WORDS | _BY_CELL.keys()


def commands_started_by(source: str) -> Iterator[str | list[str]]:
    """Yield each command, as a text for a shell or as words. Computed commands are not seen."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (node.args or node.keywords) and (name := _function_name(node.func)) is not None:
            arguments = [_literal_words(argument) for argument in (*node.args, *(keyword.value for keyword in node.keywords))]
            first = arguments[0]
            if isinstance(first, str) and name in _BY_TEXT | _BY_WORDS:
                words = [word for word in arguments if isinstance(word, str)]
                yield words if name == "create_subprocess_exec" else first
            elif isinstance(first, str):
                yield from _commands_of_cell_call(_BY_CELL[name], arguments)
            elif isinstance(first, list) and name in _BY_WORDS and first[:1] != [UNKNOWN]:
                yield first


def _commands_of_cell_call(form: str, arguments: list[str | list[str] | None]) -> Iterator[str | list[str]]:
    """Yield the commands of a call that takes a cell, or a magic's name, line and body."""
    texts = [text for text in arguments[: form.count("{}")] if isinstance(text, str)]
    if len(texts) < form.count("{}"):
        return
    form = "%%{}\n{}" if form == _BY_CELL["run_line_magic"] and texts[0] in SHELL_CELLS else form
    cell = split_cell(form.format(*texts))
    if cell.renaming_magic:
        raise UnparsableScript("it changes the meaning of magics' names")
    yield from cell.commands
    yield from commands_started_by(cell.python)


def _function_name(node: ast.expr) -> str | None:
    match node:
        case ast.Attribute(value=ast.Call(), attr=name) | ast.Attribute(attr="run_line_magic" | "run_cell_magic" as name):
            return name if name in _CALLED else None  # of what __import__("os") gives, or of any shell
        case ast.Attribute(value=value, attr=name) if name in _CALLED and ast.unparse(value) in _WHERE:
            return name
        case ast.Name(id=name) if name in _CALLED - {"run", "call", "spawn", "magic"}:
            return name
        case ast.Call(func=ast.Name(id="getattr"), args=[_, attribute, *_]):
            folded = _literal_words(attribute)
            return folded if isinstance(folded, str) and folded in _CALLED else None
    return None


def _literal_words(node: ast.expr) -> str | list[str] | None:
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = _literal_words(left), _literal_words(right)
            return first + second if isinstance(first, str) and isinstance(second, str) else None
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            words = [_literal_words(part) for part in parts]
            return [word if isinstance(word, str) else UNKNOWN for word in words]
        case ast.Attribute(value=ast.Name(id="sys"), attr="executable"):
            return "python"
    return None
