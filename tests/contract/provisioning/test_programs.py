"""Which programs and packages cells find: a prefix, a named virtual environment, the workspace's own, the machine's."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelexec import ExecutionResult, Executor, InvalidConfig, InvalidWorkDir, KernelNotAnswering, KernelStartFailed, Session
from tests.conftest import KINDS
from tests.support.engine import needs_bubblewrap, needs_engine
from tests.support.night import at_night, named_cases
from tests.support.pace import RunningCell, slow
from tests.support.virtual_environments import made_venv, packages_of

WAYS: dict[str, Callable[[Session], ExecutionResult]] = {
    "command": lambda session: session.execute_command("marker; echo $VIRTUAL_ENV,$FOO"),
    "bang": lambda session: session.execute("!marker; echo $VIRTUAL_ENV,$FOO"),
    "bash": lambda session: session.execute("%%bash\nmarker; echo $VIRTUAL_ENV,$FOO"),
    "sx": lambda session: session.execute("print('\\n'.join(get_ipython().getoutput('marker; echo $VIRTUAL_ENV,$FOO')))"),
    "node": lambda session: session.execute(
        "const run = require('child_process').execSync; process.stdout.write(run('marker; echo $VIRTUAL_ENV,$FOO'))",
        language="javascript",
    ),
}
#: Where more than one is there, the first of them alone says what the next ones could not: the rest is tried at night.
PLACES = ("prefix", "named", "own")
PRIORITY = {
    # prefix, named, the workspace's own: what the marker says, the active virtual environment, what the prefix sets
    (True, True, True): ("of the machine", "", "1"),
    (True, True, False): ("of the machine", "", "1"),
    (True, False, True): ("of the machine", "", "1"),
    (True, False, False): ("of the machine", "", "1"),
    (False, True, True): ("of named", "named", ""),
    (False, True, False): ("of named", "named", ""),
    (False, False, True): ("of .venv", ".venv", ""),
    (False, False, False): ("of the machine", "own", ""),
}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with the machine's own marker on the PATH, and no virtual environment active."""
    location = tmp_path_factory.mktemp("machine")
    (location / "marker").write_text("#!/bin/sh\necho of the machine\n")
    (location / "marker").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(location), prepend=":")
        patch.delenv("VIRTUAL_ENV", raising=False)
        yield location


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_venv(tmp_path_factory.mktemp("environments") / "named")


@pytest.mark.parametrize(
    ("value", "expected"),
    named_cases(
        {
            "-".join(name for name, is_there in zip(PLACES, value, strict=True) if is_there) or "none": (value, expected)
            for value, expected in PRIORITY.items()
        },
        {"prefix-named-own", "named-own", "own", "none"},
    ),
)
def test_a_prefix_goes_over_a_named_environment_over_the_workspaces_over_the_machine(
    value: tuple[bool, bool, bool], expected: tuple[str, str, str], machine: Path, named: Path, tmp_path: Path
) -> None:
    prefix, by_name, own = value
    programs = {"prefix": "env FOO=1" if prefix else None, "venv": named if by_name else None}
    with Executor("local", workspace=tmp_path, config={"programs": programs}) as executor:
        session = executor.session("all")
        if own:
            made_venv(session.workspace / ".venv")
        for way, run in WAYS.items():
            answer, active = run(session).stdout.splitlines()
            venv, _, foo = active.partition(",")
            name = "own" if Path(venv).parent.name == "venvs" else Path(venv).name
            assert (answer, name, foo) == expected, way


COMMANDS = "python -c 'import sys; print(sys.prefix)'; python3 -c 'import sys; print(sys.prefix)'; marker"


def own_venvs(session: Session) -> Path:
    """Where the session's own environments are."""
    return session.workspace / ".kernelexec" / "venvs"


def test_commands_find_the_interpreter_of_the_cells_first(machine: Path, tmp_path: Path) -> None:
    (machine / "python").write_text("#!/bin/sh\necho another one\n")
    (machine / "python").chmod(0o755)
    with Executor("local", workspace=tmp_path, config={"checkpoints": "off"}) as executor:
        session = executor.session("own")
        for run in (session.execute_command(COMMANDS), session.execute(f"!{COMMANDS}")):
            prefixes = run.stdout.splitlines()
            assert [*{Path(prefix).parent for prefix in prefixes[:2]}, *prefixes[2:]] == [own_venvs(session), "of the machine"]
        session.execute(f"import os; os.environ['PATH'] = {str(machine)!r} + os.pathsep + os.environ['PATH']")
        assert session.execute_command("python").stdout == "another one\n"
    path = {"environment": {"set": {"PATH": f"{machine}:/usr/bin:/bin"}}}
    with Executor("local", workspace=tmp_path, config=path) as executor:
        assert executor.session("set").execute_command("python").stdout == "another one\n"
    (machine / "python").unlink()


