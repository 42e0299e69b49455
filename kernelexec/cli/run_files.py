"""The command for notebooks and scripts: parameters, the paths of executed copies, several files at once, a report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer
from typer.core import TyperCommand

from kernelexec import cells
from kernelexec.cli.console import ConsoleOutput
from kernelexec.cli.options import (
    ONE_COMMAND_SETTINGS,
    IsolationOptions,
    JsonOption,
    PicturesOption,
    TimeoutOption,
    WorkDirOption,
    not_blank,
    option,
    with_isolation_options,
    without_idle_fork_server,
)
from kernelexec.cli.stdio import (
    CELL_FAILED,
    INTERRUPTED,
    OUTPUT_CLOSED,
    REFUSED,
    STATUS_HELP,
    TIMED_OUT,
    CommandFailed,
    Signals,
    cell_status,
    current_directory,
    eprint,
    read_stdin,
)
from kernelexec.cli.terminal import confirm_at_terminal
from kernelexec.config import Config, check_seconds
from kernelexec.errors import InvalidCode, InvalidConfig, InvalidRequest, KernelexecError
from kernelexec.events import Event, LateOutputReported
from kernelexec.launcher.protocol import NOTHING_SOURCE
from kernelexec.records.notebook.html_report import load_exporter
from kernelexec.records.notebook.notebook_formats import read_value
from kernelexec.records.notebook.notebook_io import CellFile
from kernelexec.results.one_line import count_things, format_seconds
from kernelexec.workspace.safe_files import replace_file

if TYPE_CHECKING:
    from kernelexec.results import ExecutionResult
    from kernelexec.session import AsyncSession

files_run_app = typer.Typer()
_PARAMETER_OPTIONS = ("-p", "--parameter")
_JOBS_MAX = 256


class _RunCommand(TyperCommand):
    """A command whose option ``-p`` takes two words, which typer's options with lists cannot."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer exports no context of this class
        return super().parse_args(ctx, join_parameters(args))


def join_parameters(words: Sequence[str]) -> list[str]:
    """Return the words of a command with every ``-p NAME VALUE`` in the form ``-p NAME=VALUE``."""
    joined, rest = list[str](), list(words)
    while rest:
        word = rest.pop(0)
        joined.append(word)
        if word == "--":
            return joined + rest
        if word in _PARAMETER_OPTIONS and rest:
            name = rest.pop(0)
            joined.append(f"{name}={rest.pop(0)}" if rest and "=" not in name else name)
    return joined


@files_run_app.command(
    cls=_RunCommand,
    epilog="Exit status: 0; 1 after a cell that failed, or the status with which it exits; of several files, "
    f"the first that is not 0; {STATUS_HELP}",
)
@with_isolation_options
def run(
    isolation_options: IsolationOptions,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            callback=not_blank,
            help="Notebooks (.ipynb), scripts with '# %%' cells (.py), or - for a script from stdin.",
        ),
    ],
    output: Annotated[
        str | None,
        option(
            "--output -o", "The path of the executed notebook (.ipynb); a directory for several.", "PATH", callback=not_blank
        ),
    ] = None,
    no_output: Annotated[bool, option("--no-output", "Write no executed notebook.")] = False,
    inplace: Annotated[bool, option("--inplace", "Replace each notebook by the executed one.")] = False,
    html: Annotated[
        str | None,
        option(
            "--html",
            "Write a report as a page too, its outputs in frames; a directory for several files. Needs nbconvert.",
            "PATH",
            callback=not_blank,
        ),
    ] = None,
    parameter: Annotated[
        list[str],
        option(
            "-p --parameter", "Set a variable after the cell tagged 'parameters', as papermill does. Repeatable.", "NAME VALUE"
        ),
    ] = [],  # noqa: B006 - typer's
    params: Annotated[
        str | None, option("--params", "A YAML or JSON file of parameters; -p overrides it.", "FILE", callback=not_blank)
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, max=_JOBS_MAX, metavar="N", help="How many files run at once.")
    ] = 1,
    timeout: TimeoutOption = None,
    work_dir: WorkDirOption = None,
    allow_errors: Annotated[bool, option("--allow-errors", "Continue after a failed cell.")] = False,
    pictures: PicturesOption = "auto",
    as_json: JsonOption = False,
) -> int:
    """Run the cells of each FILE in a session of its own, print their output immediately, and write the executed notebook."""
    config, current = isolation_options.load_config(**ONE_COMMAND_SETTINGS), current_directory()
    if timeout is not None:
        check_seconds(timeout, "timeout")
    _check_choices(files, output=output, no_output=no_output, inplace=inplace, as_json=as_json)
    exporter = None if html is None else load_exporter()
    values = {**_read_parameter_file(params), **dict(map(_parse_parameter, parameter))}
    is_silent = jobs > 1 and len(files) > 1  # then a line about each end is shown
    runs = []
    for number, file in enumerate(files, 1):
        path = None if file == "-" else Path(file)
        document = _read_script(values) if path is None else CellFile.read(path, piped=True, parameters=values)
        _check_document(document, "stdin" if path is None else file, config)
        target = None if no_output else _choose_target(path, output, inplace=inplace, several=len(files) > 1)
        report = None if html is None else _choose_report(path, html, several=len(files) > 1)
        directory = Path(work_dir) if work_dir else (path.parent if path else current)
        name = "run" if len(files) == 1 else f"run-{number}"
        console = ConsoleOutput(as_json=as_json, is_silent=is_silent, pictures=pictures)
        runs.append(FileRun(file, name, document, target, report, directory, timeout, allow_errors, console))
    with ExitStack() as opened:
        _open_targets(runs, opened, inplace=inplace)
        for each in runs:
            each.announce(values)
        return _run_all(runs, config, jobs, exporter)


