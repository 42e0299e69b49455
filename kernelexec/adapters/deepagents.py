"""A sandbox for deep agents of LangChain: commands and files of a session, whose ``cd`` and ``export`` last."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from kernelexec.adapters.shared.commands import (
    REFUSED,
    UNLIMITED,
    await_result,
    call_in_thread,
    explain_end,
    join_report,
    read_file,
    write_file,
)
from kernelexec.errors import KernelexecError
from kernelexec.executor.blocking import Session, call_target
from kernelexec.results import ExecutionResult, Stream, output_text
from kernelexec.text import escape_notes_in_json, parse_untrusted_json, quote_output

try:
    from deepagents.backends.protocol import (
        FILE_NOT_FOUND,
        INVALID_PATH,
        IS_DIRECTORY,
        PERMISSION_DENIED,
        ExecuteResponse,
        FileDownloadResponse,
        FileUploadResponse,
    )
    from deepagents.backends.sandbox import BaseSandbox
except ImportError as exc:
    raise ImportError("kernelexec.adapters.deepagents needs deepagents: pip install 'kernelexec[deepagents]'.") from exc

T = TypeVar("T")


class SessionSandbox(BaseSandbox):
    """The backend of ``create_deep_agent(backend=...)``: the agent's shell and file tools work in a session.

    Paths are absolute, as the session's commands see them; ``session.workspace_inside`` is their directory at the start. Calls
    take turns. ``kernelexec.adapters.langchain`` has tools for Python code of the same session.

    Args:
        session: an open session, which the caller closes.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def id(self) -> str:
        """The name of the session."""
        return self._session.name

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command. The output ends with a line about a timeout, a refusal or a lost state.

        ``timeout`` is in seconds: None is the session's own, 0 is none. The exit code is 124 after a timeout, and 126 for a
        refused command.
        """
        try:
            return _response(self._session.execute_command(command, timeout=_seconds(timeout)))
        except KernelexecError as exc:
            return ExecuteResponse(str(exc), exit_code=1)

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command without blocking the event loop; a cancelled call interrupts the command. See ``execute``."""
        seconds = _seconds(timeout)
        try:
            return _response(
                await await_result(self._session, lambda session: session.execute_command(command, timeout=seconds))
            )
        except KernelexecError as exc:
            return ExecuteResponse(str(exc), exit_code=1)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files by absolute paths, with their missing directories."""
        return [FileUploadResponse(path, self._transfer(path, partial(write_file, content=data))[1]) for path, data in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files by absolute paths."""
        return [FileDownloadResponse(path, *self._transfer(path, read_file)) for path in paths]

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files without blocking the event loop. See ``upload_files``."""
        return await call_in_thread(lambda: self.upload_files(files))

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files without blocking the event loop. See ``download_files``."""
        return await call_in_thread(lambda: self.download_files(paths))

    def _transfer(self, path: str, transfer: Callable[..., Awaitable[T]]) -> tuple[T | None, str | None]:
        """Transfer a file; return the content of a read, or None, and the framework's name of an error, or None."""
        if not path.startswith("/"):
            return None, INVALID_PATH
        try:
            return call_target(self._session, partial(transfer, path=path)), None
        except FileNotFoundError:
            return None, FILE_NOT_FOUND
        except IsADirectoryError:
            return None, IS_DIRECTORY
        except PermissionError:
            return None, PERMISSION_DENIED
        except (OSError, KernelexecError) as exc:
            return None, str(exc)


def _seconds(timeout: int | None) -> float | None:
    return UNLIMITED if timeout == 0 else timeout


def _quote(text: str) -> str:
    """Return the output of a command for a model; the JSON lines and the separators of the file tools keep their meaning."""
    # The base class runs scripts by `execute` and parses their output: an escape in the text would break their JSON.
    lines = text.splitlines(keepends=True)
    return "".join(escape_notes_in_json(line) if _is_answer(line) else _quote_line(line) for line in lines)


def _quote_line(line: str) -> str:
    return "\0".join(map(quote_output, line.split("\0")))


def _is_answer(line: str) -> bool:
    if not (line.startswith("{") and line.isascii()):
        return False
    try:
        return isinstance(parse_untrusted_json(line), dict)
    except ValueError:
        return False


def _response(result: ExecutionResult) -> ExecuteResponse:
    text = _quote(output_text(output for output in result.outputs if isinstance(output, Stream)))
    exit_code = REFUSED if result.status == "aborted" else result.exit_code
    return ExecuteResponse(join_report(text, explain_end(result)), exit_code=exit_code, truncated=result.truncated)
