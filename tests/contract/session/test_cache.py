"""Results of cells whose caller says that they only compute: they are found again after the same cells, without running."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from kernelexec import ExecutionResult, Executor, InvalidConfig, InvalidRequest, Rewrite, Session
from kernelexec.session.cells.result_cache import ResultStore
from tests.support.engine import IMAGE, needs_engine
from tests.support.night import at_night
from tests.support.pace import BOUND
from tests.support.virtual_environments import made_wheel

#: Of the tests that run in each way of having a kernel, none runs in containers in the gate: another one here always does.
ALSO_CONFINED = ()
KINDS = ["local", pytest.param("container", marks=needs_engine)]


@pytest.fixture(params=KINDS)
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def opened(location: Path, isolation: str = "local", **options: Any) -> Iterator[Session]:
    """A new session of the same name, in the same workspace and with the same cache as every other one of this test."""
    config = {"cache": str(location / "cache"), "confinement": {"level": "off"}, "container": {"image": IMAGE}, **options}
    with Executor(isolation, workspace=location / "workspaces", config=config) as executor:
        yield executor.session("s")


@contextmanager
def reopening(location: Path, **options: Any) -> Iterator[Callable[[], Session]]:
    """The same by one executor, where no other one has to find anything: its first session takes most of the time."""
    config = {"cache": str(location / "cache"), "confinement": {"level": "off"}, **options}
    with Executor("local", workspace=location / "workspaces", config=config) as executor:
        yield lambda: executor.session("s")


def run(session: Session, *cells: str) -> list[ExecutionResult]:
    """Run cells, of which those that bind or import nothing only compute."""
    return [session.execute(cell, cache="=" not in cell and not cell.startswith(("import", "def", "!"))) for cell in cells]


def hits(results: list[ExecutionResult]) -> list[bool]:
    return [result.cached for result in results]


def stored(location: Path) -> list[Path]:
    return sorted((location / "cache").rglob("*.json"))


DEFINED = "def f(): return x * 10"


def test_the_value_of_now_is_shown_whatever_was_before(tmp_path: Path, isolation: str) -> None:
    for _ in range(2):
        with opened(tmp_path, isolation) as session:
            results = run(session, DEFINED, "x = 1", "f()", "x = 2", "f()")
            assert [result.text for result in results] == ["", "", "10", "", "20"]
    assert hits(results) == [False, False, True, False, True]
    with opened(tmp_path, isolation) as session:  # the same cells in another order
        results = run(session, DEFINED, "x = 2", "f()", "x = 1", "f()")
        assert [result.text for result in results] == ["", "", "20", "", "10"]
        assert hits(results) == [False] * 5


def test_a_second_process_finds_them_and_the_cell_is_not_run(tmp_path: Path) -> None:
    program = """
import sys
from kernelexec import Executor
config = {"cache": sys.argv[2], "confinement": {"level": "off"}, "preload": []}
with Executor("local", workspace=sys.argv[1], config=config) as executor:
    session = executor.session(sys.argv[3])
    session.execute("def f(n): return n if n < 2 else f(n - 1) + f(n - 2)")
    results = [session.execute("x = 27"), *(session.execute(cell, cache=True) for cell in ("f(x)", "x + 1"))]
    print(*(int(result.cached) for result in results), results[1].text.strip(), results[1].execution_count)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "workspaces"), str(tmp_path / "cache")]
    for name, expected in (("s", "0 0 0 196418 3\n"), ("s", "0 1 1 196418 None\n"), ("other", "0 0 0 196418 3\n")):
        assert subprocess.run([*command, name], check=True, capture_output=True, text=True).stdout == expected


def test_a_hit_leaves_the_kernel_as_it_is(tmp_path: Path, isolation: str) -> None:
    cells = ("things = [1]", "len(things)", "print(things)")
    for _ in range(2):
        with opened(tmp_path, isolation) as session:
            results = run(session, *cells)
            assert [result.text for result in results] == ["", "1", "[1]\n"]
    assert hits(results) == [False, True, True]
    with opened(tmp_path, isolation) as session:
        result = run(session, *cells)[-1]
        assert (result.state, result.execution_count, result.kernel_epoch) == ("kept", None, 1)
        assert "the cell did not run" in result.notes[0]
        after = session.execute("things.append(2); things")
        assert (after.cached, after.text, after.notes) == (False, "[1, 2]", ())


def test_only_a_cell_whose_caller_says_so_is_stored_and_found(tmp_path: Path) -> None:
    with reopening(tmp_path) as reopen:
        for cached in (False, True):
            with reopen() as session:
                assert session.execute("'a' * 3", cache=True).cached is cached
            with reopen() as session:
                assert not session.execute("'a' * 3").cached