@pytest.fixture(scope="module")
def executor(machine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    with Executor("local", workspace=tmp_path_factory.mktemp("workspaces"), config={"budgets": {"grace": slow(2)}}) as opened:
        yield opened


def test_an_environment_that_a_cell_makes_counts_from_the_next_command_on(session: Session) -> None:
    assert session.execute_command("marker").stdout == "of the machine\n"
    created = f"{sys.executable} -m venv --without-pip .venv && cp $(which marker) .venv/bin"
    assert session.execute_command(f"{created} && echo 'echo of .venv' >.venv/bin/marker").ok
    assert session.execute_command("marker; which python").stdout.splitlines() == [
        "of .venv",
        str(session.workspace / ".venv/bin/python"),
    ]
    assert session.execute_command("cd /; marker").stdout == "of .venv\n"
    assert session.execute_command("marker").stdout == "of .venv\n"
    session.execute("import shutil; shutil.rmtree('.venv')")
    assert session.execute_command("marker; echo ${VIRTUAL_ENV%/*}").stdout == f"of the machine\n{own_venvs(session)}\n"


def test_a_directory_without_programs_is_no_environment(session: Session) -> None:
    (session.workspace / ".venv").mkdir()
    assert session.execute_command("marker; echo ${VIRTUAL_ENV%/*}").stdout == f"of the machine\n{own_venvs(session)}\n"
    (session.workspace / ".venv").rmdir()
    (session.workspace / ".venv").write_text("")
    assert session.execute_command("marker").stdout == "of the machine\n"


def test_exports_of_the_user_are_not_undone(session: Session) -> None:
    made_venv(session.workspace / ".venv")
    other = made_venv(session.workspace / "other")
    session.execute_command('export PATH="/first:$PATH"')
    path = session.execute_command("echo $PATH").stdout.strip().split(":")
    assert path[:2] == ["/first", str(session.workspace / ".venv/bin")]
    assert session.execute_command("echo $PATH").stdout.strip().split(":") == path
    session.execute_command(f"source {other}/bin/activate")
    assert session.execute_command("marker; echo $VIRTUAL_ENV").stdout == f"of other\n{other}\n"
    session.execute_command("export PATH=/usr/bin:/bin")
    assert session.execute_command("echo $PATH").stdout == "/usr/bin:/bin\n"


def test_an_environment_that_comes_after_an_export_goes_before_it(session: Session) -> None:
    session.execute_command('export PATH="/first:$PATH"')
    made_venv(session.workspace / ".venv")
    for _ in range(2):
        path = session.execute_command("echo $PATH").stdout.strip().split(":")
        assert path[:2] == [str(session.workspace / ".venv/bin"), "/first"]
        assert path[2] != path[0]


def test_environments_activated_in_python_stay_active(session: Session) -> None:
    made_venv(session.workspace / ".venv")
    other = made_venv(session.workspace / "other")
    code = (
        f"import os; os.environ |= {{'VIRTUAL_ENV': {str(other)!r}, 'PATH': {str(other / 'bin')!r} + ':' + os.environ['PATH']}}"
    )
    session.execute(code)
    assert session.execute("!marker").stdout == "of other\n"
    assert session.execute_command("marker").stdout == "of other\n"


def test_variables_of_a_prefix_do_not_pile_up(machine: Path, tmp_path: Path) -> None:
    program = "import os, sys; os.environ['PATH'] = '/by:' + os.environ['PATH']; os.execvp(sys.argv[1], sys.argv[1:])"
    prefix = shlex.join([sys.executable, "-c", program])
    with Executor("local", workspace=tmp_path, config={"programs": {"prefix": prefix}}) as executor:
        session = executor.session("prefixed")
        paths = [session.execute_command("export COUNT=$((COUNT+1)); echo $PATH,$COUNT").stdout.strip() for _ in range(3)]
        assert [path.partition(",")[2] for path in paths] == ["1", "2", "3"]
        assert [path.count("/by") for path in paths] == [1, 1, 1]
        assert session.execute_command("mkdir sub; cd sub").ok
        assert session.execute_command("pwd").stdout == f"{session.workspace}/sub\n"
        assert session.execute_command("exit 7").exit_code == 7


def test_a_prefix_that_is_not_there_is_a_failed_command(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={"programs": {"prefix": "no-such-program run"}}) as executor:
        result = executor.session().execute_command("echo x")
        assert (result.exit_code, result.state) == (127, "kept")
        assert "no-such-program" in result.stderr


@pytest.mark.parametrize("prefix", ["", " ", "env 'FOO", "''"])
def test_a_prefix_that_is_no_words_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidConfig, match=r"programs\.prefix"):
        Executor("local", config={"programs": {"prefix": prefix}})


