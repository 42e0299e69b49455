"""Values of variables between the caller and the kernel: JSON types, times, bytes, arrays and tables."""

from __future__ import annotations

import keyword
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from kernelexec.cancellation import await_to_end
from kernelexec.cells import Cell, CodeCell
from kernelexec.errors import InvalidRequest, Refused, UnknownVariable, did_you_mean
from kernelexec.launcher import protocol
from kernelexec.launcher.values import SLACK_BYTES, EncodedValues, ValueDecoder, ValueRefused
from kernelexec.results.json_values import read_list, read_text
from kernelexec.results.one_line import join_some
from kernelexec.results.session_contents import VARIABLES_MAX
from kernelexec.session.context import KernelDirectory, SessionContext
from kernelexec.session.lifecycle import short_turns
from kernelexec.text import escape_line
from kernelexec.workspace.safe_files import DIRECTORY, open_directory_chain, open_regular, replace_beneath

#: Where in a workspace a value lies for a moment, and the name of its file in a directory of its own.
_VALUES, _FILE = Path(".kernelexec", "values"), "values"
_REASON_CHARS, _LISTED_NAMES = 600, 5
_ARROW = "It comes with the extra `arrow`: pip install 'kernelexec[arrow]'."
_OTHER_WAYS = "Send its parts, or write a file: session.files"


