"""The interactive shell of the kernel: every way to run a command goes through one runner, and errors stay within bounds."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext, suppress
from subprocess import CalledProcessError
from typing import Any

from ipykernel.jsonutil import json_clean
from IPython.core.error import UsageError
from IPython.core.magics.script import ScriptMagics
from IPython.display import publish_display_data
from IPython.utils._process_common import arg_split
from IPython.utils.text import LSString, SList

from ..features import snapshot, testing
from ..features.virtualenv import Programs
from ..output.truncate import bounded, bounded_traceback
from ..platform import a_shell
from ..processes import exec_audit
from ..processes.command import Command
from ..processes.shell_session import Lasting, kernel_directory
from . import exception_groups
from .compiler import Compiler
from .formatter import Formatter
from .input_transform import Reader
from .tracebacks import Tracebacks

_ARGUMENT_BYTES = 100_000
_CAPTURED_CHARS = 256 * 1024 * 1024


class Shell(Reader):
    """ipykernel's shell with commands that stream, keep stdout and stderr apart, and end as a group."""

    compiler_class = Compiler
    scratch: str | None = None
    programs = Programs({})
    last_exit_code: int | None = None
    last_work_dir: str | None = None
    last_answer: dict[str, Any] | None = None
    shown_error: dict[str, Any] | None = None
    failed_within: dict[str, Any] | None = None

    def init_environment(self) -> None:
        """No colours and no pagers: what commands print is read by programs."""
        for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "CLICOLOR"):
            os.environ.pop(name, None)
        os.environ |= {"TERM": "dumb", "NO_COLOR": "1", "PAGER": "cat", "GIT_PAGER": "cat"}

    def init_hooks(self) -> None:
        """What would go to a pager (``name?``) is shown: there is nobody to page it."""
        super().init_hooks()
        self.set_hook("show_in_pager", _show, 0)

    def init_display_formatter(self) -> None:
        """See Formatter."""
        formatter: Any = Formatter(parent=self)
        self.display_formatter = formatter
        self.configurables.append(formatter)

    def init_traceback_handlers(self, custom_exceptions: Any) -> None:
        """See Tracebacks. IPython makes its own with arguments that differ from version to version, so it stays what it is."""
        super().init_traceback_handlers(custom_exceptions)
        self.InteractiveTB.__class__ = Tracebacks

    def init_history(self) -> None:
        """Keep no output: IPython keeps all of it, for ``%notebook``, and a session writes a notebook of its own."""
        super().init_history()
        self.history_manager.outputs = _Forgotten()

    def _tee(self, channel: str) -> Any:  # noqa: ARG002 - IPython's signature
        """See init_history; it takes as long as writing."""
        return nullcontext()

    def init_magics(self) -> None:
        """Route ``%%bash`` and ``%%sh`` to the runner."""
        super().init_magics()
        for name in ("bash", "sh"):
            magic: Any = _ScriptMagic(self, name)
            self.register_magic_function(magic, "cell", name)

    def system(self, cmd: str) -> None:
        """Run ``!cmd``. A code other than 0 is in ``_exit_code`` and raises nothing, as in Jupyter."""
        command = self.var_expand(cmd, depth=1)
        self.run_argv([*a_shell(), command], said=command)

    def getoutput(self, cmd: str, split: bool = True, depth: int = 0) -> Any:  # noqa: FBT001, FBT002 - IPython's signature
        """Run ``x = !cmd`` or ``%sx``: the output, stderr included, as a list of lines or a string."""
        captured = _Captured()
        command = self.var_expand(cmd, depth=depth + 1)
        self.run_argv([*a_shell(), command], said=command, out=captured.add, merged=True)
        text = captured.take()
        return SList(text.splitlines()) if split else LSString(text)

    def run_command(self, command: str, work_dir: str | None = None, stdin: str | None = None) -> None:
        """Run a command of the session's own shell: its ``cd`` and ``export`` last for the next one.

        ``work_dir`` counts for this command only. The exit code goes into ``_exit_code`` and beside the cell's reply.
        """
        lasting = self.__dict__.setdefault("_lasting", Lasting())
        lasting.run(self, command, work_dir, stdin)

    def place_of_command(self, command: str, work_dir: str | None) -> tuple[list[str], str | None, dict[str, str]]:
        """The program, the directory and the environment of a command of the session's own shell that lasts for no other."""
        directory, env = self.__dict__.setdefault("_lasting", Lasting()).place(self)
        return [*self.programs.prefix, *a_shell(), command], work_dir or directory or kernel_directory(), env

    def serve_packages(self) -> None:
        """Have cells import what a virtual environment has by now; what came of it goes beside the reply."""
        self.last_answer = {"venv": self.programs.serve()}

    def save_variables(self, directory: str, names: list[str] | None, limit_bytes: int) -> None:
        """Save variables, all of the user's for None, into a new directory; what became of each goes beside the reply."""
        self.last_answer = snapshot.save(self.user_ns, self.user_ns_hidden, directory, names, limit_bytes)

    def load_variables(self, directory: str, files: list[tuple[str, str, str]]) -> None:
        """Load variables that were saved; what became of each goes beside the reply."""
        self.last_answer = snapshot.load(self.user_ns, directory, files)

    def safe_execfile(self, fname: Any, *where: Any, **options: Any) -> None:
        """Run a script for ``%run``, and remember its failure, which IPython only shows."""
        before = self.shown_error
        super().safe_execfile(fname, *where, **options)
        if self.shown_error is not before:
            self.failed_within = self.shown_error

    def run_tests(self, code: str, cases: list[str], seconds: float) -> None:
        """Run test cases apart from the session; what came of them goes beside the reply."""
        self.last_answer = {"tests": testing.run(code, cases, seconds, self)}

    def run_cell(self, *args: Any, **kwargs: Any) -> Any:
        """Run a cell, or one within it for ``%%capture``, and remember its failure, which IPython only shows."""
        result = super().run_cell(*args, **kwargs)
        if not result.success:
            self.failed_within = self.shown_error
        return result

    def run_argv(
        self,
        argv: list[str],
        *,
        said: str | None = None,
        out: Any = None,
        err: Any = None,
        merged: bool = False,
        stdin: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
    ) -> int:
        """Run a program and note its exit code; output goes to this cell's streams unless told otherwise.

        It runs behind the prefix, if there is one; its environment is that of any command unless ``env`` is given. Where the
        program is a shell, ``said`` is the text for it.

        Raises:
            PermissionError: the rules refuse it, and nothing ran.
        """
        __tracebackhide__ = True
        exec_audit.said(argv if said is None else said)
        argv = [*self.programs.prefix, *argv]
        env = self.programs.environment({}) if env is None else env
        self.user_ns["_exit_code"] = self.last_exit_code = None
        self.last_work_dir = cwd or kernel_directory()
        sink = None if merged else (err or sys.stderr.write)
        code = 1
        try:
            code = Command(argv, out=out or sys.stdout.write, err=sink, stdin=stdin, cwd=cwd, env=env).run()
        except KeyboardInterrupt:
            code = 130
            raise
        except OSError as exc:
            code = 127
            sys.stderr.write(f"{exc.filename or argv[0]}: {exc.strerror or exc}\n")
        finally:
            self.user_ns["_exit_code"] = self.last_exit_code = code
        return code

    def showtraceback(self, exc_tuple: Any = None, *args: Any, **options: Any) -> None:
        """Show an exception. A group, which IPython would only print, is an error like any other."""
        exc: Any = (exc_tuple or sys.exc_info())[1]
        lines: list[str] = []
        if (
            not options.get("exception_only")
            and not isinstance(exc, SyntaxError | UsageError)
            and exception_groups.holds_group(exc)
        ):
            lines = [f"{type(exc).__name__}: {bounded(exc)}"]
            with suppress(Exception):  # what user code derives from a group may do anything
                lines = exception_groups.traceback_of(exc, bounded, self.compile.format_code_name)
        if not lines:
            super().showtraceback(exc_tuple, *args, **options)
            return
        self._get_exc_info(exc_tuple)  # remembered, for %debug
        self._showtraceback(type(exc), exc, lines)

    def _showtraceback(self, etype: type[BaseException], evalue: BaseException, stb: list[str]) -> None:
        """Publish an exception, cut to what a reader can use (ipykernel 7's own hook for that, with bounds)."""
        for stream in (sys.stdout, sys.stderr):  # the cell may have put anything there
            with suppress(Exception):
                stream.flush()
        self._last_traceback = bounded_traceback(stb)
        content = {"ename": etype.__name__, "evalue": bounded(evalue), "traceback": self._last_traceback}
        self.shown_error = content
        if isinstance(evalue, SystemExit):  # shown as IPython does, in two lines; the reply tells where it was
            with suppress(Exception):
                lines = self.InteractiveTB.structured_traceback(etype, evalue, evalue.__traceback__)
                self._last_traceback = bounded_traceback(lines)
            self.shown_error = {**content, "traceback": self._last_traceback}
        hook: Any = self.displayhook
        topic = hook.topic.replace(b"execute_result", b"error") if hook.topic else None
        hook.session.send(hook.pub_socket, "error", json_clean(content), hook.parent_header, ident=topic)


