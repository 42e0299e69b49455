"""Tools for code, for sessions, and for test cases in processes of their own; their descriptions are in ``descriptions.md``."""

from __future__ import annotations

import ast
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, cast

from fastmcp import Context
from fastmcp.tools import InputRequiredToolResult, ToolResult
from mcp.types import TextContent

from kernelexec.adapters.shared.markdown import find_only_block, infer_language
from kernelexec.config import SHORTEST_TIMEOUT
from kernelexec.errors import InvalidRequest
from kernelexec.mcp.answers import PREVIEW_CHARS, AnswerOptions, fit_answer, preview, render_answer
from kernelexec.mcp.elicitation import Elicitation, PartialResult
from kernelexec.mcp.sessions import SessionMethods
from kernelexec.results import OutputPage, SecurityError, TestCase, TestReport
from kernelexec.results.reports import CASE_SECONDS
from kernelexec.text import clean, clean_text, format_note, quote_output, utf8_size

_PAGE_BYTES = 20_000
_SHORTER_OUTPUT = "print less"
_FURTHEST_BYTES = 2**40
_JSON_CHARS, _LITERAL_CHARS = 1_000_000, 100_000
_NO_LANGUAGES = frozenset({"", "tool_code", "code", "text", "txt", "console", "ipynb", "json", "md", "markdown", "pycon"})


@dataclass(frozen=True, slots=True)
class ExecutionRow:
    """A running or queued execution; the first one runs."""

    execution_id: str
    code: str


@dataclass(frozen=True, slots=True)
class SessionRow:
    """An open session."""

    name: str
    busy: bool
    kernel_epoch: int
    workspace: str
    executions: list[ExecutionRow]


@dataclass(frozen=True, slots=True)
class SessionList:
    """The open sessions, oldest first."""

    sessions: list[SessionRow]


@dataclass(frozen=True, slots=True)
class NewSession:
    """A new session: its handle and the directory of its files."""

    session: str
    workspace: str