@pytest.mark.parametrize("cell", ["x = 1", "open('made', 'w').close()", *at_night("1 / 0", "import math\nmath.pi")])
def test_a_cell_that_fails_binds_a_name_or_makes_a_file_is_not_stored(cell: str, tmp_path: Path) -> None:
    with reopening(tmp_path) as reopen:
        for _ in range(2):
            with reopen() as session:
                assert not session.execute(cell, cache=True).cached
                (session.workspace / "made").unlink(missing_ok=True)
        assert stored(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "most"),
    [
        pytest.param({"budgets": {"timeout": 0.5}}, "10 ** 10", id="timeout", marks=pytest.mark.nightly),
        pytest.param({"output": {"stream_bytes": 1024}}, "10", id="too much output"),
    ],
)
def test_incomplete_results_are_not_cached(tmp_path: Path, options: dict[str, Any], most: str) -> None:
    with reopening(tmp_path, **options) as reopen:
        for _ in range(2):
            with reopen() as session:
                result = session.execute(f"print('x' * 100_000, sum(n for n in range({most})))", cache=True)
                assert (result.ok, result.truncated, result.cached) == (most == "10", most == "10", False)


def test_nothing_is_found_after_a_cell_that_was_interrupted(tmp_path: Path) -> None:
    """It ends elsewhere each time."""
    with reopening(tmp_path) as reopen:
        for _ in range(2):
            with reopen() as session:
                session.execute("n = 0\nwhile True: n += 1", timeout=0.5)
                assert not session.execute("n > 0", cache=True).cached
        assert stored(tmp_path) == []


def test_other_settings_are_another_key(tmp_path: Path) -> None:
    for value, hit in (("1", False), ("2", False), ("1", True)):
        with opened(tmp_path, environment={"set": {"MODE": value}}) as session:
            assert session.execute("1 + 1", cache=True).cached is hit


def test_another_workspace_is_another_key_since_its_files_can_change_any_result(tmp_path: Path) -> None:
    changes = "get_ipython().display_formatter.formatters['text/plain'].for_type(int, lambda _, p, cycle: p.text('4711'))"
    config = {"cache": str(tmp_path / "cache"), "confinement": {"level": "off"}}
    with Executor("local", workspace=tmp_path / "workspaces", config=config) as executor:
        for name, module, text in (("changed", f"from IPython import get_ipython\n{changes}", "4711"), ("other", "", "2")):
            session = executor.session(name)
            session.files.write("helpers.py", module)
            result = run(session, "import helpers", "1 + 1")[-1]
            assert (result.text, result.cached) == (text, False)


def test_another_cell_before_is_another_key(tmp_path: Path) -> None:
    with reopening(tmp_path) as reopen:
        for cells, hit in ((["1"], False), (["0", "1"], False), (["!true", "1"], False), (["1"], True)):
            with reopen() as session:
                assert run(session, *cells)[-1].cached is hit


def put(session: Session) -> None:
    session["x"] = 5


def delete(session: Session) -> None:
    del session["x"]


def load(session: Session) -> None:
    session.restore(session.snapshot())


def restore(session: Session) -> None:
    session.restore(session.checkpoint())


def visit(session: Session, *, silent: bool = False) -> None:
    client = BlockingKernelClient(connection_file=str(session.connection_file))
    client.load_connection_file()
    client.start_channels()
    try:
        client.execute_interactive("x = 5", timeout=BOUND, output_hook=lambda _: None, silent=silent)
    finally:
        client.stop_channels()


def visit_silently(session: Session) -> None:
    visit(session, silent=True)


@pytest.mark.parametrize(
    "change", [put, restore, visit, *at_night(delete, load, visit_silently)], ids=lambda change: change.__name__
)
def test_other_changes_of_variables_end_the_chain(change: Callable[[Session], None], tmp_path: Path) -> None:
    with reopening(tmp_path) as reopen:
        for _ in range(2):
            with reopen() as session:
                session.execute("x = 1")
                change(session)
                assert not session.execute("1 + 1", cache=True).cached
                assert not session.execute("1 + 2", cache=True).cached
        assert stored(tmp_path) == []


def test_reads_of_variables_do_not_end_the_chain(tmp_path: Path) -> None:
    with reopening(tmp_path) as reopen:
        for cached in (False, True):
            with reopen() as session:
                session.execute("x = 1")
                assert session["x"] == 1
                session.snapshot()
                session.checkpoint()
                assert session.execute("x + 1", cache=True).cached is cached


