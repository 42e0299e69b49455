"""Branches: sessions that begin with a copy of another one's kernel, go their own ways, and may take its place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kernelexec import (
    CapacityReached,
    CheckpointRefused,
    Closed,
    Executor,
    InvalidRequest,
    InvalidTimeout,
    KernelStartFailed,
    Refused,
    Session,
)
from kernelexec.provisioning.container.container_backend import ContainerBackend
from kernelexec.provisioning.host.bubblewrap_backend import BubblewrapBackend
from kernelexec.provisioning.host.local_backend import LocalBackend
from kernelexec.session.features.saved_state import checkpoint_files
from kernelexec.workspace import workspace_copies
from tests.conftest import EVERY_KIND, KINDS, executor_of
from tests.support.engine import needs_bubblewrap
from tests.support.pace import BOUND, until
from tests.support.remains import marked_processes

#: What runs in containers and namespaces in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = (
    "test_both_sides_go_their_own_ways",
    "test_a_link_that_a_kernel_leaves_at_the_last_moment_opens_nothing[copy-container]",
    "test_a_link_that_a_kernel_leaves_at_the_last_moment_opens_nothing[replay-bubblewrap]",
)
BACKENDS: dict[str, Any] = {"local": LocalBackend, "bubblewrap": BubblewrapBackend, "container": ContainerBackend}
#: The tests count checkpoints and processes: none is made but by request.
CHECKPOINTS = "named"


@pytest.fixture(params=EVERY_KIND)
def owner(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Executor]:
    with Executor(
        request.param, workspace=tmp_path, config={**KINDS[request.param], "quiet": True, "checkpoints": CHECKPOINTS}
    ) as executor:
        yield executor


def value(session: Session, code: str) -> Any:
    result = session.execute(code)
    assert result.ok, result.text
    return result.value


def recorded_cells(notebook: Path | None) -> list[tuple[str, bool]]:
    """The source of each cell of a notebook, and whether it counts."""
    assert notebook is not None
    cells = json.loads(notebook.read_text())["cells"]
    return [("".join(cell["source"]), "tags" not in cell["metadata"]) for cell in cells]


def test_both_sides_go_their_own_ways(session: Session) -> None:
    session.execute("class Point:\n    pass\nx, point = [1], Point()\npoint.inner = x")
    session.execute_command("mkdir -p sub && cd sub && export COLOUR=blue && echo parent > file")
    with session.branch("b") as branch:
        assert (branch.name, branch.names) == ("b", ("Point", "point", "x"))
        first = branch.execute("x.append(2); (x, point.inner is x, type(point) is Point)")
        assert first.value == ([1, 2], True, True)
        assert f"a branch of session {session.name!r}, as that was before its cell 3" in first.notes[0]
        assert branch.execute_command("echo $COLOUR ${PWD##*/}; cat file; echo branch > file").stdout == "blue sub\nparent\n"
        assert value(session, "x.append(3); x") == [1, 3]
        assert session.execute_command("cat file").stdout == "parent\n"
        assert branch.workspace == session.workspace / ".kernelexec/branches/b"
        assert (branch.workspace / "sub/file").read_text() == "branch\n"
        assert [checkpoint.name for checkpoint in branch.checkpoints()] == ["start"]
        branch.restore("start")
        assert value(branch, "x") == [1]
    assert value(session, "x") == [1, 3]
    assert session.execute("1").files == ()


def test_local_branches_have_their_own_temporary_files(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, quiet=True) as executor:
        session = executor.session()
        session.execute("import tempfile, os")
        with session.branch() as branch, branch.branch() as second:
            directories = [value(each, "tempfile.gettempdir()") for each in (session, branch, second)]
            assert len({*directories}) == 3
            for each, directory in zip((session, branch, second), directories, strict=True):
                assert value(each, "with tempfile.NamedTemporaryFile() as f: pass\nos.path.dirname(f.name)") == directory
        assert [Path(directory).exists() for directory in directories] == [True, False, False]


def test_open_files_are_those_of_each_side(session: Session) -> None:
    session.execute("file = open('log', 'w'); _ = file.write('before '); file.flush(); _ = file.write('buffered ')")
    with session.branch() as branch:
        branch.execute("_ = file.write('branch'); file.close()")
        session.execute("_ = file.write('parent'); file.close()")
        assert (branch.workspace / "log").read_text() == "before buffered branch"
        assert (session.workspace / "log").read_text() == "before buffered parent"
        branch.execute("file = open('log', 'a'); _ = file.write(' again'); file.flush()")
        branch.promote()
    session.execute("_ = file.write(' promoted'); file.close()")
    assert (session.workspace / "log").read_text() == "before buffered branch again promoted"


def test_random_numbers_differ_unless_asked(session: Session) -> None:
    session.execute("import random, uuid; random.seed(1)")
    with session.branch() as other, session.branch(reseed=False) as same:
        draws = [value(each, "random.random()") for each in (session, other, same)]
        assert draws[0] == draws[2] != draws[1]
        assert len({value(each, "str(uuid.uuid4())") for each in (session, other, same)}) == 3


def test_a_branch_of_a_branch_outlives_those_before(owner: Executor) -> None:
    session = owner.session("a")
    session.execute("path = ['a']")
    branches = [session]
    for name in ("b", "c", "d"):
        branches.append(branches[-1].branch(name))
        branches[-1].execute(f"path.append({name!r})")
    for each in branches[:-1]:
        each.close()
    last = branches[-1]
    assert value(last, "path") == ["a", "b", "c", "d"]
    assert last.execute_command("echo $$ > pid && cat pid").ok
    assert last.execute("import os; os._exit(3)").state == "restored"
    assert value(last, "path") == ["a", "b", "c"]
    last.restart()
    assert value(last, "import os; os.getcwd(), 'path' in globals()") == (last.workspace_inside, False)
    assert (last.workspace / "pid").exists()


def test_eight_branches_at_once_do_not_meet(owner: Executor) -> None:
    session = owner.session("a")
    session.execute("import numpy as np\ndata = np.arange(1000)")
    branches = session.branch(n=8)
    assert [branch.name for branch in branches] == [f"a-{number}" for number in range(1, 9)]

    def clean(number: int) -> Any:
        branch = branches[number]
        branch.execute(f"data *= {number}; open('which', 'w').write('{number}')")
        return value(branch, "(int(data.sum()), open('which').read())")

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(clean, range(8))) == [(499500 * number, str(number)) for number in range(8)]
    assert value(session, "int(data.sum())") == 499500
    assert not (session.workspace / "which").exists()


def test_the_best_one_takes_the_place_of_its_parent(session: Session) -> None:
    session.execute("x = 1\nfor name in ('kept', 'changed', 'removed'): print(name, file=open(name, 'w'), end='')")
    branch = session.branch()
    session.execute("x = 'of the parent'; open('later', 'w').close()")
    branch.execute(
        "import os; x += 1; os.remove('removed'); os.mkdir('d'); open('d/new', 'w').close()\n"
        "open('changed', 'w').write('twice')"
    )
    branch.execute("x += 'undone'; 1")
    branch.execute("here = os.getcwd()")
    restored = branch.promote()
    assert restored.names == ("here", "name", "os", "x")
    assert "2 files of the branch" in restored.notes[0]
    with pytest.raises(Closed):
        branch.execute("1")
    assert value(
        session, "(x, os.getcwd(), sorted(name for name in os.listdir() if name[0] != '.' and 'ipynb' not in name))"
    ) == (
        2,
        session.workspace_inside,
        ["changed", "d", "kept", "later"],
    )
    assert (session.workspace / "changed").read_text() == "twice"
    assert value(session, "2 + 2") == 4
    session.save_notebook()
    assert [(source.splitlines()[0][:12], counts) for source, counts in recorded_cells(session.notebook)] == [
        ("x = 1", True),
        ("x = 'of the ", False),
        ("import os; x", True),
        ("x += 'undone", True),
        ("here = os.ge", True),
        ("(x, os.getcw", True),
        ("2 + 2", True),
    ]


def test_records_of_both_repeat_the_state(owner: Executor) -> None:
    session = owner.session("a")
    session.execute("x = [1]")
    branch = session.branch("b")
    session.execute("x.append('parent')")
    branch.execute("x.append(2)")
    branch.execute("x.append('undone')")
    branch.restore("start")
    branch.execute("x.append(3)")
    branch.save_notebook()
    assert recorded_cells(branch.notebook) == [
        ("x = [1]", True),
        ("x.append(2)", False),
        ("x.append('undone')", False),
        ("x.append(3)", True),
    ]
    assert branch.journal is not None
    for record in (branch.notebook, branch.journal):
        assert record is not None
        with owner.session("again", notebook=record) as again:
            assert value(again, "x") == [1, 3]
    branch.promote()
    session.execute("x.append(4)")
    session.save_notebook()
    for record in (session.notebook, session.journal):
        assert record is not None
        with owner.session("again", notebook=record) as again:
            assert value(again, "x") == [1, 3, 4]


def test_a_session_that_has_gone_on_elsewhere_is_not_replaced(session: Session) -> None:
    session.execute("x = 1")
    with session.branch() as branch:
        session.restart()
        session.execute("x = 2")
        with pytest.raises(InvalidRequest, match="another kernel by now"):
            branch.promote()
        assert (value(session, "x"), value(branch, "x")) == (2, 1)
    with pytest.raises(InvalidRequest, match="no branch"):
        session.promote()


def test_refused_branches_leave_nothing(session: Session) -> None:
    session.execute("import threading; stop = threading.Event(); thread = threading.Thread(target=stop.wait, name='waits')")
    session.execute("thread.start()")
    before = marked_processes()
    with pytest.raises(CheckpointRefused, match="waits"):
        session.branch("b")
    assert list((session.workspace / ".kernelexec/branches").iterdir()) == []
    until(lambda: len(marked_processes()) == len(before))
    session.execute("stop.set(); thread.join()")
    session.branch("b").close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "a/b"}, "session name"),
        ({"n": 0}, "n=0"),
        ({"n": True}, "n=True"),
        ({"files": "moved"}, "files='moved'"),
        ({"kernel": "moved"}, "kernel='moved': must be one of copy, replay"),
        ({"reseed": 1}, "reseed=1"),
        ({"filse": "shared"}, r"no argument 'filse' \(did you mean 'files'\?\)"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(session: Session, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        session.branch(**arguments)
    with pytest.raises(Refused, match="is open"):
        session.branch(session.name)
    with pytest.raises(InvalidTimeout):
        session.branch(timeout=-1)


def test_a_busy_branch_that_is_promoted_does_not_hold_up_its_parent(session: Session) -> None:
    session.execute("x = 1")
    branch = session.branch("b")
    branch.execute("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nx = 2", wait=0.01)
    with ThreadPoolExecutor(1) as pool:
        promotion = pool.submit(branch.promote)
        for _ in range(5):
            assert value(session, "x") == 1
        assert branch.busy
        (branch.workspace / "go").touch()
        promotion.result(BOUND)
    assert value(session, "x") == 2


def test_a_shared_workspace_is_one(session: Session) -> None:
    session.execute("open('file', 'w').write('1')")
    with session.branch(files="shared") as branch:
        assert branch.workspace == session.workspace
        branch.execute("open('file', 'w').write('2')")
        assert value(session, "open('file').read()") == "2"
        assert branch.notebook != session.notebook
        branch.promote()
    assert value(session, "open('file').read()") == "2"


def test_a_new_kernel_repeats_the_cells(owner: Executor) -> None:
    session = owner.session("a")
    session.execute("data = [1]; open('file', 'w').write('1')")
    session.execute("data.append(2)")
    branch, shared = session.branch("b", kernel="replay"), session.branch("c", kernel="replay", files="shared")
    assert branch.replay is not None
    assert [cell.outcome for cell in branch.replay.cells] == ["repeated"] * 2
    assert branch.replay.notes[0] == "This is a branch of session 'a', whose cells have run again here."
    assert value(branch, "data.append(3); data, open('file').read()") == ([1, 2, 3], "1")
    assert value(session, "data") == [1, 2]
    assert (branch.workspace.parent.name, shared.workspace) == ("branches", session.workspace)
    branch.save_notebook()  # no writing of it is under way then
    assert sorted(path.name for path in branch.workspace.iterdir()) == ["b.ipynb", "file"]
    if owner.config.isolation == "container":
        node = "import platform; platform.node()"
        assert value(branch, node) != value(session, node) == value(session.branch(), node)
    with pytest.raises(InvalidRequest, match="is no branch"):
        branch.promote()
    with pytest.raises(Refused, match="is open"):
        session.branch("b", kernel="replay")
    session.close()
    assert value(branch, "len(data)") == 3


def test_without_a_record_no_cells_are_repeated(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={"journal": False, "notebook": False, "quiet": True}) as executor:
        session = executor.session()
        with pytest.raises(InvalidRequest, match="neither a journal nor a notebook"):
            session.branch(kernel="replay")
        assert executor.sessions() == ("default",)
        assert not (session.workspace / ".kernelexec").exists()


def test_files_beyond_the_bound_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelexec.workspace.workspace_copies.COPIED_BYTES", 1000)
    with Executor("local", workspace=tmp_path, quiet=True) as executor:
        session = executor.session()
        session.execute("open('big', 'w').write('b' * 2000); open('small', 'w').write('s')")
        branch = session.branch()
        assert not (branch.workspace / "big").exists()
        assert "not copied: big" in branch.execute("1").notes[-1]
        branch.promote()
        assert value(session, "len(open('big').read())") == 2000


def test_changes_beyond_the_bound_are_refused_and_both_sides_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelexec.workspace.workspace_copies.COPIED_BYTES", 1000)
    settings = {"checkpoints": CHECKPOINTS, "quiet": True}
    with Executor("local", workspace=tmp_path, config=settings) as executor:
        session = executor.session()
        session.execute("x = 1")
        branch = session.branch()
        branch.execute("x = 2; open('holes', 'wb').truncate(2**40); open('small', 'w').close()")
        with pytest.raises(InvalidRequest, match="The changed files of the branch have"):
            branch.promote()
        assert (value(session, "x"), value(branch, "x"), session.checkpoints()) == (1, 2, ())
        assert not (session.workspace / "small").exists()
        branch.execute("import os; os.unlink('holes')")
        branch.promote()
        assert value(session, "x, os.path.exists('small')") == (2, True)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory of the owner's, with another one of the name of a branch."""
    path = tmp_path / "outside"
    (path / "b").mkdir(parents=True)
    (path / "b/secret").write_text("the owner's")
    return path