class CodeTools(SessionMethods):
    """Tools for code and sessions, with a method for each."""

    async def _make_cell_answer(self, result: PartialResult, elicitation: Elicitation, context: Context) -> ToolResult:
        if elicitation.input_required is not None:
            return InputRequiredToolResult(elicitation.input_required)
        return await render_answer(result, AnswerOptions.of(context, self._sessions))

    async def execute_code(
        self,
        context: Context,
        code: str,
        session: Annotated[
            str, "A name of letters, digits, dots, dashes, underscores, which creates it on first use; or a handle."
        ] = "default",
        language: str = "python",
        timeout: float | None = None,
        wait: float | None = None,
        request_id: Annotated[
            str | None, "A name: a request that is repeated with it runs nothing and returns the first result."
        ] = None,
    ) -> ToolResult:
        """Run a cell."""
        code, language = unwrap_code(code, language)
        elicitation = self._sessions.make_elicitation(context)
        partial_result = await self._sessions.resume(session, elicitation, wait=wait, sends=True)
        if partial_result is None:
            opened = await self._sessions.get_session(session, elicitation)
            send = partial(opened.execute, code, language=language, timeout=timeout, request_id=request_id)
            send = partial(send, approver=elicitation, on_input=self._sessions.choose_input_handler(elicitation))
            partial_result = await self._sessions.run_cell(opened, send, elicitation, wait=wait, title=opened.mask(code))
        return await self._make_cell_answer(partial_result, elicitation, context)

    async def wait_execution(
        self,
        context: Context,
        execution_id: str,
        wait: float | None = None,
        cursor: int = 0,
        session: str | None = None,
    ) -> ToolResult:
        """Wait for an execution."""
        elicitation = self._sessions.make_elicitation(context)
        if cursor < 0:
            raise InvalidRequest(f"cursor={cursor} must be 0 or the cursor of an earlier answer.")
        partial_result = await self._sessions.resume(session, elicitation, wait=wait, cursor=cursor)
        if partial_result is None:
            opened = await self._sessions.find_session_of(execution_id, session)
            partial_result = await self._sessions.follow(opened, execution_id, elicitation, wait=wait, cursor=cursor)
        return await self._make_cell_answer(partial_result, elicitation, context)

    async def read_output(
        self,
        execution_id: str,
        offset: int = 0,
        limit: int = _PAGE_BYTES,
        grep: str | None = None,
        session: str | None = None,
    ) -> ToolResult:
        """Read a page of output."""
        opened = await self._sessions.find_session_of(execution_id, session)
        begin, room = min(offset, _FURTHEST_BYTES), min(limit, _PAGE_BYTES * 5)
        is_running = (await opened.wait_for(execution_id, cursor=_FURTHEST_BYTES, wait=SHORTEST_TIMEOUT)).result is None
        page = await opened.read_output(execution_id, offset=begin, limit=room, grep=grep)
        nothing = "no output" if not begin and grep is None else "no matching line" if grep else "no more output"
        where = f"from byte {page.offset} of {page.total_bytes}; {_describe_next_page(page, is_running=is_running, grep=grep)}"
        return make_quoting_answer(page.text, where if page.text else f"{nothing}; {where}", "kernelexec/page", page)

    async def interrupt_kernel(self, context: Context, session: str = "default") -> ToolResult:
        """Interrupt the running cell."""
        result = await (await self._sessions.find_session(session)).interrupt()
        if result is None:
            return make_text_answer(f"Nothing runs in session {session}, so nothing was interrupted.")
        partial_result = PartialResult(self._sessions.rename_session(result), result.outputs)
        return await render_answer(partial_result, AnswerOptions.of(context, self._sessions))

    async def restart_kernel(self, session: str = "default") -> ToolResult:
        """Replace the kernel."""
        opened = await self._sessions.find_session(session)
        await opened.restart()
        return make_text_answer(
            f"Session {session} has a new kernel (kernel_epoch {opened.kernel_epoch}). Variables, imports, cd and export are "
            f"lost: define again the ones you need. Files are still in {opened.workspace}."
        )

    async def list_sessions(self) -> SessionList:
        """List the sessions."""
        rows = []
        for session in self._sessions.list_sessions():
            running = [ExecutionRow(*row) for row in await self._sessions.list_running(session)]
            name = self._sessions.format_session(session.name)
            rows.append(SessionRow(name, session.busy, session.kernel_epoch, str(session.workspace), running))
        return SessionList(rows)

    async def create_session(self) -> NewSession:
        """Create a session with a handle."""
        handle, opened = await self._sessions.create_session()
        return NewSession(handle, str(opened.workspace))

    async def close_session(self, session: str) -> ToolResult:
        """End a session."""
        await self._sessions.close_session(session)
        return make_text_answer(f"Session {session} is closed. Its variables are lost, its files are kept.")


def _describe_next_page(page: OutputPage, *, is_running: bool, grep: str | None) -> str:
    """Return how to read the next page, or the reason for the end."""
    if page.next_offset is not None:
        return f"continue with offset={page.next_offset}"
    if page.stored_bytes < page.total_bytes:
        return f"end of the kept output, the first {page.stored_bytes} bytes"
    if is_running:
        where = "" if grep else f" with offset={page.offset + utf8_size(page.text)}"
        return f"all output so far; the cell still runs, continue later{where}"
    return "end of output"


def make_text_answer(text: str, key: str = "", record: Any = None) -> ToolResult:  # noqa: ANN401 - any of our dataclasses
    """Return an answer with a text of ours; with a ``key``, the record is in the metadata."""
    content = [TextContent(type="text", text=clean_text(text))]
    return ToolResult(content=content, meta={key: clean(asdict(record) | {"text": None})} if key else None)


def make_quoting_answer(text: str, note: str, key: str, record: Any) -> ToolResult:  # noqa: ANN401 - as above
    """Return an answer with a note, and below the text of a cell or file."""
    quoted = quote_output(text)
    if quoted != text:
        note += r"; invisible characters are shown as escapes such as \u202e, and marks as \[kernelexec:"
    return make_text_answer("\n".join(filter(None, (format_note(note), quoted))), key, record)


def unwrap_code(code: str, language: str) -> tuple[str, str]:
    """Return the code and its language out of a Markdown fence around the whole code, a call as JSON, or both."""
    for unwrap in (_unwrap_call, _unwrap_block) * 2:
        code, language = unwrap(code, language)
    return code, language


