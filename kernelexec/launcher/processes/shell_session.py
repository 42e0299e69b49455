"""The state of commands and cells: the shell's directory and environment, and the kernel's directory.

Each command is a new process; ``cd`` and ``export`` last for the next command. Programs may delete or replace the kernel's
directory, or take away the right to enter, and a branch of a kernel works in other directories.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .. import platform
from ..protocol import COMMAND_MARK_VARIABLE, DirectoryReport

#: Longer text is no argument of a program: Linux allows 128 KiB for one.
ARGUMENT_BYTES = 100_000
_STATE = "KERNELEXEC_STATE"
# Saves the last directory and the environment of a command; on one line, so that the shell counts the lines from one.
_SAVE_STATE = 'trap \'{{ printf "%s\\0" "$PWD"; {env} -0; }} >"${state}" 2>/dev/null\' EXIT; {run}'
# Saves the environment of a prefix, which is no change by the command.
_SAVE_BEFORE = '{env} -0 >"${state}.before"; '
_EXEC = re.compile(r"\bexec\b")
# Commands of Windows shells that change the directory or the environment.
_CHANGE_OF_STATE = re.compile(r"\b(?:cd|chdir|pushd|set|setx|set-location)\b|\$env:", re.IGNORECASE)
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
_NOT_SAVED = frozenset({"_", "PWD", "SHLVL", COMMAND_MARK_VARIABLE, _STATE})
#: Variables of the environment with a directory in which programs work.
_DIRECTORY_VARIABLES = ("PWD", "OLDPWD", "TMPDIR")


class ShellSession:
    """State between two commands: the directory and the changes of the environment."""

    def __init__(self) -> None:
        self._directory: str | None = None
        self._changes: dict[str, str | None] = {}
        self._since: str | None = None
        """The virtual environment that was active when a command changed PATH."""

    def run(
        self,
        shell: Any,
        command: str,
        work_dir: str | None,
        stdin: str | Callable[[], bytes] | None,
        *,
        env: Mapping[str, str] = NO_VARIABLES,
        out_bytes: Callable[[bytes], bool] | None = None,
    ) -> None:
        """Run a command by ``shell.run_argv`` and keep the changes, where the system's shells can save them.

        ``env`` has further variables for this command only.
        """
        own, active = shell.programs.environment(self._changes, self._since), shell.programs.active
        streams, own_names = {"stdin": stdin, "out_bytes": out_bytes}, frozenset(env)
        env = {**own, **env}
        if not platform.PLATFORM.keeps_shell_state:
            shell.run_argv([*platform.default_shell(), command], text=command, cwd=work_dir, env=env, **streams)
            if _CHANGE_OF_STATE.search(command):
                sys.stderr.write("changes by cd and set do not last on this system: pass work_dir to the command\n")
            return
        directory = work_dir or self._find_directory()
        is_saved = False
        with ExitStack() as cleanup:
            try:
                scratch = cleanup.enter_context(
                    tempfile.TemporaryDirectory(prefix="command-", dir=shell.scratch, ignore_cleanup_errors=True)
                )
                argv = self._argv_with_state(shell, command, Path(scratch) / "state")
            except OSError:  # the disk is full, or the directory is gone
                shell.run_argv([*platform.default_shell(), command], text=command, cwd=directory, env=env, **streams)
            else:
                state = Path(scratch) / "state"
                shell.run_argv(argv, text=command, cwd=directory, env={**env, _STATE: str(state)}, **streams)
                before = _variables(_entries(f"{state}.before")) or env
                ignored = _NOT_SAVED | own_names
                is_saved = self._take_changes(state, before, active, ignored, keep_directory=work_dir is not None)
        if not is_saved and not _EXEC.search(command):
            sys.stderr.write("the changes by cd and export could not be saved and do not last\n")

    def _argv_with_state(self, shell: Any, command: str, state: Path) -> list[str]:
        """Return the arguments of a shell to run a command and save the state; raise OSError if no file can be written."""
        run = command
        if len(command.encode("utf-8", "surrogateescape")) > ARGUMENT_BYTES:
            Path(f"{state}.sh").write_text(command, encoding="utf-8", errors="surrogateescape")
            run = f'. "${_STATE}.sh"'
        saving = (_SAVE_BEFORE if shell.programs.prefix else "") + _SAVE_STATE
        argv = platform.default_shell()
        # The last word is ``$0`` of the command, which a shell calls itself without one.
        return [*argv, saving.format(state=_STATE, env=shutil.which("env") or "env", run=run), argv[0]]

    def next_start(self, shell: Any) -> tuple[str | None, dict[str, str]]:
        """Return the next command's directory, None without a ``cd``, and environment."""
        return self._directory, shell.programs.environment(self._changes, self._since)

    def move(self, translate: Callable[[str], str]) -> None:
        """Move the directory by ``translate``, in a branch."""
        self._directory = None if self._directory is None else translate(self._directory)

    def _find_directory(self) -> str | None:
        if self._directory is not None and not Path(self._directory).is_dir():
            sys.stderr.write(f"{self._directory} is gone: the command starts in {kernel_directory()}\n")
            self._directory = None
        return self._directory

    def _take_changes(
        self, state: Path, before: Mapping[str, str], active: str | None, ignored: frozenset[str], *, keep_directory: bool
    ) -> bool:
        """Keep the command's changes; return False if the command saved none, as after ``exec``."""
        directory, *entries = _entries(state) or [""]
        after = _variables(entries)
        if not after:
            return False
        if not keep_directory:
            self._directory = directory
        for name in (before.keys() | after.keys()) - ignored:
            if after.get(name) != before.get(name):
                self._changes[name] = after.get(name)
                if name == "PATH":
                    self._since = active
        return True