def test_a_named_environment_that_is_missing_or_none_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, reason in (("gone", "does not exist"), ("empty", "has no directory bin")):
        with pytest.raises(InvalidConfig, match=rf"{tmp_path}/{name} {reason}"):
            Executor("local", config={"programs": {"venv": tmp_path / name}})


@needs_engine
def test_in_a_container_it_is_refused_when_the_kernel_starts(tmp_path: Path) -> None:
    config = {**KINDS["container"], "programs": {"venv": "/no/such/place"}}
    with (
        Executor("container", workspace=tmp_path, config=config) as executor,
        pytest.raises(KernelStartFailed, match="/no/such/place is not there"),
    ):
        executor.session()


@needs_engine
@pytest.mark.parametrize("layout", ["classic", *at_night("host")])
def test_in_a_container_the_workspaces_own_counts(layout: str, tmp_path: Path) -> None:
    options: Any = KINDS["container"]["container"]
    config = {"container": {**options, "layout": layout}}
    with Executor("container", workspace=tmp_path, config=config) as executor:
        session = executor.session("inside")
        session.execute_command("python3 -m venv --without-pip .venv")
        actual = session.execute_command("which python; echo $VIRTUAL_ENV").stdout.splitlines()
        home = "/workspace" if layout == "classic" else str(session.workspace)
        assert actual == [f"{home}/.venv/bin/python", f"{home}/.venv"]
        (packages_of(session.workspace / ".venv") / "within.py").write_text("x = 'it is'")
        session.restart()
        result = session.execute("import within; print(within.x)")
        assert result.stdout == "it is\n"
        assert any("also import from" in note for note in result.notes)


@pytest.mark.parametrize("forks", named_cases({"forked": True, "started": False}, {"forked"}))
def test_a_named_environment_with_ipykernel_runs_python_cells(forks: bool, tmp_path: Path) -> None:  # noqa: FBT001
    venv = made_venv(tmp_path / "named")
    [own] = [path for path in sys.path if path.endswith("site-packages")][:1]
    (packages_of(venv) / "with_ipykernel.pth").write_text(f"{own}\n")
    (packages_of(venv) / "within.py").write_text("x = 'it is'")
    config = {"programs": {"venv": venv}, "fork_server": forks}
    with Executor("local", workspace=tmp_path / "work", config=config) as executor:
        session = executor.session()
        result = session.execute("import sys, within; print(sys.prefix, within.x)")
        assert result.stdout == f"{venv} it is\n"
        assert result.notes == (f"Python cells run on the interpreter of the virtual environment {str(venv)!r}.",)
        assert session.execute("1").notes == ()
        actual = session.environment()
        assert (actual.python, actual.prefix, actual.venv, actual.served) == (
            f"{venv}/bin/python",
            str(venv),
            str(venv),
            "interpreter",
        )


def test_the_interpreter_of_an_environment_that_cells_can_write_is_never_started(tmp_path: Path) -> None:
    work = tmp_path / "project"
    venv = made_venv(work / "env")
    reported = tmp_path / "told"
    (venv / "bin" / "python").unlink()
    (venv / "bin" / "python").write_text(f'#!/bin/sh\ntouch {reported}\nexec {sys.executable} "$@"\n')
    (venv / "bin" / "python").chmod(0o755)
    with Executor("local", workspace=tmp_path / "work", config={"programs": {"venv": venv}, "work_dir": work}) as executor:
        session = executor.session()
        result = session.execute("import sys; sys.prefix")
        assert result.text.strip() == repr(sys.prefix)
        assert any("also import from" in note for note in result.notes)
        session.restart()
        assert session.execute("1 + 1").text == "2"
    assert not reported.exists()


