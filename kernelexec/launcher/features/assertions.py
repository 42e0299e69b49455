"""What a test case says of the code under test: it holds, it does not, or it could not be told."""

from __future__ import annotations

import ast
import inspect
import itertools
import linecache
import operator
from asyncio import run as run_coroutine
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CodeType
from typing import Any, NoReturn

from ..output.truncate import truncate
from .pristine_modules import PristineModules

#: What tutorials have their cases append to.
RESULTS = "test_results"
CODE = "<code under test>"
#: A call of what is called so asserts by itself: that it gives None says nothing.
_ASSERTING = ("assert", "check", "expect", "test", "verify")
#: What %%time calls its body, whose lines it counts anew.
_TIMED = ("<timed exec>", "<timed eval>")
_VALUE_CHARS, _TOLD_CHARS = 300, 2000
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
_EVALUATE, _COROUTINE = eval, inspect.CO_COROUTINE


@dataclass
class CaseVerdict:
    """``verdict`` is PASS, FAIL or ERROR; ``line`` is one of the case, or of the code under test."""

    verdict: str
    message: str = ""
    line: int | None = None
    line_text: str | None = None
    in_code: bool = False

    def as_dict(self) -> dict[str, Any]:
        """It, in JSON types, with no text longer than a reader can use."""
        return {name: _cut(value, _TOLD_CHARS) if isinstance(value, str) else value for name, value in vars(self).items()}


class _Judged(Exception):
    """The case has ended, with a verdict."""

    def __init__(self, verdict: str, message: str, line: int | None = None) -> None:
        self.verdict, self.line = verdict, line
        super().__init__(message)