def _run_all(runs: Sequence[FileRun], config: Config, jobs: int, exporter: Callable[[str], str] | None) -> int:
    """Run the files, some at once; return the status of a signal, or the first status other than 0."""
    signals, fatal = Signals(), list[Exception]()

    async def use() -> None:
        with signals.handle(), anyio.CancelScope() as scope:
            slots = anyio.Semaphore(jobs)
            async with anyio.create_task_group() as tasks:
                for each in runs:
                    await slots.acquire()
                    if signals.was_interrupted:
                        break
                    tasks.start_soon(run_one, each, slots, scope)

    async def run_one(each: FileRun, slots: anyio.Semaphore, scope: anyio.CancelScope) -> None:
        try:
            await each.run(config, signals)
            each.finish(exporter)
        except (KernelexecError, CommandFailed, OSError) as exc:
            each.status = getattr(exc, "status", CELL_FAILED)
            if len(runs) > 1 and each.status != OUTPUT_CLOSED:
                eprint(f"{each.file}: {exc}")
            else:
                fatal.append(exc)
                scope.cancel()
        finally:
            slots.release()

    anyio.run(use)
    for each in runs:  # those that a signal or a failure ended
        with suppress(CommandFailed) if fatal else nullcontext():
            each.finish(exporter)
    if fatal:
        raise fatal[0]
    statuses = [INTERRUPTED if each.status is None else each.status for each in runs]
    return signals.status or next(filter(None, statuses), 0)


