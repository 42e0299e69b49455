"""MCP resources of a session: its notebook, the files of its workspace, and the output of a cell."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastmcp.exceptions import ValidationError
from fastmcp.resources import ResourceContent, ResourceResult

from kernelexec.errors import InvalidRequest
from kernelexec.mcp.answers import count_json_bytes
from kernelexec.mcp.calls.sessions import SessionService
from kernelexec.mcp.server_options import ServerOptions
from kernelexec.mcp.tools.code_tools import report_errors
from kernelexec.mcp.tools.file_tools import read_whole
from kernelexec.untrusted_text import escape_line, format_note, quote_output

if TYPE_CHECKING:
    from kernelexec.session import AsyncSession

#: The addresses. A session is named by its name or handle, as in tools.
NOTEBOOK = "kernelexec://sessions/{session}/notebook"
FILE = "kernelexec://sessions/{session}/files/{path*}"
OUTPUT = "kernelexec://sessions/{session}/output/{execution_id}"
#: The largest answer that clients accept: text as JSON; less for bytes, which are sent as base64.
TEXT_BYTES, BLOB_BYTES = 880_000, 650_000
_TOO_LARGE = f"the limit of a resource is {TEXT_BYTES}. Read it in pieces with read_file."
_NOTEBOOK_TYPE, _PLAIN, _UNKNOWN = "application/x-ipynb+json", "text/plain", "application/octet-stream"
#: Our errors become errors of the parameters, not of the server.
_report_errors = partial(report_errors, ValidationError)


class Resources:
    """Resources of one executor's sessions, one method each; none creates a session.

    Files and notebooks are exact, with invisible characters and marks of notes: programs read them too.
    """

    def __init__(self, sessions: SessionService) -> None:
        self._sessions = sessions

    def list_templates(self, options: ServerOptions) -> list[tuple[str, Callable[..., Any], str]]:
        """Return the resources of the served toolsets: address, function and media type."""
        files = [(FILE, self.file, _UNKNOWN)] if "files" in options.groups else []
        return [(NOTEBOOK, self.notebook, _NOTEBOOK_TYPE), (OUTPUT, self.output, _PLAIN), *files]

    async def notebook(self, session: str) -> ResourceResult:
        """Read a session's notebook: its cells and their outputs so far, in Jupyter's format."""
        with _report_errors():
            opened = await self._sessions.find_session(session)
            if opened.notebook is None:
                raise InvalidRequest(f"Session {session} has no notebook.")
            await opened.save_notebook()
            return await self._read_file(opened, opened.notebook, _NOTEBOOK_TYPE)

    async def file(self, session: str, path: str) -> ResourceResult:
        """Read a file of a session's workspace, as text if possible, else as bytes."""
        with _report_errors():
            return await self._read_file(await self._sessions.find_session(session), path, mimetypes.guess_type(path)[0])

    async def output(self, session: str, execution_id: str) -> ResourceResult:
        """Read the text output of a cell so far, from its beginning."""
        with _report_errors():
            opened = await self._sessions.find_session_of(execution_id, session)
            limit, text = TEXT_BYTES, None
            while text is None or _count_text_bytes(text) > TEXT_BYTES:
                page = await opened.read_output(execution_id, offset=0, limit=limit)
                limit, text = limit // 2, quote_output(page.text)
        more = "" if page.next_offset is None else "\n" + format_note(f"read_output with offset={page.next_offset} continues")
        return _make_result(f"{text}{more}", _PLAIN)

    async def _read_file(self, opened: AsyncSession, path: str | Path, kind: str | None) -> ResourceResult:
        read = await read_whole(opened.files, path, TEXT_BYTES)
        name, raw, size = escape_line(opened.mask(read.path)), read.content, max(read.total_bytes, len(read.content))
        if size > TEXT_BYTES:
            raise InvalidRequest(f"{name} has {size} bytes; {_TOO_LARGE}")
        try:
            text = opened.mask(raw.decode())
        except UnicodeDecodeError:
            readable = raw.decode("utf-8", "replace")
        else:
            if (json_size := _count_text_bytes(text)) > TEXT_BYTES:
                raise InvalidRequest(f"{name} has {json_size} bytes as JSON; {_TOO_LARGE}")
            return _make_result(text, kind or _PLAIN)
        if len(raw) > BLOB_BYTES:
            raise InvalidRequest(f"{name} is binary and has {size} bytes; the limit of a binary resource is {BLOB_BYTES}.")
        if opened.mask(readable) != readable:
            raise InvalidRequest(f"{name} is binary and contains a secret, so it cannot be shown.")
        return _make_result(raw, kind or _UNKNOWN)


def _count_text_bytes(text: str) -> int:
    """Return the size of a text in an answer, without its quotes."""
    return count_json_bytes(text) - 2


def _make_result(content: str | bytes, kind: str) -> ResourceResult:
    return ResourceResult(contents=[ResourceContent(content, mime_type=kind)])