def kernel_directory() -> str | None:
    """Return this process's directory; None for a removed directory."""
    try:
        return str(Path.cwd())
    except OSError:
        return None


def _entries(path: str | Path) -> list[str]:
    with suppress(OSError):
        return os.fsdecode(Path(path).read_bytes()).split("\0")
    return []


def _variables(entries: Iterable[str]) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


class WorkingDirectory:
    """The kernel's first directory, the workspace: cells go on there if the current directory cannot be used."""

    def __init__(self) -> None:
        self._workspace: str | None = None
        self._inode: tuple[int, int] | None = None
        self._reported: DirectoryReport | None = None
        if (directory := kernel_directory()) is not None:
            self.move_to(directory)

    def move_to(self, workspace: str) -> None:
        """Make another directory the workspace; it must be the current directory."""
        self._workspace, self._inode = workspace, _read_inode()
        multiprocessing: Any = sys.modules.get("multiprocessing.process")
        if multiprocessing is not None:  # a fork server has imported it elsewhere; its processes import from there
            multiprocessing.ORIGINAL_DIR = workspace

    def check(self) -> DirectoryReport | None:
        """Change to the workspace if the current directory cannot be used; return a report if new."""
        problem = _find_problem()
        report = None if problem is None else self._go_on(problem)
        is_new, self._reported = report != self._reported, report
        return report if is_new else None

    def _go_on(self, problem: str) -> DirectoryReport:
        report: DirectoryReport = {"problem": problem, "workspace": self._workspace, "is_new": False, "reason": None}
        if self._workspace is None:
            return report
        try:
            os.chdir(self._workspace)
        except OSError as exc:
            return {**report, "reason": exc.strerror}
        problem_there = _find_problem()
        return {**report, "is_new": _read_inode() != self._inode, "reason": problem_there and f"it {problem_there}"}


def _read_inode() -> tuple[int, int] | None:
    try:
        status = os.stat(".")  # noqa: PTH116 - as it is
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _find_problem() -> str | None:
    """Return why the current directory cannot be used, or None."""
    try:
        os.getcwd()  # noqa: PTH109 - before each cell
    except OSError:
        return "was deleted"
    return None if os.access(".", os.X_OK) else "cannot be entered"


class MovedDirectories:
    """Directories replaced for a branch of a kernel: the workspace first, and the directory for temporary files."""

    def __init__(self, moves: Sequence[Sequence[str]]) -> None:
        self._moves = [(str(old), str(new)) for old, new in moves]

    def translate(self, path: str) -> str:
        """Return the path in the new place of the first moved directory around it; other paths stay."""
        for old, new in self._moves:
            if path == old or path.startswith(f"{old}/"):
                return new + path[len(old) :]
        return path

    def follow(self, directory: WorkingDirectory, shell: ShellSession) -> None:
        """Move to the same directory in the new place, or to the workspace if there is none.

        Paths in variables of user code stay, and so does the home directory with the user's files.
        """
        if not self._moves:
            return
        present = None
        with suppress(OSError):
            present = self.translate(os.getcwd())  # noqa: PTH109 - text in, text out
        with suppress(OSError):
            os.chdir(self._moves[0][1])
            directory.move_to(self._moves[0][1])
        with suppress(OSError):
            os.chdir(present or ".")
        shell.move(self.translate)
        for name in _DIRECTORY_VARIABLES:
            if name in os.environ:
                os.environ[name] = self.translate(os.environ[name])
        # tempfile has cached the directory of the original, and looks TMPDIR up again only without one.
        module: Any = tempfile
        module.tempdir = None