@dataclass(slots=True)
class FileRun:
    """A run of a document in a session of its own executor."""

    file: str
    name: str
    document: CellFile
    target: Path | None
    report: Path | None
    directory: Path
    timeout: float | None
    allow_errors: bool
    console: ConsoleOutput
    directories: dict[Path, int] = field(default_factory=dict)
    """The open directory of each file to write: cells may be able to put another one in its place."""
    status: int | None = None
    has_written: bool = False
    is_finished: bool = False
    began: float = field(default_factory=time.monotonic)

    def announce(self, values: Mapping[str, Any]) -> None:
        """Show the notes about the document before the run."""
        for note in self.document.history.notes:
            eprint(f"{self.file}: {note}")
        if values and (names := self.document.unknown_parameters):
            eprint(f"{self.file}: its cell of parameters, if there is one, does not have {', '.join(names)}")

    async def run(self, config: Config, signals: Signals) -> None:
        """Run the cells, and set the exit status.

        Raises:
            KernelexecError: no session could be opened, or the notebook's kernelspec is not installed; nothing ran.
        """
        from kernelexec.executor.executor import AsyncExecutor

        self.began = time.monotonic()
        if not self.document.sources:
            self.write("")
            self.status = 0
            return
        config = without_idle_fork_server(config, self.directory)
        async with AsyncExecutor(config=config, hooks=[self.on_event], approver=confirm_at_terminal) as executor:
            session = await executor.session(self.name, work_dir=self.directory)
            with signals.follow(session):
                await self._run_in(session, signals, self.timeout or config.budgets.timeout)

    async def _run_in(self, session: AsyncSession, signals: Signals, seconds: float) -> None:
        """Run the cells; as by Python itself, a script's name is in `sys.argv`, and the end waits for the script's threads."""
        is_script, status = not self.file.lower().endswith(".ipynb"), 0
        if is_script:  # the first words have no checkpoint made of this
            source = f"{NOTHING_SOURCE} or __import__('sys').argv.__setitem__(slice(None), [{self.file!r}])"
            status = cell_status(await self._call(session, source, seconds))
        if not status and not signals.was_interrupted:
            status = await self._run_cells(session, signals)
        self.status = status or (INTERRUPTED if signals.was_interrupted else 0)
        if is_script and session.connection_file is not None and self.status not in (INTERRUPTED, TIMED_OUT):
            result = await self._call(session, "__import__('threading')._shutdown()", seconds)
            if not result.ok:
                eprint(f"{self.file}: its threads have not ended: {result.summary}")
            self.status = cell_status(result) or self.status

    def on_event(self, event: Event) -> None:
        """Pass an event on to the document, and show output after the last cell, which no later result has: a hook."""
        self.document.on_event(event)
        for output in event.outputs if isinstance(event, LateOutputReported) and self.status is not None else ():
            self.console.show_output(output)

    async def _call(self, session: AsyncSession, source: str, seconds: float) -> ExecutionResult:
        """Run code of ours in a script's kernel."""
        _, result = await session.run_internally(source, seconds, on_output=self.console.show_output)
        if result.outputs and (executions := session.executions()):  # those of threads come after the last cell
            self.document.on_event(LateOutputReported(session.name, executions[-1], result.outputs))
        return result

    async def _run_cells(self, session: AsyncSession, signals: Signals) -> int:
        """Run the cells up to the first failure, exit or interrupt; return the status of the last cell."""
        document, status = self.document, 0
        if (kernelspec := document.history.kernelspec) is not None:
            await session.check_kernelspec(kernelspec)
        with self.console.progress(len(document.sources)) as advance:
            for number, source in enumerate(document.sources):
                language = document.get_language(number)
                result = await session.execute(
                    source, language=language, timeout=self.timeout, on_output=self.console.show_output
                )
                document.record(number, result)
                if number == 0 and result.state in ("kept", "new"):
                    document.set_language_info(await session.read_language_info(language))
                self.write(f" after cell {number + 1}")
                advance()
                exits = result.exit_status == 0 and result.interrupted is None  # as a program does, without a failure
                self.console.show_result(result, has_hints=not document.allows_error(number), is_exit=exits)
                status = 0 if exits else self._exit_status(number, result)
                if status and self.console.is_silent:
                    eprint(f"{self.file}: cell {number + 1} failed: {result.summary}")
                if status or exits or signals.was_interrupted:  # perhaps too late for a cell that has just ended
                    break
        return status

    def _exit_status(self, number: int, result: ExecutionResult) -> int:
        status = TIMED_OUT if result.interrupted == "timeout" else cell_status(result)
        never_began = result.status == "aborted" and status != REFUSED  # its kernel was still starting
        if result.interrupted == "request" or never_began:
            return INTERRUPTED
        return 0 if self.allow_errors or self.document.allows_error(number) else status

    def write(self, moment: str) -> None:
        """Write the executed notebook; ``moment`` completes the message of a failure."""
        if self.target is None:
            return
        try:
            self.document.write(Path(self.target.name), dir_fd=self.directories[self.target])
        except OSError as exc:
            message = f"{self.target} cannot be written{moment}: {exc.strerror}."
            raise CommandFailed(message) from exc
        self.has_written = True

    def finish(self, exporter: Callable[[str], str] | None) -> None:
        """Write what came after the last cell, and the report; show what was written. Once."""
        if self.is_finished:
            return
        self.is_finished = True  # now: a failure below must not be met again after the other files
        if self.has_written and self.document.is_changed:  # output came after the last cell
            self.write(" after the last cell")
        written = [self.target] if self.has_written else []
        if self.report is not None and exporter is not None and self.status is not None:
            page = exporter(self.document.to_json()).encode("utf-8", "backslashreplace")
            try:
                replace_file(self.report.name, page, dir_fd=self.directories[self.report])
            except OSError as exc:
                raise CommandFailed(f"{self.report} cannot be written: {exc.strerror}.") from exc
            written.append(self.report)
        if not self.document.sources:
            eprint(f"{self.file} has no code cell to run{': wrote ' * bool(written)}{', '.join(map(str, written))}")
            return
        if self.console.is_silent and self.status == 0:
            took = format_seconds(time.monotonic() - self.began)
            eprint(f"{self.file}: {count_things('cell', len(self.document.sources))} in {took}")
        if written:
            eprint(f"wrote {' and '.join(map(str, written))}")


def _read_script(values: Mapping[str, Any]) -> CellFile:
    try:
        return CellFile.script(read_stdin("run").decode("utf-8-sig"), values)
    except UnicodeDecodeError as exc:
        message = f"stdin is not UTF-8 (byte {exc.start})."
        raise InvalidRequest(message) from exc


def _check_document(document: CellFile, file: str, config: Config) -> None:
    if not document.sources and not file.endswith(".ipynb"):
        message = f"{file} must contain a code cell: there is nothing to run."
        raise InvalidRequest(message)
    for number, source in enumerate(document.sources, 1):
        try:
            cells.check(source, limit_bytes=config.capacity.code_bytes)
        except InvalidCode as exc:
            message = f"{file}, cell {number}: {exc}"
            raise InvalidRequest(message) from exc