class _Forgotten(dict[int, list[Any]]):
    """What is put into it is gone."""

    def __missing__(self, key: int) -> list[Any]:
        return []


class _Captured:
    """What a command puts into a variable, within a bound; once it was taken, nobody can have what comes later."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._room = _CAPTURED_CHARS

    def add(self, text: str) -> None:
        if self._room > 0 and len(text) >= self._room:
            sys.stderr.write(f"captured output is cut after {_CAPTURED_CHARS} characters\n")
        if self._room > 0:
            self._pieces.append(text[: self._room])
            self._room -= len(text)

    def take(self) -> str:
        self._room = 0
        pieces, self._pieces = self._pieces, []
        return "".join(pieces)


class _ScriptMagic:
    """``%%bash`` and ``%%sh`` through the runner; what needs a process handle stays with IPython."""

    def __init__(self, shell: Shell, program: str) -> None:
        self._shell = shell
        self._program = program
        self.__name__ = program
        self.__doc__ = f"Run the cell as a script of {program}; the options are those of %%script."

    def __call__(self, line: str, cell: str) -> Any:
        """Run the cell as a script, with IPython's options; raise CalledProcessError as IPython does."""
        __tracebackhide__ = True  # a failed script is the user's, not ours
        args, rest = ScriptMagics.shebang.parser.parse_known_args(arg_split(line, posix=True))
        if args.bg or args.proc:
            return self._shell.run_cell_magic("script", f"{self._program} {line}", cell)
        names = {"out": args.out, "err": args.err}
        captured = {which: _Captured() for which, name in names.items() if name}
        sinks = {which: pieces.add for which, pieces in captured.items()}
        argv, stdin = [self._program, *rest], None
        if rest or len(cell.encode("utf-8", "surrogateescape")) > _ARGUMENT_BYTES:
            stdin = cell
        else:
            argv += ["-c", cell]
        code = self._shell.run_argv(argv, out=sinks.get("out"), err=sinks.get("err"), stdin=stdin, said=cell)
        for which, pieces in captured.items():
            self._shell.user_ns[names[which]] = pieces.take()
        if code and args.raise_error:
            raise CalledProcessError(code, cell.encode("utf-8", "replace"), None, None)
        return None


def _show(_shell: Shell, text: Any, *_args: Any, **_options: Any) -> None:
    publish_display_data(data=text if isinstance(text, dict) else {"text/plain": str(text)})