def test_no_session_works_where_the_interpreter_of_all_is(tmp_path: Path) -> None:
    work = tmp_path / "project"
    venv = made_venv(work / "env")
    [own] = [path for path in sys.path if path.endswith("site-packages")][:1]
    (packages_of(venv) / "with_ipykernel.pth").write_text(f"{own}\n")
    with Executor("local", workspace=tmp_path / "work", config={"programs": {"venv": venv}}) as executor:
        with pytest.raises(InvalidWorkDir, match="whose interpreter runs all kernels"):
            executor.session(work_dir=work)
        assert executor.session().execute("import sys; sys.prefix").text == repr(str(venv))


def test_an_environment_without_ipykernel_is_imported_from(tmp_path: Path) -> None:
    venv = made_venv(tmp_path / "named")
    (packages_of(venv) / "within.py").write_text("x = 'it is'")
    (packages_of(venv) / "more.pth").write_text(f"{tmp_path}/more\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "linked.py").write_text("y = 'too'")
    with Executor("local", workspace=tmp_path / "work", config={"programs": {"venv": venv}}) as executor:
        session = executor.session()
        result = session.execute("import linked, sys, within; print(within.x, linked.y, sys.prefix)")
        assert result.stdout == f"it is too {sys.prefix}\n"
        assert result.notes == (
            f"Python cells also import from the virtual environment {str(venv)!r}; its packages come first.",
        )


def test_an_environment_of_another_python_serves_commands_only(tmp_path: Path) -> None:
    venv = made_venv(tmp_path / "named")
    packages_of(venv).parent.rename(venv / "lib" / "python3.7")
    with Executor("local", workspace=tmp_path / "work", config={"programs": {"venv": venv}}) as executor:
        session = executor.session()
        result = session.execute("import sys; print([path for path in sys.path if 'named' in path])")
        assert result.stdout == "[]\n"
        assert any(note.startswith(f"Only commands use the virtual environment {str(venv)!r}") for note in result.notes)
        assert session.execute_command("marker").stdout == "of named\n"


def test_an_idle_kernel_finds_the_environment_of_its_session(tmp_path: Path) -> None:
    work = tmp_path / "project"
    made_venv(work / ".venv")
    (packages_of(work / ".venv") / "within.py").write_text("x = 'it is'")
    config = {"pool": {"size": 1, "policy": "wait"}, "confinement": {"level": "off"}}
    with Executor("local", workspace=tmp_path / "work", config=config) as executor:
        result = executor.session(work_dir=work).execute("import within; within.x")
        assert result.text == "'it is'"
        assert any("also import from" in note for note in result.notes)


def test_an_environment_that_hangs_costs_a_cell_and_no_session(session: Session) -> None:
    made_venv(session.workspace / ".venv")
    (packages_of(session.workspace / ".venv") / "slow.pth").write_text("import time; time.sleep(60)\n")
    session.restart()
    result = session.execute("print('x')", timeout=1)
    assert (result.interrupted, result.ended_by, result.stdout) == ("timeout", "interrupt", "")
    following = session.execute("print('x')")
    assert (following.stdout, following.kernel_epoch) == ("x\n", result.kernel_epoch)


def test_the_environment_is_reported_while_a_cell_runs(session: Session) -> None:
    made_venv(session.workspace / ".venv")
    record = packages_of(session.workspace / ".venv") / "Some_Thing-1.2.dist-info"
    record.mkdir()
    session.execute("1")
    code = "import sys, time; sys.path += [5, 'gone', '/dev/zero']; print('begun', flush=True); time.sleep(600)"
    cell = RunningCell(session, code, timeout=600)
    actual = session.environment()
    assert (actual.version, actual.prefix) == (sys.version.split()[0], sys.prefix)
    assert (actual.venv, actual.served, actual.command_prefix) == (str(session.workspace / ".venv"), "packages", ())
    assert actual.packages["some-thing"] == "1.2"
    assert actual.packages["ipykernel"].startswith("7.")
    session.interrupt()
    assert cell.result().interrupted == "request"


def test_without_a_kernel_there_is_no_environment_to_report(session: Session) -> None:
    session.execute("import os; os._exit(3)")
    with pytest.raises(KernelNotAnswering, match="no living kernel"):
        session.environment()


@needs_bubblewrap
def test_in_namespaces_a_named_environment_is_seen(named: Path, tmp_path: Path) -> None:
    with Executor("bubblewrap", workspace=tmp_path, config={"programs": {"venv": named}}) as executor:
        session = executor.session()
        assert session.execute_command("marker").stdout == "of named\n"