def _check_choices(files: Sequence[str], *, output: str | None, no_output: bool, inplace: bool, as_json: bool) -> None:
    chosen = [name for name, is_set in (("--output", output), ("--no-output", no_output), ("--inplace", inplace)) if is_set]
    if len(chosen) > 1:
        raise InvalidRequest(f"{' and '.join(chosen)} contradict each other: choose one of them.")
    if len(files) > 1 and ("-" in files or as_json):
        raise InvalidRequest(f"{'- (stdin)' if '-' in files else '--json'} is for one file: run the others by themselves.")
    if inplace and (others := [file for file in files if not file.lower().endswith(".ipynb")]):
        raise InvalidRequest(f"--inplace is for notebooks (.ipynb), and {others[0]} is none: use --output.")


def _choose_target(path: Path | None, output: str | None, *, inplace: bool, several: bool) -> Path | None:
    """Return the path of the executed notebook; None for a script from stdin without ``--output``."""
    if inplace:
        return path
    if output is None:
        return path and path.with_name(f"{path.stem}.executed.ipynb")
    if several or (path is not None and _is_directory(Path(output))):
        assert path is not None
        return Path(output) / f"{path.stem}.ipynb"
    return Path(output)


def _choose_report(path: Path | None, html: str, *, several: bool) -> Path:
    return Path(html) / f"{path.stem}.html" if path is not None and (several or _is_directory(Path(html))) else Path(html)


def _is_directory(path: Path) -> bool:
    """Return whether a path is a directory, without the suffix of a notebook or a page."""
    with suppress(OSError):  # of a path that no file can have
        return path.is_dir() and path.suffix not in (".ipynb", ".html")
    return False


def _open_targets(runs: Sequence[FileRun], opened: ExitStack, *, inplace: bool) -> None:
    """Check the paths of all files to write, before anything runs, and open their directories.

    Raises:
        InvalidRequest: a path is not writable, not a notebook's, or the same for two files.
    """
    paths = [_resolve(path) for each in runs for path in (each.target, each.report) if path is not None]
    if double := next((path for path in paths if paths.count(path) > 1), None):
        raise InvalidRequest(f"{double} would be written for two files: run them by themselves, or rename one.")
    for each in runs:
        source = None if each.file == "-" else Path(each.file)
        if each.target is not None and not inplace and each.target.suffix != ".ipynb":
            raise InvalidRequest(f"{each.target} : --output must end in .ipynb.")
        if each.target is not None:
            each.directories[each.target] = _open_directory(each.target, None if inplace else source, "--output", opened)
        if each.report is not None:
            each.directories[each.report] = _open_directory(each.report, source, "--html", opened)


def _resolve(path: Path) -> Path:
    return Path(os.path.realpath(path.parent), path.name)


def _open_directory(target: Path, source: Path | None, name: str, opened: ExitStack) -> int:
    """Open the directory of a file to write, and check by a temporary file whether the directory is writable.

    The file must not be its ``source``, which is None for a file to be replaced.
    """
    trial = f".{target.name}.{os.getpid()}.tmp"
    try:
        directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        opened.callback(os.close, directory)
        if source is not None and target.exists() and target.samefile(source):
            raise InvalidRequest(
                f"{target} is the input file: {name} must be another file{', or use --inplace' * (name == '--output')}."
            )
        if target.exists() and not target.is_file():
            message = f"{target} is not a regular file: {name} must be the path of a file."
            raise InvalidRequest(message)
        # Exclusive and without following a link: another file of this name, or the target of a link, stays as it is.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(trial, flags, 0o600, dir_fd=directory))
    except OSError as exc:
        message = f"{target} cannot be written: {exc.strerror}. Choose another path with {name}."
        raise InvalidRequest(message) from exc
    with suppress(OSError):
        os.unlink(trial, dir_fd=directory)
    return directory


def _parse_parameter(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequest(f"-p {text}: must be followed by a name and a value.")
    return name, read_value(value)


def _read_parameter_file(file: str | None) -> dict[str, Any]:
    """Return the parameters in a file.

    Raises:
        InvalidRequest: the file cannot be read, or is no mapping in YAML or JSON.
    """
    if file is None:
        return {}
    from kernelexec.config.dialects.yaml_loader import parse

    try:
        content = parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"--params {file} cannot be read: {getattr(exc, 'strerror', None) or 'it is not UTF-8'}.") from exc
    except InvalidConfig as exc:
        raise InvalidRequest(f"--params {file} {exc}") from exc
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise InvalidRequest(f"--params {file} must be a mapping of names to values, in YAML or JSON.")
    return content
