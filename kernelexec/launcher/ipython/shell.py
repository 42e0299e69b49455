"""IPython's shell with a single runner for commands, and with bounds for errors."""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import wraps
from importlib.util import find_spec
from subprocess import CalledProcessError
from typing import Any

from ipykernel.jsonutil import json_clean
from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core.autocall import ZMQExitAutocall
from IPython.core.error import StdinNotImplementedError, UsageError
from IPython.core.magics.script import ScriptMagics
from IPython.display import publish_display_data
from IPython.utils._process_common import arg_split
from IPython.utils.text import LSString, SList
from traitlets import default

from ..features import testing, value_transfer
from ..features.value_transfer import find_literal
from ..features.virtualenv import VirtualEnv
from ..output.kept_output import truncate, truncate_traceback
from ..output.streams import named_as_base
from ..owner import audit
from ..platform import default_shell
from ..processes.command import Account, AskOwner, OwnerStreams, RunningCommand, find_account
from ..processes.shell_session import ARGUMENT_BYTES, ShellSession, kernel_directory
from ..protocol import PAGER, CommandProcess, CopyTarget
from .figures import add_chart_pictures
from .patches import Compiler
from .tracebacks import (
    Tracebacks,
    contains_group,
    drop_own_frames,
    format_group,
    format_unreadable,
    is_readable,
    read_exit_status,
    shortened_chain,
)

#: More output in a variable could end the kernel for want of memory.
_CAPTURED_CHARS = 256 * 1024 * 1024
#: Line magics that run a program and hide its failure.
_PROGRAM_MAGICS = frozenset({"pip", "uv", "conda", "mamba", "micromamba"})
#: Code in the place of statements that must not run.
_INTERRUPT = compile("raise KeyboardInterrupt('the rest of the cell did not run')", "<kernelexec>", "exec")


