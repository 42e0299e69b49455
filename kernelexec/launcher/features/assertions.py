"""Verdicts of test cases on the code under test: PASS, FAIL, or ERROR where a case cannot be checked."""

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

#: The list to which cases append their results, as in tutorials.
RESULTS = "test_results"
CODE = "<code under test>"
#: Functions whose names begin so assert by themselves: their value None is no failure.
_ASSERTING = ("assert", "check", "expect", "test", "verify")
#: File names of the body of %%time, whose lines IPython counts from one.
_TIMED_FILES = ("<timed exec>", "<timed eval>")
_VALUE_CHARS, _MESSAGE_CHARS = 300, 2000
_OPERATORS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
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
    """A verdict of PASS, FAIL or ERROR. ``line`` is in the case, or in the code under test if ``in_code``."""

    verdict: str
    message: str = ""
    line: int | None = None
    line_text: str | None = None
    in_code: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict in JSON types, with texts cut to 2,000 characters."""
        return {name: _cut(value, _MESSAGE_CHARS) if isinstance(value, str) else value for name, value in vars(self).items()}


class _CaseFailed(Exception):
    """The end of a case that does not pass, with its verdict."""

    def __init__(self, verdict: str, message: str, line: int | None = None) -> None:
        self.verdict, self.line = verdict, line
        super().__init__(message)


class CaseRunner:
    """A runner of code and cases in the namespace of the shell, which keeps their changes."""

    def __init__(self, shell: Any, modules: PristineModules) -> None:
        self._shell, self._namespace, self._modules = shell, shell.user_ns, modules
        self._lines: dict[str, list[str]] = {}
        shell.ask_exit = self._exit  # IPython's exit() and quit() only set a flag

    def run_code(self, source: str) -> CaseVerdict:
        """Run the code under test; return PASS, or the ERROR that ended it."""
        try:
            if source.strip():
                self._execute(self._parse(source, CODE), CODE)
        except BaseException as exc:
            return self._describe_failure(exc, CODE)
        return CaseVerdict("PASS")

    def run_case(self, source: str, name: str) -> CaseVerdict:
        """Run a case, with ``name`` as its file name in tracebacks."""
        self._namespace[RESULTS] = []
        try:
            self._check_case(self._parse(source, name), name)
        except BaseException as exc:
            return self._describe_failure(exc, name)
        return CaseVerdict("PASS")

    def _parse(self, source: str, name: str) -> ast.Module:
        """Parse a text as IPython does; return its syntax tree.

        Raises:
            SyntaxError: the text is not Python.
        """
        self._shell.inner_error = None
        lines = self._lines[name] = source.splitlines(keepends=True)
        linecache.cache[name] = (len(source), None, lines, name)
        blank = sum(1 for _ in itertools.takewhile(str.isspace, lines))  # IPython removes these lines
        text: str = self._shell.transform_cell("".join(lines[blank:]))
        return ast.parse("\n" * blank + text, name)

    def _execute(self, tree: ast.Module, name: str) -> None:
        """Execute a syntax tree, which may ``await`` at the top level."""
        self._execute_code_object(compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))

    def _check_case(self, tree: ast.Module, name: str) -> None:
        """Run a case, and check its last value and its appended results.

        Raises:
            _CaseFailed: one of these values is not true, or a command failed.
        """
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        alone = not tree.body
        self._execute(tree, name)
        value = self._evaluate_or_explain(last.value, name, explain=alone) if isinstance(last, ast.Expr) else None
        appended = self._count_results()
        if not isinstance(last, ast.Expr):
            return
        shell_method = _find_shell_method(last.value)
        if shell_method == "system" and (code := self._namespace.get("_exit_code")):
            raise _CaseFailed("ERROR", f"{self._last_line(name)} ended with exit code {code}.", last.lineno)
        if value is None and (appended or shell_method or _find_called_name(last.value).startswith(_ASSERTING)):
            return
        if not self._modules.call(operator.truth, value) if alone else _is_false(value):
            raise _CaseFailed(
                "FAIL", f"{self._last_line(name) if shell_method else ast.unparse(last.value)} is {_short_repr(value)}"
            )

    def _count_results(self) -> int:
        """Return the number of results; a case may have replaced the list by any value.

        Raises:
            _CaseFailed: a result is not true.
        """
        content = self._namespace.get(RESULTS, [])
        if isinstance(content, dict):
            content = content.values()
        many = isinstance(content, Iterable) and not isinstance(content, str | bytes)
        results = self._modules.call(list, content) if many else [content]
        truths = [self._modules.call(operator.truth, result) for result in results]
        false = [str(position) for position, truth in enumerate(truths, 1) if not truth]
        if false:
            raise _CaseFailed("FAIL", f"Of {len(results)} results not true: {', '.join(false)}.")
        return len(results)

    def _evaluate_or_explain(self, node: ast.expr, name: str, *, explain: bool) -> Any:
        """Evaluate an expression; ``explain`` checks a comparison, whose failure names both values.

        Raises:
            _CaseFailed: the comparison does not hold.
        """
        match node:
            case ast.Compare(left=left, ops=[compared], comparators=[right]) if explain:
                values = self._evaluate(left, name), self._evaluate(right, name)
                value = self._modules.call(_OPERATORS[type(compared)], *values)
                if not self._modules.call(operator.truth, value):
                    operands = [
                        f"{ast.unparse(side)} is {_short_repr(of_side)}"
                        for side, of_side in zip((left, right), values, strict=True)
                        if not isinstance(side, ast.Constant)
                    ]
                    raise _CaseFailed("FAIL", "; ".join([f"{ast.unparse(node)} does not hold", *operands]))
                return value
            case _:
                return self._evaluate(node, name)

    def _evaluate(self, node: ast.expr, name: str) -> Any:
        return self._execute_code_object(compile(ast.Expression(node), name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))

    def _execute_code_object(self, code: CodeType) -> Any:
        value = self._modules.call(_evaluate_code, code, self._namespace)
        if within := self._shell.inner_error:  # IPython only shows this error, as for %%capture
            name, message = within["ename"], within["evalue"]
            if name == "AssertionError":
                raise _CaseFailed("FAIL", message or "an assertion does not hold")
            raise _CaseFailed("ERROR", f"{name}: {message}".removesuffix(": "))
        return value

    def _exit(self) -> NoReturn:
        raise SystemExit(self._shell.keepkernel_on_exit or None)  # the argument of exit(), as of ipykernel 7.4

    def _last_line(self, name: str) -> str:
        """Return the last line of a text as the user wrote it, before IPython transformed it."""
        return next((line.strip() for line in reversed(self._lines[name]) if not line.isspace()), "")

    def _describe_failure(self, exc: BaseException, name: str) -> CaseVerdict:
        """Return the verdict on a text that raised an exception."""
        if isinstance(exc, _CaseFailed):
            return self._set_line(CaseVerdict(exc.verdict, str(exc)), name, exc.line)
        if isinstance(exc, AssertionError) and name != CODE:
            outcome = self._locate(CaseVerdict("FAIL", truncate(exc)), exc, name)
            source = None if (outcome.line_text or "%%").startswith("%%") else outcome.line_text
            outcome.message = outcome.message or f"{source or 'an assertion'} does not hold"
            return outcome
        if isinstance(exc, SystemExit):
            how = "" if exc.code is None else f", with {_short_repr(exc.code)}"
            return self._locate(CaseVerdict("ERROR", f"It exits{how}."), exc, name)
        outcome = CaseVerdict("ERROR", f"{type(exc).__name__}: {truncate(exc)}".removesuffix(": "))
        if isinstance(exc, SyntaxError) and exc.filename in (name, CODE):
            return self._set_line(outcome, exc.filename, exc.lineno)
        return self._locate(outcome, exc, name)

    def _locate(self, outcome: CaseVerdict, exc: BaseException, name: str) -> CaseVerdict:
        """Add the innermost line of the traceback that is in the case or in the code under test."""
        file, line, body, trace = name, 0, 0, exc.__traceback__
        while trace is not None:
            at, number = trace.tb_frame.f_code.co_filename, trace.tb_lineno or 0
            if at in (name, CODE):
                file, line = at, number
                blank = sum(1 for _ in itertools.takewhile(str.isspace, self._lines[at][line:]))
                body = line + blank if self._line(at, line).startswith("%%") else 0
            elif at in _TIMED_FILES and body:
                line = body + number
            trace = trace.tb_next
        return self._set_line(outcome, file, line)

    def _set_line(self, outcome: CaseVerdict, file: str, line: int | None) -> CaseVerdict:
        if line:
            outcome.line, outcome.line_text, outcome.in_code = line, self._line(file, line) or None, file == CODE
        return outcome

    def _line(self, file: str, line: int) -> str:
        return "".join(self._lines.get(file, [])[line - 1 : line]).strip() if line > 0 else ""


def _evaluate_code(code: CodeType, namespace: dict[str, Any]) -> Any:
    value = _EVALUATE(code, namespace)
    return run_coroutine(value) if code.co_flags & _COROUTINE else value


def _find_shell_method(node: ast.expr) -> str:
    """Return the method of IPython's shell that an expression calls, as ``!`` and ``%`` do; an empty text for others."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython")), attr=name)):
            return name
    return ""


def _find_called_name(node: ast.expr) -> str:
    """Return the last part of the called function's name, without leading underscores; an empty text without a call."""
    match node:
        case ast.Await(value=ast.Call(func=called)) | ast.Call(func=called):
            name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
            return name.lstrip("_").lower()
    return ""


def _is_false(value: Any) -> bool:
    """Return whether a value is False, or numpy's False."""
    return value is False or (type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and not value)


def _short_repr(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as exc:
        text = f"<{type(value).__name__} whose repr raises {type(exc).__name__}>"
    return _cut(text, _VALUE_CHARS)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