def test_another_version_of_a_package_is_another_key_also_when_it_is_installed_after_the_import(tmp_path: Path) -> None:
    for version in ("1.0", "2.0"):
        made_wheel(tmp_path / "wheels", "later", version)
    with opened(tmp_path) as session:
        session.install("later==1.0", wheels=tmp_path / "wheels")
        session.execute("import later")
        session.install("later==2.0", wheels=tmp_path / "wheels")
        assert session.execute("later.version", cache=True).text == "'1.0'"
    with opened(tmp_path) as session:
        session.execute("import later")
        result = session.execute("later.version", cache=True)
        assert (result.text, result.cached) == ("'2.0'", False)


@pytest.mark.parametrize(
    "cell",
    ["_ * 10", "display(1, display_id='d')", *at_night("Out[1]", "h.update({'text/plain': '2'}, raw=True)")],
    ids=["value", "display", "history", "update"],
)
def test_results_bound_to_a_kernel_are_not_stored(cell: str, tmp_path: Path) -> None:
    with reopening(tmp_path) as reopen:
        for _ in range(2):
            with reopen() as session:
                session.execute("h = display({'text/plain': '1'}, raw=True, display_id='e'); 5")
                result = session.execute(cell, cache=True)
                assert (result.ok, result.cached) == (True, False), result.text
        assert stored(tmp_path) == []


def test_cells_rewritten_to_commands_are_not_cached(tmp_path: Path) -> None:
    config = {"cache": str(tmp_path / "cache"), "confinement": {"level": "off"}}
    with Executor("local", workspace=tmp_path / "ws", config=config, validators=[lambda _: Rewrite("!echo $$")]) as executor:
        for _ in range(2):
            with executor.session("s") as session:
                assert not session.execute("1 + 1", cache=True).cached


def test_nothing_is_found_in_a_branch(tmp_path: Path) -> None:
    """Its first cell follows others: the chain of cells of a new kernel is another one."""
    with reopening(tmp_path) as reopen:
        with reopen() as session:
            assert not session.execute("1 + 1", cache=True).cached
        with reopen() as session:
            assert session.execute("1 + 1", cache=True).cached
            with session.branch() as branch:
                assert hits(run(branch, "1 + 1", "1 + 1")) == [False, False]