class CaseRunner:
    """Runs texts in the namespace of the shell, and says how they end; what they do to it stays there."""

    def __init__(self, shell: Any, modules: PristineModules) -> None:
        self._shell, self._namespace, self._modules = shell, shell.user_ns, modules
        self._lines: dict[str, list[str]] = {}
        shell.ask_exit = self._exit  # IPython's exit() and quit() only leave a note

    def of_code(self, source: str) -> CaseVerdict:
        """Run the code under test: PASS, or the ERROR that it ends with."""
        try:
            if source.strip():
                self._perform(self._prepared(source, CODE), CODE)
        except BaseException as exc:
            return self._failure(exc, CODE)
        return CaseVerdict("PASS")

    def of_case(self, source: str, name: str) -> CaseVerdict:
        """Run a case, in whose tracebacks ``name`` stands for its file."""
        self._namespace[RESULTS] = []
        try:
            self._hold(self._prepared(source, name), name)
        except BaseException as exc:
            return self._failure(exc, name)
        return CaseVerdict("PASS")

    def _prepared(self, source: str, name: str) -> ast.Module:
        """The syntax tree of a text.

        Raises:
            SyntaxError: it is not Python.
        """
        self._shell.failed_within = None
        lines = self._lines[name] = source.splitlines(keepends=True)
        linecache.cache[name] = (len(source), None, lines, name)
        blank = sum(1 for _ in itertools.takewhile(str.isspace, lines))  # which IPython takes away
        text: str = self._shell.transform_cell("".join(lines[blank:]))
        return ast.parse("\n" * blank + text, name)

    def _perform(self, tree: ast.Module, name: str) -> None:
        """Run a text, top-level ``await`` included."""
        self._run(compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))

    def _hold(self, tree: ast.Module, name: str) -> None:
        """Run a case.

        Raises:
            _Judged: it does not hold: a value that it ends with, or one of those that it appended, is not true.
        """
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        alone = not tree.body
        self._perform(tree, name)
        value = self._value(last.value, name, explain=alone) if isinstance(last, ast.Expr) else None
        appended = self._count_results()
        if not isinstance(last, ast.Expr):
            return
        own = _method_of_shell(last.value)
        if own == "system" and (code := self._namespace.get("_exit_code")):
            raise _Judged("ERROR", f"{self._last_line(name)} ended with exit code {code}.", last.lineno)
        if value is None and (appended or own or _called(last.value).startswith(_ASSERTING)):
            return
        if not self._modules.call(operator.truth, value) if alone else _is_false(value):
            raise _Judged("FAIL", f"{self._last_line(name) if own else ast.unparse(last.value)} is {_shown(value)}")

    def _count_results(self) -> int:
        """How many results there are, whatever a case has put in the place of the list.

        Raises:
            _Judged: one of them is not true.
        """
        content = self._namespace.get(RESULTS, [])
        if isinstance(content, dict):
            content = content.values()
        many = isinstance(content, Iterable) and not isinstance(content, str | bytes)
        results = self._modules.call(list, content) if many else [content]
        truths = [self._modules.call(operator.truth, result) for result in results]
        false = [str(position) for position, truth in enumerate(truths, 1) if not truth]
        if false:
            raise _Judged("FAIL", f"Of {len(results)} results not true: {', '.join(false)}.")
        return len(results)

    def _value(self, node: ast.expr, name: str, *, explain: bool) -> Any:
        """What an expression gives.

        Raises:
            _Judged: it compares two values, which are told, and it does not hold.
        """
        match node:
            case ast.Compare(left=left, ops=[compared], comparators=[right]) if explain:
                values = self._evaluated(left, name), self._evaluated(right, name)
                value = self._modules.call(_COMPARED[type(compared)], *values)
                if not self._modules.call(operator.truth, value):
                    operands = [
                        f"{ast.unparse(side)} is {_shown(of_side)}"
                        for side, of_side in zip((left, right), values, strict=True)
                        if not isinstance(side, ast.Constant)
                    ]
                    raise _Judged("FAIL", "; ".join([f"{ast.unparse(node)} does not hold", *operands]))
                return value
            case _:
                return self._evaluated(node, name)

    def _evaluated(self, node: ast.expr, name: str) -> Any:
        return self._run(compile(ast.Expression(node), name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))

    def _run(self, code: CodeType) -> Any:
        value = self._modules.call(_run, code, self._namespace)
        if within := self._shell.failed_within:  # which IPython only shows, as %%capture does
            name, message = within["ename"], within["evalue"]
            if name == "AssertionError":
                raise _Judged("FAIL", message or "an assertion does not hold")
            raise _Judged("ERROR", f"{name}: {message}".removesuffix(": "))
        return value

    def _exit(self) -> NoReturn:
        raise SystemExit(self._shell.keepkernel_on_exit or None)  # as of ipykernel 7.4: what exit() was given

    def _last_line(self, name: str) -> str:
        """What the user wrote where IPython has put something else."""
        return next((line.strip() for line in reversed(self._lines[name]) if not line.isspace()), "")

    def _failure(self, exc: BaseException, name: str) -> CaseVerdict:
        """What is said of a text that an exception came out of."""
        if isinstance(exc, _Judged):
            return self._at(CaseVerdict(exc.verdict, str(exc)), name, exc.line)
        if isinstance(exc, AssertionError) and name != CODE:
            outcome = self._placed(CaseVerdict("FAIL", truncate(exc)), exc, name)
            source = None if (outcome.line_text or "%%").startswith("%%") else outcome.line_text
            outcome.message = outcome.message or f"{source or 'an assertion'} does not hold"
            return outcome
        if isinstance(exc, SystemExit):
            how = "" if exc.code is None else f", with {_shown(exc.code)}"
            return self._placed(CaseVerdict("ERROR", f"It exits{how}."), exc, name)
        outcome = CaseVerdict("ERROR", f"{type(exc).__name__}: {truncate(exc)}".removesuffix(": "))
        if isinstance(exc, SyntaxError) and exc.filename in (name, CODE):
            return self._at(outcome, exc.filename, exc.lineno)
        return self._placed(outcome, exc, name)

    def _placed(self, outcome: CaseVerdict, exc: BaseException, name: str) -> CaseVerdict:
        """With the innermost line of the case's, or else of the code's, that the exception came by."""
        file, line, body, trace = name, 0, 0, exc.__traceback__
        while trace is not None:
            at, number = trace.tb_frame.f_code.co_filename, trace.tb_lineno or 0
            if at in (name, CODE):
                file, line = at, number
                blank = sum(1 for _ in itertools.takewhile(str.isspace, self._lines[at][line:]))
                body = line + blank if self._line(at, line).startswith("%%") else 0
            elif at in _TIMED and body:
                line = body + number
            trace = trace.tb_next
        return self._at(outcome, file, line)

    def _at(self, outcome: CaseVerdict, file: str, line: int | None) -> CaseVerdict:
        if line:
            outcome.line, outcome.line_text, outcome.in_code = line, self._line(file, line) or None, file == CODE
        return outcome

    def _line(self, file: str, line: int) -> str:
        return "".join(self._lines.get(file, [])[line - 1 : line]).strip() if line > 0 else ""


def _run(code: CodeType, namespace: dict[str, Any]) -> Any:
    value = _EVALUATE(code, namespace)
    return run_coroutine(value) if code.co_flags & _COROUTINE else value


def _method_of_shell(node: ast.expr) -> str:
    """Which method of IPython's shell an expression calls, as ``!`` and ``%`` do; nothing where it does not."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython")), attr=name)):
            return name
    return ""


def _called(node: ast.expr) -> str:
    """The last part of the name of what an expression calls, without underscores before it."""
    match node:
        case ast.Await(value=ast.Call(func=called)) | ast.Call(func=called):
            name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
            return name.lstrip("_").lower()
    return ""


def _is_false(value: Any) -> bool:
    """Whether it is False, numpy's included."""
    return value is False or (type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and not value)


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as exc:
        text = f"<{type(value).__name__} whose repr raises {type(exc).__name__}>"
    return _cut(text, _VALUE_CHARS)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