def _unwrap_block(code: str, language: str) -> tuple[str, str]:
    """Return the code of a block around the whole code, or of the only block in a text that should be Python but is not."""
    sent = code.strip()
    is_whole = sent.startswith(("```", "~~~")) and sent.endswith(sent[:3])
    is_python = len(sent) <= _JSON_CHARS and language.lower().startswith(("py", "ipy"))
    block = find_only_block(code) if is_whole or is_python else None
    if block is None or (not is_whole and infer_language(code) == "python"):
        return code, language
    tags = {block.language, sent.splitlines()[0].strip("`~ ")}
    return block.code, language if tags & _NO_LANGUAGES or block.language.startswith("python3.") else block.language


def _unwrap_call(code: str, language: str) -> tuple[str, str]:
    """Return code and language of a call as JSON or as a Python literal; the other arguments of the call are ignored."""
    sent, call = code.strip().removeprefix("[").removesuffix("]").strip(), None
    if sent.startswith("{") and sent.endswith("}") and "code" in sent:
        for read, limit in ((partial(json.loads, strict=False), _JSON_CHARS), (ast.literal_eval, _LITERAL_CHARS)):
            with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                call = call or (read(sent) if len(sent) <= limit else None)
    values = call.get("arguments", call) if isinstance(call, dict) else None
    if isinstance(values, str) and (inner := _unwrap_call(values, language))[0] is not values:
        return inner
    own = CodeTools.execute_code.__annotations__.keys()
    if isinstance(values, dict) and isinstance(values.get("code"), str) and values.keys() <= own:
        return values["code"], str(values.get("language") or language)
    return code, language


@dataclass(frozen=True, slots=True)
class CaseAnswer:
    """Result of a case: PASS, FAIL or ERROR, with a message; the line is of the case, or of the code if in_code."""

    case: str
    verdict: str
    message: str
    line: int | None
    line_text: str | None
    in_code: bool
    output: str
    duration: float


@dataclass(frozen=True, slots=True)
class TestsAnswer:
    """Results of all cases with a summary; error is set if the code itself failed and no case ran."""

    __test__ = False  # pytest would collect a class of this name

    ok: bool
    summary: str
    error: CaseAnswer | None
    output: str
    cases: list[CaseAnswer]


class TestingTools(SessionMethods):
    """Tool that runs test cases."""

    __test__ = False  # as above

    async def run_tests(
        self,
        context: Context,
        cases: Annotated[list[str], "Expressions that must be true, or statements with assert. 1 to 200."],
        code: Annotated[str, "Code to test; empty to test the session's variables."] = "",
        timeout: Annotated[float, "Seconds for the code and for each case."] = CASE_SECONDS,
        session: str = "default",
    ) -> TestsAnswer:
        """Run test cases."""
        elicitation = self._sessions.make_elicitation(context)
        opened = await self._sessions.get_session(session, elicitation)
        try:
            async with elicitation.report_while("the cases run", self._sessions.interval):
                report = await opened.run_tests(code, cases, timeout=timeout, approver=elicitation)
            return fit_answer(partial(_make_tests_answer, report), PREVIEW_CHARS)
        except SecurityError:
            if elicitation.input_required is None:
                raise
        return cast("TestsAnswer", elicitation.input_required)  # fastmcp passes it on; the schema is for other answers


def _make_tests_answer(report: TestReport, chars: int) -> TestsAnswer:
    error = None if report.error is None else _make_case(report.error, chars)
    output = preview(report.output, _SHORTER_OUTPUT, chars=chars)
    return TestsAnswer(report.ok, report.summary, error, output, [_make_case(case, chars) for case in report.cases])


def _make_case(case: TestCase, chars: int) -> CaseAnswer:
    shorten = partial(preview, chars=chars)
    source, message = shorten(case.source, "the text as you sent it"), shorten(case.message, "shorten the message")
    where = case.line, case.line_text and shorten(case.line_text, "the text as you sent it"), case.in_code
    output = shorten(case.output, _SHORTER_OUTPUT)
    return CaseAnswer(source, case.verdict, message, *where, output, round(case.duration, 3))