class VariableValues:
    """The values of a session's variables, as Python objects of the caller."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context

    async def put(self, name: str | Mapping[str, Any] | None = None, value: Any = None, /, **values: Any) -> None:  # noqa: ANN401 - any value
        """Set variables in the kernel: ``put("x", 1)``, ``put({"x": 1})`` or ``put(x=1, table=frame)``.

        Carried are None, booleans, numbers, text, bytes, lists, tuples, sets, dictionaries, dates and times, ``Decimal``,
        ``Fraction``, ``UUID``, ``Path``, ``range``, arrays and scalars of numpy, tables, series and indexes of pandas, and
        tables of polars and pyarrow; those of pandas need pyarrow on both sides. Other classes are refused by name.
        The kernel gets copies. The call waits for its place in the queue like a cell; no notebook records it.

        Raises:
            InvalidRequest: a name or a value cannot be sent, or takes more than ``Config(capacity={"value_bytes": ...})``.
            QueueFull, Closed: nothing was sent.
            Refused: the kernel cannot hold the value, for instance because it has no numpy; nothing was set.
            ExecutionFailed: the call was interrupted.
        """
        variables = _merge(name, value, values)
        self._context.scope.check_open()
        async with self._new_directory() as directory:
            await await_to_end(self._context.read_in_thread(self._write, directory.relative / _FILE, variables))
            answer = await self._context.call_launcher(protocol.set_values_source(f"{directory.kernel_path}/{_FILE}"), None)
        if "why" in answer:
            raise Refused(f"The kernel cannot hold {_list(variables)}: {_read_reason(answer)}.")

    async def get(self, name: str, default: Any = ..., /) -> Any:  # noqa: ANN401 - any value
        """Return the value of a variable as an object of the caller: see ``put`` for the types. Nothing of it is run here.

        Without a variable of that name, ``default`` is returned if it is passed.

        Raises:
            UnknownVariable: there is no variable of that name.
            InvalidRequest: that is no name.
            Refused: the value has no form here, is too large, or a package to read it is missing; the message says which.
            QueueFull, Closed: nothing was sent.
            ExecutionFailed: the call was interrupted.
        """
        _check_name(name)
        context, limit = self._context, self._context.config.capacity.value_bytes
        try:
            async with self._new_directory() as directory:
                source = protocol.write_values_source(f"{directory.kernel_path}/{_FILE}", [name], limit)
                prepare = partial(directory.prepare, source)
                answer = await context.call_launcher("", None, prepare=prepare, keeps_variables=True)
                if read_list(answer.get("missing")):
                    if default is not ...:
                        return default
                    raise self._unknown(name)
                if "why" in answer:
                    raise Refused(f"{name!r} cannot be read: {_read_reason(answer)}. {_OTHER_WAYS}.read.")
                return (await context.read_in_thread(self._read, directory.relative / _FILE))[name]
        except UnknownVariable:
            raise
        except (ValueRefused, OSError, KeyError) as exc:
            raise Refused(f"{name!r} cannot be read: {exc}.") from exc

    async def delete(self, name: str, /) -> None:
        """Delete a variable in the kernel, as ``del`` does.

        Raises:
            UnknownVariable: there is no variable of that name.
            InvalidRequest: that is no name.
            QueueFull, Closed: nothing was sent.
            ExecutionFailed: the call was interrupted.
        """
        _check_name(name)
        answer = await self._context.call_launcher(protocol.delete_value_source(name), None)
        if read_list(answer.get("missing")):
            raise self._unknown(name)

    def _unknown(self, name: str) -> UnknownVariable:
        return UnknownVariable(f"There is no variable {name!r}{did_you_mean(name, self._context.kernels.python.known_names)}.")

    def prepare_inputs(
        self, inputs: Mapping[str, Any] | None, cell: Cell, request_id: str | None
    ) -> Callable[[], Awaitable[None]] | None:
        """Return a function to set the inputs of a cell; None without inputs.

        Raises:
            InvalidRequest: the inputs are no mapping of names, or the cell cannot have any.
        """
        if inputs is None:
            return None
        if not isinstance(inputs, Mapping):
            raise InvalidRequest(f"inputs must be a mapping of names to values, not {type(inputs).__name__}.")
        if not isinstance(cell, CodeCell) or cell.kernel != "python":
            raise InvalidRequest("inputs are variables of Python cells: a command has env=, other languages have none.")
        if request_id is not None:
            raise InvalidRequest("inputs are not repeated with a request_id: set them with session.put before the request.")
        return partial(self.put, dict(inputs)) if inputs else None

    @asynccontextmanager
    async def _new_directory(self) -> AsyncIterator[KernelDirectory]:
        """Yield a directory for a file of values. The directory is removed at the end, also in a cancelled call."""
        directory = KernelDirectory(self._context, _VALUES)
        try:
            yield directory
        finally:
            await directory.remove()

    def _write(self, relative: Path, variables: dict[str, Any]) -> None:
        encoded = _encode(variables, self._context.config.capacity.value_bytes)
        try:
            replace_beneath(self._context.workspace_path, relative, encoded.pieces())
        except OSError as exc:
            raise Refused(f"{_list(variables)} cannot be sent: {exc.strerror or exc}.") from exc

    def _read(self, relative: Path) -> dict[str, Any]:
        """Read a plain file of bounded size, written by the kernel, into memory."""
        # no memory map: a cell could cut the file off meanwhile, and a read beyond its end would raise SIGBUS in this process
        limit = self._context.config.capacity.value_bytes
        with ExitStack() as opened:
            top = os.open(self._context.workspace_path, DIRECTORY)
            fd = open_regular(relative.name, dir_fd=open_directory_chain(top, relative.parent, opened))
            with os.fdopen(fd, "rb", buffering=0) as file:
                size = os.fstat(fd).st_size
                if size > 2 * limit + SLACK_BYTES:
                    raise ValueRefused("its file is too large")
                content = bytearray(size)
                view, position = memoryview(content), 0
                while position < size and (count := file.readinto(view[position:])):
                    position += count
        with short_turns():
            return ValueDecoder(view[:position], limit).decode()


def check_values(variables: Mapping[str, Any], limit_bytes: int) -> None:
    """Raise ``InvalidRequest`` for variables refused by ``put`` before anything is sent."""
    _encode(_merge(variables, None, {}), limit_bytes)


def _encode(variables: dict[str, Any], limit_bytes: int) -> EncodedValues:
    try:
        with short_turns():
            return EncodedValues(variables, limit_bytes)
    except ValueRefused as exc:
        ways = _ARROW if exc.missing == "pyarrow" else f"{_OTHER_WAYS}.write."
        raise InvalidRequest(f"{_list(variables)} cannot be sent: {exc}. {ways}") from exc


def _merge(name: object, value: object, values: Mapping[str, Any]) -> dict[str, Any]:
    first: dict[str, Any] = {}
    if isinstance(name, Mapping):
        first = dict(name)
    elif name is not None:
        first = {_check_name(name): value}
    variables = {**first, **values}
    if not variables or len(variables) > VARIABLES_MAX:
        raise InvalidRequest(f"put needs 1 to {VARIABLES_MAX} variables: put('x', 1), put({{'x': 1}}) or put(x=1).")
    return {_check_name(each): item for each, item in variables.items()}


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name) or name == "__builtins__":
        raise InvalidRequest(f"{name!r:.100} is no name of a variable.")
    return name


def _list(variables: Mapping[str, Any]) -> str:
    return join_some(map(repr, variables), limit=_LISTED_NAMES)


def _read_reason(answer: Mapping[str, Any]) -> str:
    return escape_line(read_text(answer.get("why"), _REASON_CHARS))