def listed(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def replace_branches(workspace: Path, target: Path) -> None:
    """Do what a cell in that workspace can do: put a link in the place of the directory of its branches."""
    (workspace / ".kernelexec/branches").rename(workspace / ".kernelexec/moved")
    (workspace / ".kernelexec/branches").symlink_to(os.path.relpath(target, workspace / ".kernelexec"))


@pytest.mark.parametrize("kernel", ["copy", "replay"])
def test_a_branch_does_not_begin_where_a_link_leads(
    owner: Executor, outside: Path, monkeypatch: pytest.MonkeyPatch, kernel: Any
) -> None:
    session = owner.session("a")
    session.execute("open('file', 'w').close()")
    copy = workspace_copies.copy_workspace

    def copy_after_the_cell(source: Path, *arguments: Any, **keywords: Any) -> Any:
        replace_branches(source, outside)
        return copy(source, *arguments, **keywords)

    monkeypatch.setattr(checkpoint_files, "copy_workspace", copy_after_the_cell)
    with pytest.raises(InvalidRequest, match="The branch cannot be made: branches"):
        session.branch("b", kernel=kernel)
    assert listed(outside) == ["b", "b/secret"]
    assert owner.sessions() == ("a",)


def test_a_branch_stays_in_its_directory_when_a_link_takes_its_place(owner: Executor, outside: Path) -> None:
    session = owner.session("a")
    session.execute("x = 1")
    branch = session.branch("b")
    branch.execute("x = 2; open('new', 'w').close()").raise_for_error()
    replace_branches(session.workspace, outside)
    with pytest.raises(InvalidRequest, match="cannot be made"):
        branch.branch("c")
    branch.execute("x = 3").raise_for_error()
    branch.promote()
    assert value(session, "import os; x, os.path.exists('new'), os.path.exists('secret')") == (3, True, False)
    assert listed(outside) == ["b", "b/secret"]


@pytest.mark.parametrize("kernel", ["copy", "replay"])
def test_no_new_kernel_of_a_branch_starts_where_a_link_leads(owner: Executor, outside: Path, kernel: Any) -> None:
    session = owner.session("a")
    session.execute("x = 1")
    branch = session.branch("b", kernel=kernel)
    replace_branches(session.workspace, outside)
    with pytest.raises(KernelStartFailed, match=r"a link below \.kernelexec is in its place"):
        branch.restart()
    branch.close()
    assert listed(outside) == ["b", "b/secret"]


@pytest.mark.parametrize("way", [*EVERY_KIND, pytest.param("bubblewrap", marks=needs_bubblewrap)])
@pytest.mark.parametrize("kernel", ["copy", "replay"])
def test_a_link_that_a_kernel_leaves_at_the_last_moment_opens_nothing(
    way: str, outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: Any
) -> None:
    """Checks by the path are over then: what counts is what the new kernel's process gets."""
    backend = BACKENDS[way]
    build_spec = backend.build_spec

    def build_and_swap(*arguments: Any) -> Any:
        spec = build_spec(*arguments)
        replace_branches(tmp_path / "a", outside)
        monkeypatch.setattr(backend, "build_spec", build_spec)
        return spec

    with executor_of(way, tmp_path) as owner:
        session = owner.session("a")
        session.execute("x = 1")
        if kernel == "copy" and way == "bubblewrap":
            with pytest.raises(CheckpointRefused):  # so none gets a new kernel
                session.branch("b")
            return
        branch = session.branch("b") if kernel == "copy" else None
        monkeypatch.setattr(backend, "build_spec", build_and_swap)
        with suppress(KernelStartFailed):
            if branch is None:
                branch = session.branch("b", kernel="replay")
            else:
                branch.restart()
            branch.execute("open('written', 'w').close()")
            if way != "local":  # which reads what is not hidden
                assert not branch.execute("open('secret').read()").ok
    assert listed(outside) == ["b", "b/secret"]


def test_branches_count_as_sessions(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={"capacity": {"sessions": 3}, "quiet": True}) as executor:
        session = executor.session()
        with pytest.raises(CapacityReached):
            session.branch(n=3)
        with pytest.raises(CapacityReached):
            session.branch(n=3, kernel="replay")
        assert executor.sessions() == ("default",)
        assert list((session.workspace / ".kernelexec/branches").iterdir()) == []
        assert len(session.branch(n=2)) == 2


def test_many_branches_leave_nothing(owner: Executor, pytestconfig: pytest.Config) -> None:
    session = owner.session("a")
    session.execute("data = bytearray(50_000_000)")
    session.branch().close()

    def remains() -> tuple[int, int, int]:
        private = sum(1 for _ in Path(os.environ["KERNELEXEC_RUNTIME_DIR"]).rglob("*"))
        return len(marked_processes()), private, sum(1 for _ in Path("/proc/self/fd").iterdir())

    before = remains()
    for _ in range(15 if pytestconfig.getoption("nightly") else 4):
        session.branch(files="shared").close()
    session.branch().close()
    session.branch(kernel="replay").close()
    until(lambda: remains() == before)
    assert value(session, "len(data)") == 50_000_000
