"""Languages other than Python: kernels of installed kernelspecs that keep their state, and commands where there is none."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
import pytest

from kernelexec import DisplayData, Executor, InvalidCode, InvalidRequest, KernelChanged, KernelStartFailed, Session
from kernelexec.events import Event
from kernelexec.results import Stream
from tests.conftest import EVERY_KIND
from tests.contract.session.test_commands import gone
from tests.support.engine import IMAGE, needs_engine
from tests.support.kernelspecs import settings, write, write_all
from tests.support.low_memory import MIB
from tests.support.night import named_cases
from tests.support.pace import until
from tests.support.remains import kernel_processes, marked_processes, runtime_directories

#: What runs in containers and namespaces in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = ()
PORT = "The kernel 'deno' cannot use unix sockets: it listens on a loopback port."


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the kernelspecs of this module are, and no others but Python's own."""
    directory = tmp_path_factory.mktemp("jupyter")
    write_all(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(directory))
        patch.setenv("JUPYTER_DATA_DIR", str(directory / "user"))
        yield directory


@pytest.fixture(scope="module", params=EVERY_KIND)
def executor(request: pytest.FixtureRequest, specs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    location, config = tmp_path_factory.mktemp("workspaces"), settings(request.param)
    with Executor(isolation=request.param, workspace=location, config=config) as opened:
        yield opened


@pytest.fixture
def here(specs: Path, tmp_path: Path) -> Iterator[Session]:
    """A session on this machine."""
    with Executor(isolation="local", workspace=tmp_path) as opened:
        yield opened.session("here")


@pytest.fixture(scope="module")
def shared(executor: Executor) -> Session:
    """One session for the tests that leave it as they found it."""
    return executor.session("shared")


def text_of(session: Session, code: str, language: str) -> str:
    result = session.execute(code, language=language)
    assert (result.status, result.state, result.language) == ("ok", "kept", language), result.text
    return result.text


def test_each_language_keeps_its_own_state_over_ten_interleaved_turns(shared: Session) -> None:
    text_of(shared, "x = 0", "python")
    text_of(shared, "let x: number = 100", "typescript")
    text_of(shared, "x=a; mkdir -p sub; cd sub", "bash")
    for turn in range(1, 11):
        assert text_of(shared, "x += 1; x", "python") == str(turn)
        assert text_of(shared, "x += 1; x", "typescript") == str(100 + turn)
        assert text_of(shared, "x=${x}a; echo $x; pwd", "bash") == f"{'a' * (turn + 1)}\n{shared.workspace}/sub\n"
    assert text_of(shared, "import os; os.getcwd()", "python") == f"'{shared.workspace}'"


def test_outputs_come_in_order_and_with_their_types(shared: Session) -> None:
    heard: list[str] = []
    code = """
        console.log("one");
        await Deno.jupyter.display({"text/html": "<b>two</b>", "text/plain": "two"}, {raw: true});
        console.error("three");
        Deno.jupyter.html`<i>four</i>`
    """
    result = shared.execute(code, language="ts", on_output=lambda output: heard.append(type(output).__name__))
    assert (result.ok, result.stdout, result.stderr) == (True, "one\n", "three\n")
    shown = [output for output in result.outputs if isinstance(output, DisplayData)]
    assert [output.data.get("text/html") for output in shown] == ["<b>two</b>"]
    assert [type(output).__name__ for output in result.outputs] == ["Stream", "DisplayData", "Stream", "ExecuteResult"]
    assert heard == [type(output).__name__ for output in result.outputs]
    assert "outputs/" in " ".join(result.files)


@pytest.mark.parametrize("count", [1, 3000])
def test_output_published_after_the_end_belongs_to_its_cell(shared: Session, count: int) -> None:
    for _ in range(10 if count == 1 else 1):
        result = shared.execute(f"for (let i = 0; i < {count}; i++) console.log(i); 'end'", language="ts")
        assert result.text == "".join(f"{i}\n" for i in range(count)) + '"end"'
        assert (result.late, result.state) == ((), "kept")


@pytest.mark.parametrize(
    ("language", "code", "expected"),
    [("typescript", "console.log('before'); throw new TypeError('boo')", "boo"), ("bash", "echo before; (exit 7)", "7")],
)
def test_a_cell_that_fails_is_a_result_and_costs_no_state(shared: Session, language: str, code: str, expected: str) -> None:
    result = shared.execute(code, language=language)
    assert (result.status, result.exit_code, result.state, result.stdout) == ("error", 1, "kept", "before\n")
    assert result.error is not None
    assert expected in result.error.evalue
    assert result.diagnosis is not None
    assert result.diagnosis.kind == ("TypeError" if language == "typescript" else "error")
    assert expected in result.diagnosis.message


def test_one_kernel_serves_all_names_of_a_language(shared: Session) -> None:
    shared.execute("globalThis.seen = 5", language="ts")
    for name in ("typescript", "TypeScript", "deno", "TS"):
        result = shared.execute("seen", language=name)
        assert (result.text, result.language) == ("5", "typescript")


def test_a_kernels_open_port_is_reported_once(here: Session) -> None:
    notes = [here.execute("1", language="typescript").notes for _ in range(2)]
    assert notes == [(PORT,), ()]
    assert here.execute("echo 1", language="bash").notes == ()


@needs_engine
def test_a_kernel_in_a_container_has_ports_of_its_own_and_its_end_has_its_cause(specs: Path, tmp_path: Path) -> None:
    with Executor(isolation="container", workspace=tmp_path, config=settings("container")) as executor:
        session = executor.session("port")
        code = 'Deno.readTextFileSync("/proc/net/tcp").split("\\n").filter((line) => line.includes(" 0A ")).length'
        result = session.execute(code, language="typescript")
        assert (result.text, result.notes) == ("5", ())
        interfaces = session.execute("Deno.networkInterfaces().map((one) => one.name).join()", language="typescript")
        assert interfaces.text == '"lo"'
        ended = session.execute("Deno.exit(3)", language="typescript")
        assert (ended.status, ended.state, ended.cause, ended.exit_code) == ("error", "lost", "exited", 3)
        following = session.execute("1", language="typescript")
        assert (following.text, following.state, following.kernel_epoch) == ("1", "kept", 2)


def test_two_sessions_share_nothing(executor: Executor) -> None:
    first, second = executor.session("first"), executor.session("second")
    first.execute("globalThis.mine = 1", language="ts")
    assert second.execute("typeof globalThis.mine", language="ts").text == '"undefined"'
    who = "`${Deno.hostname()} ${Deno.pid}`"
    assert first.execute(who, language="ts").text != second.execute(who, language="ts").text
    first.close()
    second.close()


def test_an_unknown_language_is_refused_with_what_is_installed(shared: Session) -> None:
    with pytest.raises(InvalidRequest, match=r"did you mean 'typescript'.*bash, deno \(typescript\),.* python3 \(python\)"):
        shared.execute("touch ran", language="typescrip")
    assert not (shared.workspace / "ran").exists()


def test_a_language_without_its_kernelspec_is_not_proposed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    with Executor(isolation="local", workspace=tmp_path / "w") as executor:
        session = executor.session()
        with pytest.raises(InvalidRequest, match=r"language='ts' is not known here \(did you mean 'javascript'\?\)"):
            session.execute("1", language="ts")


UNFIT: tuple[Any, ...] = (5, None, b"python")


@pytest.mark.parametrize("language", UNFIT, ids=repr)
def test_invalid_names_of_languages_are_refused(shared: Session, language: Any) -> None:
    with pytest.raises(InvalidRequest, match="must be a name such as 'python'"):
        shared.execute("1", language=language)


@pytest.mark.parametrize("language", ["python", "typescript", "bash"])
def test_stdin_is_refused_where_there_is_none(shared: Session, language: str) -> None:
    with pytest.raises(InvalidRequest, match="stdin is for commands and node"):
        shared.execute("1", language=language, stdin="text")


@pytest.mark.parametrize("code", ["", "a\0b", "\ud800", "x" * (5 * 1024 * 1024)], ids=["empty", "NUL", "surrogate", "large"])
@pytest.mark.parametrize("language", ["javascript", "typescript"])
def test_code_that_no_kernel_could_take_is_refused(shared: Session, language: str, code: str) -> None:
    with pytest.raises(InvalidCode):
        shared.execute(code, language=language)


def test_javascript_runs_through_node_with_stdin(here: Session) -> None:
    code = "const found = JSON.parse(require('fs').readFileSync(0)); console.log(found.text, process.cwd())"
    here.execute_command("mkdir -p js && cd js")
    text = 'it\'s \u65e5 "$HOME" `id`'
    result = here.execute(code, language="js", stdin=json.dumps({"text": text}))
    assert (result.stdout, result.exit_code, result.language) == (f"{text} {here.workspace}/js\n", 0, "javascript")
    assert here.execute("process.exit(7)", language="node").exit_code == 7
    assert here.execute('-1; console.log(`a\'b` + "$HOME")', language="js").stdout == "a'b$HOME\n"


def test_javascript_that_is_too_long_for_node_is_refused(here: Session) -> None:
    assert here.execute("//" + "x" * 99_000, language="js").ok
    with pytest.raises(InvalidCode, match="put it into a file"):
        here.execute("//" + "x" * 100_000, language="js")


def test_node_that_is_missing_is_reported(specs: Path, tmp_path: Path) -> None:
    config = {"environment": {"set": {"PATH": str(tmp_path)}}}
    for program in ("sh", "env"):
        (tmp_path / program).symlink_to(shutil.which(program) or "/bin/false")
    with Executor(isolation="local", workspace=tmp_path / "workspaces", config=config) as executor:
        result = executor.session().execute("console.log(1)", language="js")
    assert (result.status, result.exit_code, result.stdout) == ("error", 127, "")
    assert result.stderr == "node is not installed: JavaScript needs Node.js on the PATH of the session\n"


@needs_engine
@pytest.mark.nightly
def test_an_image_without_node_and_without_a_kernel_for_bash_is_reported_and_used_as_it_is(tmp_path: Path) -> None:
    with Executor(isolation="container", workspace=tmp_path, config={"container": {"image": IMAGE}}) as executor:
        session = executor.session()
        result = session.execute("console.log(1)", language="js")
        assert (result.status, result.exit_code) == ("error", 127)
        assert result.stderr == "node is not installed: JavaScript needs Node.js on the PATH of the session\n"
        session.execute("export A=1", language="bash")
        assert session.execute("echo $A; cat", language="bash", stdin="in").stdout == "1\nin"
        with pytest.raises(InvalidRequest, match=rf"kernelspecs in the image {IMAGE}: python3 \(python\)"):
            session.execute("1", language="ts")


def test_bash_without_a_kernelspec_is_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    with Executor(isolation="local", workspace=tmp_path / "workspaces") as executor:
        session = executor.session()
        session.execute("export A=1", language="bash")
        result = session.execute("echo $A; cat", language="SH", stdin="in")
        assert (result.stdout, result.language, result.kernel_epoch) == ("1\nin", "bash", 1)
        assert session.execute("exit 7", language="bash").exit_code == 7
        assert session.execute_command("echo 1").language == "bash"
        with pytest.raises(InvalidRequest, match="no kernel of language='bash'"):
            session.restart(language="bash")


def test_the_notebook_says_the_language_of_a_cell(executor: Executor) -> None:
    session = executor.session("noted")
    session.execute("1")
    session.execute("let y: number = 2; y", language="ts")
    session.execute("console.log(3)", language="js")
    session.save_notebook()
    assert session.notebook is not None
    notebook = nbformat.reads(session.notebook.read_text(), as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert [cell.source for cell in notebook.cells] == ["1", "let y: number = 2; y", "%%script node\nconsole.log(3)"]
    assert [cell.metadata.kernelexec.get("language") for cell in notebook.cells] == [None, "typescript", "javascript"]
    session.close()


def test_a_restart_replaces_all_kernels_or_one(specs: Path, tmp_path: Path) -> None:
    events: list[KernelChanged] = []

    def note(event: Event) -> None:
        if isinstance(event, KernelChanged):
            events.append(event)

    with Executor(isolation="local", workspace=tmp_path, hooks=[note]) as executor:
        session = executor.session()
        session.execute("x = 1")
        session.execute("globalThis.x = 1", language="ts")
        session.restart(language="ts")
        lost = session.execute("typeof x", language="typescript")
        assert (lost.text, lost.state, lost.cause, lost.kernel_epoch) == ('"undefined"', "lost", "request", 2)
        assert text_of(session, "x", "python") == "1"
        session.restart()
        assert session.execute("'x' in globals()").text == "False"
        assert session.execute("1", language="ts").kernel_epoch == 3
        assert session.kernel_epoch == 2
    started = [(event.language, event.kernel_epoch) for event in events if event.change == "started"]
    assert sorted(started) == [("python", 1), ("python", 2), ("typescript", 1), ("typescript", 2), ("typescript", 3)]


def test_nothing_is_left_when_a_session_closes(specs: Path, tmp_path: Path) -> None:
    before, directories = marked_processes(), runtime_directories()
    with Executor(isolation="local", workspace=tmp_path) as executor:
        session = executor.session()
        pids = {int(session.execute("Deno.pid", language="ts").text)}
        pids |= {int(session.execute("new Deno.Command('sleep', {args: ['600']}).spawn().pid", language="ts").text)}
        # Not a job of the kernel's own shell, which would say in the middle of it what became of the job.
        expected = session.execute("echo $$; echo $PPID; sh -c 'setsid sleep 600 & echo $!'", language="bash").text
        pids |= {int(line) for line in expected.split() if line.isdigit()}
        assert len(pids) == 5
        session.close()
        assert all(gone(pid) for pid in pids)
        until(lambda: kernel_processes().keys() <= before.keys())
    until(lambda: runtime_directories() == directories)


def test_a_kernelspec_may_be_of_python_and_is_a_kernel_of_its_own(shared: Session) -> None:
    prefix = shared.execute("mine = 1; import sys; sys.base_prefix").text
    assert shared.execute("'mine' in globals()", language="polite").text == "False"
    result = shared.execute("import sys; sys.base_prefix", language="polite")
    assert (result.text, result.language) == (prefix, "polite")


@pytest.mark.parametrize("name", ["python3", "Python 3", "ipython", "py3", "Python (ipykernel)", "jupyter"])
def test_names_of_python_are_the_sessions_own_kernel(shared: Session, name: str) -> None:
    shared.execute("own = 41")
    result = shared.execute("own + 1", language=name)
    assert (result.text, result.language) == ("42", "python")


BROKEN = {
    "missing": (["/no/such/program"], r"kernel 'missing' ended.*/no/such/program cannot be started: No such"),
    "fails": ([sys.executable, "-c", "raise SystemExit('I cannot')"], "kernel 'fails' ended while it started.*I cannot"),
    "silent": ([sys.executable, "-c", "import time; time.sleep(600)"], r"kernel 'silent' did not serve within 2.0 s \(s-"),
    "portless": (["sleep", "600"], r"kernel 'portless' did not serve within 2.0 s \(127\.\d+\.\d+\.\d+:\d+: "),
}


@pytest.mark.parametrize(
    ("name", "case"), named_cases({name: (name, case) for name, case in BROKEN.items()}, BROKEN.keys() - {"silent"})
)
def test_a_kernel_that_never_serves_is_an_error_and_the_session_lives(
    tmp_path: Path, name: str, case: tuple[list[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    argv, message = case
    write(tmp_path, name, argv, "broken")
    with Executor(
        isolation="local",
        workspace=tmp_path / "w",
    ) as executor:
        session = executor.session()
        short = executor.config.budgets.model_copy(update={"start": 2.0 if "within 2.0 s" in message else 60.0})
        session._target._kernels._make_supervisor.keywords["config"] = executor.config.model_copy(update={"budgets": short})
        with pytest.raises(KernelStartFailed, match=f"(?s){message}"):
            session.execute("1", language=name)
        assert session.execute("1 + 1").text == "2"


def test_streams_are_streams(shared: Session) -> None:
    assert shared.execute("echo a", language="bash").outputs == (Stream("stdout", "a\n"),)


def test_limits_that_change_while_a_language_gets_its_kernel_are_its_too(executor: Executor) -> None:
    session = executor.session("limited")
    text_of(session, "1", "typescript")
    with ThreadPoolExecutor() as pool:
        change = pool.submit(session.set_limits, memory_bytes=700 * MIB)
        cell = pool.submit(session.execute, "echo hi", language="bash")
        actual, result = change.result(60), cell.result(60)
    assert (result.status, result.text) == ("ok", "hi\n")
    if not actual.not_applied:
        limit = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes"
        assert text_of(session, limit, "bash") == text_of(session, f"%%bash\n{limit}", "python") == f"{700 * MIB}\n"