@named_as_base
class LauncherShell(ZMQInteractiveShell):
    """ipykernel's shell. Its commands stream their output, keep stdout and stderr apart, and end as a group."""

    compiler_class = Compiler
    scratch: str | None = None
    programs = VirtualEnv({})
    ask_for_command: Callable[[], AskOwner] | None = None
    """Returns a function for the questions of a command of the running cell to the owner."""
    take_checkpoint: Callable[[str | None, CopyTarget | None], Any] | None = None
    """Makes a checkpoint; returns its description, or a list of obstacles."""
    last_exit_code: int | None = None
    last_work_dir: str | None = None
    last_answer: dict[str, Any] | None = None
    shown_error: dict[str, Any] | None = None
    inner_error: dict[str, Any] | None = None
    interrupts = 0
    """The number of interrupts of the running cell. The control thread counts."""
    exit_status: int | None = None
    """See ``ReplyMetadata``."""
    cells_begun = 0
    """The number of cells of code so far."""
    in_task = False
    """Whether the cell has its own task: a KeyboardInterrupt out of a task would end the loop."""
    literal: bool | str | None = None
    """See ``ReplyMetadata``."""

    def init_environment(self) -> None:
        """Turn colours and pagers off, since programs read the output of commands."""
        for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "CLICOLOR"):
            os.environ.pop(name, None)
        os.environ |= {"TERM": "dumb", "NO_COLOR": "1", "PAGER": "cat", "GIT_PAGER": "cat"}

    def init_hooks(self) -> None:
        """Display text instead of paging it (``name?``)."""
        super().init_hooks()
        self.set_hook("show_in_pager", _show, 0)

    def init_traceback_handlers(self, custom_exceptions: Any) -> None:
        """Use ``Tracebacks``. Only the class changes, since the arguments of IPython's object differ between versions."""
        super().init_traceback_handlers(custom_exceptions)
        self.InteractiveTB.__class__ = Tracebacks

    def init_display_formatter(self) -> None:
        """Add pictures to the representations of charts."""
        super().init_display_formatter()
        add_chart_pictures(self.display_formatter.mimebundle_formatter)

    def init_displayhook(self) -> None:
        """Register ``note_literal`` for each value before it is shown."""
        super().init_displayhook()
        hook: Any = self.displayhook
        hook.register_hook(self.note_literal)

    def init_history(self) -> None:
        """Keep no output. IPython keeps output for ``%notebook``, but a session writes its own notebook."""
        super().init_history()
        self.history_manager.outputs = _EmptyOutputs()

    def _format_exception_for_storage(self, *_args: Any, **_options: Any) -> dict[str, Any]:
        """Keep no traceback; see ``init_history``."""
        return {}

    def atexit_operations(self) -> None:
        """End as IPython does, but keep variables for later exit handlers and finalizers."""
        self.__dict__["reset"] = lambda *_args, **_options: None
        super().atexit_operations()

    def _tee(self, channel: str) -> Any:  # noqa: ARG002 - IPython's signature
        """Keep no output; see ``init_history``."""
        return nullcontext()

    def init_magics(self) -> None:
        """Route ``%%bash`` and ``%%sh`` to the runner."""
        super().init_magics()
        for name in ("bash", "sh"):
            magic: Any = _ScriptMagic(self, name)
            self.register_magic_function(magic, "cell", name)

    def run_line_magic(self, magic_name: str, line: str, _stack_depth: int = 1) -> Any:
        """Run a line magic.

        Raises:
            CalledProcessError: the program of ``%pip`` or a similar magic failed.
        """
        if magic_name == "debug":
            self._check_debugger()
        if magic_name not in _PROGRAM_MAGICS:
            return super().run_line_magic(magic_name, line, _stack_depth=_stack_depth + 1)
        self.last_exit_code = value = None
        self.programs.enter()  # IPython asks for the interpreter first
        self.programs.directs_pip = magic_name == "pip"  # IPython runs that of this interpreter
        try:
            served = (self.programs.import_state or {}).get("served")
            if magic_name == "uv" and (served == "packages" or find_spec("uv") is None):  # else ``sys.executable -m uv``
                self.system(f"uv {line}")
            else:
                value = super().run_line_magic(magic_name, line, _stack_depth=_stack_depth + 1)
        finally:
            self.programs.directs_pip = False
        if code := self.last_exit_code:
            raise CalledProcessError(code, f"%{magic_name} {line}".strip())
        return value

    def run_cell_magic(self, magic_name: str, line: str, cell: str) -> Any:
        """Run a cell magic."""
        if magic_name == "debug":
            self._check_debugger()
        return super().run_cell_magic(magic_name, line, cell)

    def note_literal(self, message: dict[str, Any]) -> dict[str, Any]:
        """Note the literal of a value before it is shown, and return the message unchanged."""
        shown: Any = self.displayhook.exec_result
        text = message["content"]["data"].get("text/plain")
        self.literal = None if shown is None else find_literal(shown.result, text)
        return message

    def _check_debugger(self) -> None:
        """Raise ``StdinNotImplementedError`` if no user can type the debugger's commands."""
        if not self._can_ask:
            raise StdinNotImplementedError("no user can type the debugger's commands here")

    @property
    def _can_ask(self) -> bool:
        """Whether the running cell can ask a user for input."""
        kernel: Any = self.kernel
        return bool(kernel._allow_stdin)  # noqa: SLF001 - ipykernel has no other

    def debugger(self, force: bool = False) -> None:  # noqa: FBT001, FBT002 - IPython's signature
        """Start the debugger if a user can type commands. Otherwise ``%pdb on`` has no effect."""
        if self._can_ask:
            super().debugger(force=force)

    def prepare_cell(self) -> None:
        """Reset the state of the last cell. An interrupt may have left IPython's traps nested."""
        self.last_exit_code = self.last_work_dir = self.last_answer = self.inner_error = self.shown_error = None
        self.in_task = self._last_traceback_during_displayhook = False
        self.interrupts = 0
        self.literal = self.exit_status = None
        hook: Any = self.displayhook
        hook.msg = None  # an interrupted display leaves its message there
        self.display_trap._nested_level = self.builtin_trap._nested_level = 0  # noqa: SLF001 - they have no other reset

    async def run_code(self, code_obj: Any, result: Any = None, *, async_: bool = False) -> bool:
        """Run a statement of a cell. After a second interrupt only KeyboardInterrupt is raised in its place.

        A cell may handle the first interrupt. A cell that takes interrupts for errors of its own must end all the same.
        """
        if self.interrupts > 1:
            code_obj, async_ = _INTERRUPT, False
        return bool(await super().run_code(code_obj, result, async_=async_))

    @default("exiter")
    def _default_exiter(self) -> ZMQExitAutocall:
        return _Exit(self)

    @wraps(ZMQInteractiveShell.run_cell_async)  # ipykernel looks at its parameters
    def run_cell_async(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Run a cell."""
        return self.run_within(args, kwargs)

    async def run_within(self, args: Any, kwargs: Any) -> Any:
        """Run a cell. An interrupt before or after the user's code ends the cell only."""
        try:
            return await super().run_cell_async(*args, **kwargs)
        except KeyboardInterrupt:
            if self.in_task:  # asyncio raises KeyboardInterrupt of a task out of ``run_forever`` too
                raise asyncio.CancelledError from None
            raise

    def system(self, cmd: str) -> None:
        """Run ``!cmd``. The exit code is in ``_exit_code``. As in Jupyter, no exit code raises an exception."""
        command = self.var_expand(cmd, depth=1)
        self.run_argv([*default_shell(), command], text=command)

    def getoutput(self, cmd: str, split: bool = True, depth: int = 0) -> Any:  # noqa: FBT001, FBT002 - IPython's signature
        """Run ``x = !cmd`` or ``%sx``; return the output, stderr included, as a list of lines or a string."""
        captured = _CapturedOutput()
        command = self.var_expand(cmd, depth=depth + 1)
        self.run_argv([*default_shell(), command], text=command, out=captured.add, merged=True)
        text = captured.take()
        return SList(text.splitlines()) if split else LSString(text)

    @property
    def command_session(self) -> ShellSession:
        """The state of the session's shell, from command to command."""
        session: ShellSession = self.__dict__.setdefault("_shell_session", ShellSession())
        return session

    def run_command(
        self, command: str, work_dir: str | None = None, stdin: str | None = None, process: CommandProcess | None = None
    ) -> None:
        """Run a command of the session's shell. The next command sees the effects of ``cd`` and ``export``.

        ``work_dir`` and ``process`` apply to this command only. The exit code is in ``_exit_code`` and in the reply's
        metadata.
        """
        session = self.command_session
        if process is None:
            session.run(self, command, work_dir, stdin)
            return
        assert self.ask_for_command is not None
        streams = OwnerStreams(self.ask_for_command(), process)
        if process["user"] is None or (account := find_account(process["user"])) is None:
            session.run(self, command, work_dir, streams.read or stdin, env=process["env"], out_bytes=streams.write)
        elif process["owner_runs"]:
            self._run_by_owner(command, streams)
        else:
            self.run_argv(
                [*default_shell(), command],
                text=command,
                stdin=streams.read or stdin,
                out_bytes=streams.write,
                cwd=work_dir,
                env={**self.programs.environment({}), **account.variables, **process["env"]},
                account=account,
            )

    def _run_by_owner(self, command: str, streams: OwnerStreams) -> None:
        """Let the owner run a command as another user. An interrupt of this process ends the command."""
        audit(command)
        code = 130  # as of a shell after SIGINT
        try:
            code = streams.run()
        except KeyboardInterrupt:
            streams.end()
            raise
        finally:
            self.user_ns["_exit_code"] = self.last_exit_code = code

    def command_environment(self, command: str, work_dir: str | None) -> tuple[list[str], str | None, dict[str, str]]:
        """Return the program, directory and environment of a background command of the session's shell."""
        directory, env = self.command_session.next_start(self)
        return [*self.programs.prefix, *default_shell(), command], work_dir or directory or kernel_directory(), env

    def serve_packages(self) -> None:
        """Make the installed packages of the virtual environment importable. The answer is in the reply's metadata."""
        self.programs.activate()
        self.last_answer = self.programs.take_report()

    def save_variables(self, directory: str, names: list[str] | None, limit_bytes: int) -> None:
        """Save variables into an empty directory, all user variables for None. The answer is in the reply's metadata."""
        self.last_answer = value_transfer.save_variables(self.user_ns, self.user_ns_hidden, directory, names, limit_bytes)

    def load_variables(self, directory: str, files: list[tuple[str, str, str]]) -> None:
        """Load saved variables. The answer is in the reply's metadata."""
        self.last_answer = value_transfer.load_variables(self.user_ns, directory, files)

    def set_values(self, path: str) -> None:
        """Set variables from a file of values. The answer is in the reply's metadata."""
        self.last_answer = value_transfer.set_variables(self.user_ns, path)

    def write_values(self, path: str, names: list[str], limit_bytes: int) -> None:
        """Write the values of variables to a new file. The answer is in the reply's metadata."""
        self.last_answer = value_transfer.write_variables(self.user_ns, path, names, limit_bytes)

    def delete_value(self, name: str) -> None:
        """Delete a variable. The answer in the reply's metadata names a missing variable."""
        self.last_answer = {"missing": [] if name in self.user_ns else [name]}
        self.user_ns.pop(name, None)

    def checkpoint(self, name: str | None, target: CopyTarget | None = None) -> None:
        """Make a checkpoint between two cells, or one of another kernel; the answer is in the reply's metadata."""
        assert self.take_checkpoint is not None
        taken = self.take_checkpoint(name, target)
        self.last_answer = {"obstacles" if isinstance(taken, list) else "checkpoint": taken}

    def safe_execfile(self, fname: Any, *where: Any, **options: Any) -> None:
        """Run a script for ``%run``, and record a failure, which IPython only shows."""
        before = self.shown_error
        super().safe_execfile(fname, *where, **options)
        if self.shown_error is not before:
            self.inner_error = self.shown_error

    def run_tests(self, code: str, cases: list[str], seconds: float) -> None:
        """Run test cases in forked processes. The answer is in the reply's metadata."""
        self.last_answer = {"tests": testing.run(code, cases, seconds, self)}

    def run_cell(self, *args: Any, **kwargs: Any) -> Any:
        """Run a cell, or for ``%%capture`` a cell inside of another, and record a failure, which IPython only shows."""
        result = super().run_cell(*args, **kwargs)
        if not result.success:
            self.inner_error = self.shown_error
        return result

    def run_argv(
        self,
        argv: list[str],
        *,
        text: str | None = None,
        out: Any = None,
        err: Any = None,
        merged: bool = False,
        stdin: str | Callable[[], bytes] | None = None,
        out_bytes: Callable[[bytes], bool] | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        account: Account | None = None,
    ) -> int:
        """Run a program behind the prefix, record and return the exit code. By default output goes to this cell's streams.

        ``env`` is the environment of all commands by default. ``text`` is the command of a shell, for the owner's rules. For
        ``stdin``, ``out_bytes`` and ``account`` see ``RunningCommand``.

        Raises:
            PermissionError: the owner's rules refuse the program; nothing ran.
        """
        audit(argv if text is None else text)
        argv = [*self.programs.prefix, *argv]
        env = self.programs.environment({}) if env is None else env
        self.user_ns["_exit_code"] = self.last_exit_code = None
        self.last_work_dir = cwd or kernel_directory()
        sink, number = None if merged else (err or sys.stderr.write), self.cells_begun
        code = 1
        try:
            command = RunningCommand(
                argv,
                out=out or sys.stdout.write,
                err=sink,
                stdin=stdin,
                out_bytes=out_bytes,
                cwd=cwd,
                env=env,
                account=account,
                is_newest=lambda: self.cells_begun == number,
            )
            code = command.run()
        except KeyboardInterrupt:
            code = 130
            raise
        except OSError as exc:
            code = 127  # as of a shell for an unknown program
            sys.stderr.write(f"{exc.filename or argv[0]}: {exc.strerror or exc}\n")
        finally:
            self.user_ns["_exit_code"] = self.last_exit_code = code
        return code

    def showtraceback(self, exc_tuple: Any = None, *args: Any, **options: Any) -> None:
        """Show an exception, even with faulty methods. Publish a group as an error too: IPython only prints groups."""
        raised: Any = exc_tuple or sys.exc_info()
        etype, exc, trace = raised
        if options.get("exception_only"):  # an exit; IPython's advice on it is for its own terminal
            warnings.filterwarnings("ignore", "To exit: use", UserWarning, "IPython.core.interactiveshell")
        if etype is None or issubclass(etype, SyntaxError | UsageError) or options.get("exception_only"):
            super().showtraceback(exc_tuple, *args, **options)
            return
        drop_own_frames(exc)
        lines: list[str] = []
        if not is_readable(exc):
            lines = format_unreadable(etype, exc, trace)
        elif contains_group(exc):
            lines = [f"{etype.__name__}: {truncate(exc)}"]
            with suppress(Exception):  # a user's subclass of a group may do anything
                lines = format_group(exc, truncate, self.compile.format_code_name)
        if lines:
            sys.last_type, sys.last_value, sys.last_traceback = etype, exc, trace  # for %debug
            self._showtraceback(etype, exc, lines)
            return
        try:
            with shortened_chain(exc):
                super().showtraceback(exc_tuple, *args, **options)
        except BaseException as failure:
            if failure is exc or isinstance(failure, KeyboardInterrupt):
                raise
            self._showtraceback(etype, exc, format_unreadable(etype, exc, trace))

    def _format_exception(self, etype: type[BaseException], evalue: BaseException) -> list[str]:
        """Return IPython's traceback of an exception, or a plain traceback if IPython fails to format the exception."""
        with suppress(Exception):  # a user's exception may do anything
            return list(self.InteractiveTB.structured_traceback(etype, evalue, evalue.__traceback__))
        return format_unreadable(etype, evalue, evalue.__traceback__)

    def _showtraceback(self, etype: type[BaseException], evalue: BaseException, stb: Any) -> None:
        """Publish an exception within bounds, by ipykernel 7's own hook."""
        for stream in (sys.stdout, sys.stderr):  # the cell may have replaced them
            with suppress(Exception):
                stream.flush()
        self.exit_status = read_exit_status(evalue) if issubclass(etype, SystemExit) else None
        if self.exit_status == 0:
            return
        lines = [stb] if isinstance(stb, str) else stb
        if not isinstance(lines, list | tuple) or not all(isinstance(line, str) for line in lines):
            lines = self._format_exception(etype, evalue)  # an exception's ``_render_traceback_`` may return anything
        self._last_traceback = truncate_traceback(list(lines))
        content = {"ename": etype.__name__, "evalue": truncate(evalue), "traceback": self._last_traceback}
        self.shown_error = content
        if issubclass(etype, SystemExit):  # shown in two lines, as by IPython; the reply has the traceback
            with suppress(Exception):
                lines = self.InteractiveTB.structured_traceback(etype, evalue, evalue.__traceback__)
                self._last_traceback = truncate_traceback(lines)
            self.shown_error = {**content, "traceback": self._last_traceback}
        hook: Any = self.displayhook
        if hook.msg is not None:  # the value of the cell cannot be shown: ipykernel then replies with an error
            self._last_traceback_during_displayhook = True
        topic = hook.topic.replace(b"execute_result", b"error") if hook.topic else None
        hook.session.send(hook.pub_socket, "error", json_clean(content), hook.parent_header, ident=topic)


class _Exit(ZMQExitAutocall):
    """``exit`` and ``quit``, which end the cell. Without a status they end the kernel too, as in IPython."""

    def __call__(self, *status: Any, keep_kernel: bool = False) -> None:
        if not status:
            super().__call__(keep_kernel)
        raise SystemExit(*status)


class _EmptyOutputs(dict[int, list[Any]]):
    """A dictionary that forgets its values."""

    def __missing__(self, key: int) -> list[Any]:
        return []


class _CapturedOutput:
    """Output of a command for a variable, within a bound; output after ``take`` is dropped."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._room = _CAPTURED_CHARS
        """Negative after the end, which a cut or ``take`` is."""

    def add(self, text: str) -> None:
        if self._room < 0:
            return
        self._pieces.append(text[: self._room])
        self._room -= len(text)
        if self._room < 0:
            sys.stderr.write(f"captured output is cut after {_CAPTURED_CHARS} characters\n")

    def take(self) -> str:
        self._room = -1
        pieces, self._pieces = self._pieces, []
        return "".join(pieces)


class _ScriptMagic:
    """``%%bash`` and ``%%sh`` through the runner. IPython handles the options that need a process handle."""

    def __init__(self, shell: LauncherShell, program: str) -> None:
        self._shell = shell
        self._program = program
        self.__name__ = program
        self.__doc__ = f"Run the cell as a script of {program}; the options are those of %%script."

    def __call__(self, line: str, cell: str) -> Any:
        """Run the cell as a script, with IPython's options.

        Raises:
            CalledProcessError: the script failed, unless ``--no-raise-error`` is set.
        """
        args, program_arguments = ScriptMagics.shebang.parser.parse_known_args(arg_split(line, posix=True))
        if args.bg or args.proc:
            return self._shell.run_cell_magic("script", f"{self._program} {line}", cell)
        names = {"out": args.out, "err": args.err}
        captured = {which: _CapturedOutput() for which, name in names.items() if name}
        sinks = {which: pieces.add for which, pieces in captured.items()}
        argv, stdin = [self._program, *program_arguments], None
        # ``-c`` leaves stdin to the script's own programs. Linux bounds the length of an argument.
        if program_arguments or len(cell.encode("utf-8", "surrogateescape")) > ARGUMENT_BYTES:
            stdin = cell
        else:
            argv += ["-c", cell]
        code = self._shell.run_argv(argv, out=sinks.get("out"), err=sinks.get("err"), stdin=stdin, text=cell)
        for which, pieces in captured.items():
            self._shell.user_ns[names[which]] = pieces.take()
        if code and args.raise_error:
            raise CalledProcessError(code, cell.encode("utf-8", "replace"), None, None)
        return None


def _show(_shell: LauncherShell, text: Any, *_args: Any, **_options: Any) -> None:
    data = text if isinstance(text, dict) else {"text/plain": str(text)}
    publish_display_data(data=data, metadata={PAGER: True})
