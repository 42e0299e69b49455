"""A stateful code executor for agents of Google's Agent Development Kit (ADK)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import mimetypes
from dataclasses import replace
from typing import Any, Self

from pydantic import PrivateAttr

from kernelexec.adapters.shared.blocks import remove_notebooks, remove_start_notes
from kernelexec.errors import KernelexecError
from kernelexec.executor.blocking import Executor, Session
from kernelexec.results import model_notes
from kernelexec.text import cut_middle, format_notes, quote_output

try:
    from google.adk.agents.invocation_context import InvocationContext
    from google.adk.code_executors.base_code_executor import BaseCodeExecutor
    from google.adk.code_executors.code_execution_utils import CodeExecutionInput, CodeExecutionResult, File
except ImportError as exc:
    raise ImportError("kernelexec.adapters.google_adk needs the ADK: pip install 'kernelexec[google-adk]'.") from exc

#: The limits of a cell's output files: their number, and the bytes of all of them.
FILES_MAX, FILES_BYTES = 50, 64 * 1024 * 1024
#: The limit of the text that the model reads, in bytes.
TEXT_BYTES = 20_000


class SessionCodeExecutor(BaseCodeExecutor):  # type: ignore[misc] # the ADK is in no environment of the tests
    """The executor of ``LlmAgent(code_executor=...)``. Each ADK session has a persistent kernel session of its own.

    With ``stateful=False`` each call has a new kernel. Input files are written into the workspace once. Written files and
    pictures of a cell are output files, which the ADK saves as artifacts. ``timeout_seconds`` is the time limit of a cell.

    Args:
        executor: an open executor, which the caller closes. The close ends all kernels.
        data: the fields of ``BaseCodeExecutor``.
    """

    stateful: bool = True
    _executor: Executor = PrivateAttr()
    _written: dict[str, set[str]] = PrivateAttr(default_factory=dict)
    """The digests of the input files that each session has."""

    def __init__(self, executor: Executor, **data: Any) -> None:  # noqa: ANN401 - the fields of the model
        super().__init__(**data)
        self._executor = executor

    def execute_code(
        self,
        invocation_context: InvocationContext,  # noqa: ARG002 - the ADK's signature
        code_execution_input: CodeExecutionInput,
    ) -> CodeExecutionResult:
        """Run a cell. ``stderr`` has a failure with the printed text, the state and hints, as the model reads nothing else."""
        execution_id = code_execution_input.execution_id
        # A digest: an id of the ADK may have characters or a length that a session's name cannot have.
        name = f"adk-{hashlib.sha256((execution_id or repr(id(code_execution_input))).encode()).hexdigest()[:24]}"
        try:
            session = self._executor.session(name)
            try:
                self._write_inputs(session, code_execution_input.input_files)
                return self._run(session, code_execution_input)
            finally:
                if execution_id is None:
                    self._written.pop(name, None)
                    self._executor.close_session(name)
        except KernelexecError as exc:
            return CodeExecutionResult(stderr=f"{type(exc).__name__}: {exc}", exit_code=-1)

    def __deepcopy__(self, _: object) -> Self:
        """Return the executor itself: agents are copied with their executor, and kernels cannot be."""
        return self

    def _write_inputs(self, session: Session, files: list[File]) -> None:
        """Write new input files. Earlier ones stay as they are, because a cell may have changed them."""
        written = self._written.setdefault(session.name, set())
        for file in files:
            content = _decode(file.content)
            digest = _digest(file.name, content)
            if digest not in written:
                session.files.write(file.name, content)
                written.add(digest)

    def _run(self, session: Session, code_execution_input: CodeExecutionInput) -> CodeExecutionResult:
        result = remove_notebooks(session.execute(code_execution_input.code, timeout=self.timeout_seconds))
        output_files, missing = _read_outputs(session, result.files, self._written[session.name])
        notes = model_notes(replace(remove_start_notes(result, session), files=()))
        if missing:
            notes.append(f"not saved as artifacts, too many or too large: {', '.join(missing)}")
        if not result.ok:
            notes.append(f"{result.status}, state {result.state}")
        text = cut_middle(result.text.rstrip("\n"), TEXT_BYTES, quote_output)
        text = "\n".join(part for part in (text, format_notes(notes)) if part)
        if result.ok:
            return CodeExecutionResult(stdout=text, output_files=output_files, exit_code=result.exit_code)
        return CodeExecutionResult(stderr=text, output_files=output_files, exit_code=result.exit_code)


def _read_outputs(session: Session, paths: tuple[str, ...], written: set[str]) -> tuple[list[File], list[str]]:
    """Return a cell's files within the limits, without unchanged input files, and the paths of the others."""
    files: list[File] = []
    missing: list[str] = []
    room = FILES_BYTES
    for path in paths:
        content = _read(session, path, room) if len(files) < FILES_MAX else None
        if content is None:
            missing.append(path)
            continue
        if _digest(path, content) in written:
            continue
        room -= len(content)
        mime = mimetypes.guess_type(path)[0] or "application/octet-stream"
        files.append(File(name=path.replace("user:", "user_"), content=content, mime_type=mime))  # "user:" is the ADK's own
    return files, missing


def _read(session: Session, path: str, room: int) -> bytes | None:
    """Return a file's content; None for an unreadable file, or more than ``room`` bytes."""
    content = bytearray()
    offset: int | None = 0
    try:
        while offset is not None:
            page = session.files.read_bytes(path, offset=offset)
            if page.total_bytes > room:  # asked at each page: a cell's process may still append to the file
                return None
            content += page.content
            offset = page.next_offset
    except KernelexecError:
        return None
    return bytes(content)


def _digest(name: str, content: bytes) -> str:
    return hashlib.sha256(f"{name}\0".encode() + content).hexdigest()


def _decode(content: str | bytes) -> bytes:
    """Return the bytes of a file, whose text form is base64."""
    if isinstance(content, bytes):
        return content
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        return content.encode()