KILLED = """
import os, signal, sys
from kernelexec import Executor
config = {"cache": sys.argv[2], "confinement": {"level": "off"}, "container": {"image": sys.argv[3]}}
executor = Executor("container", workspace=sys.argv[1], config=config).__enter__()
session = executor.session("s")
results = [session.execute("x = 6").cached, session.execute("x * 7", cache=True).cached]
print(*results, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@needs_engine
def test_nothing_is_found_in_a_kernel_of_a_dead_owner(tmp_path: Path) -> None:
    with opened(tmp_path, "container") as session:
        run(session, "x = 6", "x * 7")
    command = [sys.executable, "-c", KILLED, str(tmp_path / "workspaces"), str(tmp_path / "cache"), IMAGE]
    assert subprocess.run(command, check=False, capture_output=True, text=True).stdout == "False True\n"
    with opened(tmp_path, "container") as session:
        result = session.execute("x * 7", cache=True)
        assert (result.text, result.state, result.kernel_epoch, result.cached) == ("42", "kept", 1, False)


def test_a_restart_begins_again(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        run(session, "x = 1", "x")
        session.restart()
        lost, again = run(session, "x = 1", "x")
        assert (lost.state, lost.cached, again.cached, again.text) == ("lost", False, True, "1")
        session.restart()
        assert session.execute("2", cache=True).cached is False  # the first result of a kernel reports the lost state
        assert session.execute("'x' in globals()").text == "False"


def test_a_follower_of_a_cached_cell_gets_its_outputs(tmp_path: Path) -> None:
    with reopening(tmp_path) as reopen:
        cell = "print('one')\ndisplay({'text/plain': 'two'}, raw=True)"
        with reopen() as session:
            session.execute(cell, cache=True)
        heard: list[object] = []
        with reopen() as session:
            result = session.execute(cell, cache=True, on_output=heard.append)
            assert result.cached
            assert heard == list(result.outputs)
            assert session.wait_for(result.execution_id).outputs == result.outputs
            assert session.read_output(result.execution_id).text == "one\n"
            session.save_notebook()
            assert session.notebook is not None
            assert "two" in session.notebook.read_text()


def test_rules_come_first(tmp_path: Path) -> None:
    cell = "import math; math.pi"
    with opened(tmp_path) as session:
        run(session, cell)
    with opened(tmp_path, rules={"forbidden_modules": ["math"]}) as session:
        result = session.execute(cell, cache=True)
        assert (result.status, result.cached) == ("aborted", False)


def test_a_damaged_one_is_none(tmp_path: Path) -> None:
    with reopening(tmp_path) as reopen:
        with reopen() as session:
            run(session, "1 + 1")
        for content in (b"", b"{}", b"\x00" * 100):
            (path,) = stored(tmp_path)  # the last one that was damaged is replaced
            path.write_bytes(content)
            with reopen() as session:
                result = session.execute("1 + 1", cache=True)
                assert (result.cached, result.text) == (False, "2")


def test_uncacheable_cells_are_refused_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(session: Session, match: str, code: str = "1", /, **arguments: Any) -> None:
        with pytest.raises(InvalidRequest, match=match):
            session.execute(code, **{"cache": True, **arguments})
        assert session.executions() == ()

    monkeypatch.setenv("SOURCE", "hush-hush-hush")
    with opened(tmp_path, cache=None) as session:
        refused(session, r"set Config\(cache=DIRECTORY\)")
    with opened(tmp_path, secrets={"KEY": {"env": "SOURCE"}}) as session:
        refused(session, "a session with secrets")
    with opened(tmp_path) as session:
        refused(session, "Python cells only", language="bash")
        refused(session, "Python cells only", "!echo")
        refused(session, "inputs", inputs={"x": 1})
        refused(session, "on_input", on_input=lambda _: "1")
        refused(session, "cache='no' must be True or False", cache="no")
    assert stored(tmp_path) == []


@pytest.mark.parametrize("work_dir", ["inner", "inner/cache/work"])
def test_a_directory_in_a_sessions_workspace_or_around_it_is_refused(work_dir: str, tmp_path: Path) -> None:
    config = {"cache": str(tmp_path / "inner" / "cache")}
    with Executor("local", workspace=tmp_path / "workspaces", config=config) as executor:
        (tmp_path / work_dir).mkdir(exist_ok=True)
        session = executor.session("s", work_dir=tmp_path / work_dir)
        with pytest.raises(InvalidRequest, match="must lie apart"):
            session.execute("1", cache=True)
        assert session.execute("1").ok
    assert list((tmp_path / "inner").rglob("*.json")) == []


def test_files_are_private(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        run(session, "1")
    (path,) = stored(tmp_path)
    modes = [os.stat(location).st_mode & 0o777 for location in (path, path.parent, path.parent.parent)]  # noqa: PTH116 - a mode
    assert modes == [0o600, 0o700, 0o700]


def test_a_directory_that_cells_or_others_could_write_is_refused(tmp_path: Path) -> None:
    for directory in (tmp_path / "workspaces" / "cache", tmp_path):
        with pytest.raises(InvalidConfig, match="where cells can write"):
            Executor("local", workspace=tmp_path / "workspaces", config={"cache": str(directory)})
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "file").write_text("")
    for name, reason in (("open", "must be private to this user"), ("file", "File exists")):
        with pytest.raises(InvalidConfig, match=reason):
            Executor("local", workspace=tmp_path / "workspaces", config={"cache": str(tmp_path / name)})


def test_a_directory_that_cells_may_write_besides_is_refused(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    for more in (
        {"confinement": {"writable": [str(tmp_path / "more")]}},
        {"context_paths": [{"path": str(tmp_path / "more"), "permission": "write"}]},
    ):
        config = {"cache": str(tmp_path / "more" / "cache"), **more}
        with pytest.raises(InvalidConfig, match="where cells can write"):
            Executor("local", workspace=tmp_path / "workspaces", config=config)


def test_the_store_counts_results_that_cannot_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, result = ResultStore(tmp_path, 10_000), ExecutionResult("", "", "ok")
    oldest, unlink = tmp_path / "00" / f"{0:064}.json", Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - the signature of the method
        if path == oldest:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    for number in range(100):
        assert store.put(f"{number:064}", result)
        os.utime(tmp_path / "00" / f"{number:064}.json", (number, number))
        assert sum(path.stat().st_size for path in tmp_path.rglob("*.json")) <= 10_000
    assert oldest.exists()


def test_the_store_keeps_within_its_size(tmp_path: Path) -> None:
    store = ResultStore(tmp_path, 10_000)
    result = ExecutionResult("", "", "ok")
    size = len(result.to_json())
    for number in range(100):
        assert store.put(f"{number:064}", result)
        os.utime(tmp_path / "00" / f"{number:064}.json", (number, number))
        assert sum(path.stat().st_size for path in tmp_path.rglob("*.json")) <= 10_000
    assert store.get(f"{99:064}") == result
    assert store.get(f"{0:064}") is None
    assert not store.put("a", ExecutionResult("x" * 10_000, "", "ok"))
    assert len(list(tmp_path.rglob("*.json"))) >= 10_000 * 0.8 // size - 1
    assert list(tmp_path.rglob("*.tmp")) == []
