"""Files of checkpoints: a copy of the workspace goes back with the state, and ends with its checkpoint."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Checkpoint, CheckpointRefused, Executor, InvalidRequest, Session
from kernelexec.session.features.saved_state import checkpoint_files
from tests.support.pace import until_equal

#: Nothing runs in containers in the gate: how a kernel is had makes no difference here.
ALSO_CONFINED = ()

#: The tests count checkpoints and processes: none is made but by request.
CHECKPOINTS = "named"
COPIES = ".kernelexec/checkpoints"


def content_of(workspace: Path) -> dict[str, str]:
    """The files of a workspace with their content, without hidden ones and notebooks."""
    paths = (path for path in workspace.rglob("*") if path.is_file() and ".ipynb" not in path.name)
    return {
        name: path.read_text()
        for path in paths
        if not (name := str(path.relative_to(workspace))).startswith((".kernelexec", ".venv"))
    }


def test_files_are_as_they_were_as_often_as_one_likes(session: Session) -> None:
    session.execute(
        "import os, pathlib as p; x = 1; p.Path('sub').mkdir(); p.Path('.venv').mkdir()\n"
        "[p.Path(name).write_text(name) for name in ('changed', 'removed', 'sub/deep', 'becomes', 'same', '.venv/tool')]\n"
        "p.Path('link').symlink_to('same')"
    )
    before = content_of(session.workspace)
    checkpoint = session.checkpoint("files", files=True)
    for _ in range(2):
        session.execute(
            "x = 2; p.Path('changed').write_text('CHANGED'); p.Path('removed').unlink(); p.Path('new').mkdir()\n"
            "p.Path('new/file').touch(); p.Path('sub/deep').unlink(); p.Path('sub').rmdir(); p.Path('sub').touch()\n"
            "p.Path('becomes').unlink(); p.Path('becomes').mkdir(); p.Path('becomes/x').touch()\n"
            "p.Path('.venv/tool').write_text('new'); p.Path('link').unlink(); p.Path('link').symlink_to('changed')"
        ).raise_for_error()
        restored = session.restore(checkpoint, files=True)
        assert content_of(session.workspace) == before
        assert (session.workspace / "link").readlink() == Path("same")
        assert (session.workspace / ".venv/tool").read_text() == "new"
        names = {"becomes", "becomes/x", "changed", "link", "new", "new/file", "removed", "sub", "sub/deep"}
        assert set(restored.files) == names
        assert restored.notes[-1] == "Child processes have ended, and connections are closed."
        assert session.get("x") == 1
        session.execute("p.Path('sub/deep').write_text('other')")
        assert session.restore("files", files=True).files == ("sub/deep",)
    assert session.restore("files", files=True).notes[0] == "No file has changed since."
    assert session.notebook is not None
    assert session.notebook.exists()


def test_files_come_back_when_the_processes_that_write_them_have_ended(session: Session) -> None:
    session.execute("open('data', 'w').write('old')")
    session.checkpoint("clean", files=True)
    session.execute_command("while :; do echo new > data; done & while [ $(cat data) != new ]; do :; done")
    assert "data" in session.restore("clean", files=True).files
    assert content_of(session.workspace) == {"data": "old"}


def test_a_checkpoint_without_files_is_named_and_nothing_changes(session: Session) -> None:
    session.execute("x = 1; open('a', 'w').close()")
    checkpoint = session.checkpoint("state only")
    session.execute("x = 2; open('b', 'w').close()")
    epoch = session.kernel_epoch
    with pytest.raises(InvalidRequest, match=r"Checkpoint 1 has no files: checkpoint\(files=True\) makes one"):
        session.restore(checkpoint, files=True)
    assert (session.get("x"), session.kernel_epoch, (session.workspace / "b").exists()) == (2, epoch, True)
    with_files = session.checkpoint(files=True)
    with pytest.raises(InvalidRequest, match="Checkpoint 1 has no files"):
        session.restore(checkpoint, files=True)
    session.restore(with_files, files=True)
    session.restore(checkpoint)
    assert (session.get("x"), (session.workspace / "b").exists()) == (1, True)


def test_files_need_not_go_back(session: Session) -> None:
    checkpoint = session.checkpoint(files=True)
    session.execute("open('a', 'w').close()")
    assert session.restore(checkpoint).files == ()
    assert (session.workspace / "a").exists()


def test_undo_puts_files_back_too(session: Session) -> None:
    session.execute("x = 1; open('a', 'w').write('1')")
    session.checkpoint(files=True)
    session.execute("x = 2; open('a', 'w').write('22')")
    restored = session.undo(files=True)
    assert (restored.cells, restored.files, session.get("x")) == (1, ("a",), 1)
    assert (session.workspace / "a").read_text() == "1"


def test_copies_end_with_their_checkpoints_and_with_the_session(session: Session) -> None:
    copies = session.workspace / COPIES
    session.execute("open('a', 'w').close()")
    first, second = session.checkpoint(files=True), session.checkpoint(files=True)
    assert len(list(copies.iterdir())) == 2
    first.drop()
    assert len(list(copies.iterdir())) == 1
    session.restore(second, files=True)
    session.restart()
    session.execute("1")
    session.checkpoint(files=True)
    assert len(list(copies.iterdir())) == 1
    session.close()
    assert not copies.exists()


def test_copies_end_when_a_kernel_starts_without_their_checkpoints(session: Session) -> None:
    session.checkpoint(files=True)
    session.restart()
    session.execute("1")
    until_equal(lambda: list((session.workspace / COPIES).iterdir()), [])


def test_a_checkpoint_beyond_the_limit_takes_its_copy_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelexec.kernel.process.KernelProcess.checkpoints_max", 2)
    settings = {"checkpoints": CHECKPOINTS, "quiet": True}
    with Executor("local", workspace=tmp_path, config=settings) as executor:
        session = executor.session()
        session.checkpoint(files=True)
        for _ in range(2):
            session.checkpoint()
        assert list((session.workspace / COPIES).iterdir()) == []


def test_checkpoints_that_are_dropped_at_once_leave_no_copy(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = checkpoint_files._mark

    def mark_slowly(socket: Path) -> Any:
        time.sleep(0.01)  # so that all look for unused copies at the same time
        return mark(socket)

    session.execute("open('a', 'w').close()")
    checkpoints = [session.checkpoint(files=True) for _ in range(6)]
    monkeypatch.setattr(checkpoint_files, "_mark", mark_slowly)
    with ThreadPoolExecutor(len(checkpoints)) as threads:
        list(threads.map(Checkpoint.drop, checkpoints))
    assert list((session.workspace / COPIES).iterdir()) == []


def test_a_dead_owners_copies_are_removed_and_those_in_use_are_not(tmp_path: Path) -> None:
    left = tmp_path / COPIES / "session"
    left.mkdir(parents=True)
    (left / "file").touch()
    with Executor("local", workspace=tmp_path) as executor:
        first, second = (executor.session(name, work_dir=tmp_path) for name in "ab")
        checkpoint = first.checkpoint(files=True)
        second.checkpoint(files=True)
        assert sorted(path.name for path in (tmp_path / COPIES).iterdir()) == ["a", "b"]
        (tmp_path / "new").touch()
        assert first.restore(checkpoint, files=True).files == ("new",)


def test_notebooks_of_other_sessions_in_the_workspace_stay(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    with Executor("local", workspace=tmp_path, config={"checkpoints": CHECKPOINTS, "quiet": True}) as executor:
        before, session = (executor.session(name, work_dir=tmp_path) for name in ("before", "session"))
        before.execute("1")
        before.save_notebook()
        checkpoint = session.checkpoint(files=True)
        others = [before, executor.session("after", work_dir=tmp_path), executor.session("below", work_dir=tmp_path / "sub")]
        for each in others:
            each.execute("'its work'")
            each.save_notebook()
        before.close()
        assert session.restore(checkpoint, files=True).files == ()
        for each in others:
            assert each.notebook is not None
            assert "its work" in each.notebook.read_text()


def test_files_over_the_bound_are_named_and_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelexec.workspace.workspace_copies.COPIED_BYTES", 1000)
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session()
        session.execute("open('large', 'w').write('x' * 2000); open('small', 'w').write('x')")
        session.checkpoint("bounded", files=True)
        session.execute("open('large', 'w').write('y'); open('small', 'w').write('yy')")
        restored = session.restore("bounded", files=True)
        assert restored.files == ("small",)
        assert restored.notes[:2] == ("1 file came back: small.", "These are as they are now: large.")
        assert (session.workspace / "large").read_text() == "y"


def test_files_come_back_from_the_copy_itself_when_a_link_takes_its_place(session: Session, tmp_path: Path) -> None:
    session.execute("open('file', 'w').write('1')")
    checkpoint = session.checkpoint(files=True)
    outside = tmp_path / "outside"
    (outside / session.name).mkdir(parents=True)
    (outside / session.name / "file").write_text("the owner's")
    (session.workspace / COPIES).rename(session.workspace / ".kernelexec/moved")
    (session.workspace / COPIES).symlink_to(outside)
    session.execute("open('file', 'w').write('22')")
    session.restore(checkpoint, files=True)
    assert (session.workspace / "file").read_text() == "1"
    session.close()
    assert (outside / session.name / "file").exists()


def test_a_refused_checkpoint_leaves_no_copy(session: Session) -> None:
    session.execute("import threading; e = threading.Event(); t = threading.Thread(target=e.wait); t.start()")
    with pytest.raises(CheckpointRefused, match="threads run"):
        session.checkpoint(files=True)
    assert list((session.workspace / COPIES).iterdir()) == []
    session.execute("e.set(); t.join()")


def test_invalid_arguments_are_refused_before_anything_runs(session: Session) -> None:
    with pytest.raises(InvalidRequest, match="files='yes': must be True or False"):
        session.checkpoint(files="yes")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="files=1: must be True or False"):
        session.undo(files=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="files=None: must be True or False"):
        session.restore("x", files=None)  # type: ignore[arg-type]
    session.execute("x = 1")
    with pytest.raises(InvalidRequest, match="a snapshot has variables only"):
        session.restore(session.snapshot(), files=True)


def test_links_of_a_hostile_kernel_lead_out_of_no_copy(session: Session, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").write_text("secret")
    session.execute("open('file', 'w').write('1')")
    checkpoint = session.checkpoint(files=True)
    (copy,) = (session.workspace / COPIES).iterdir()
    (copy / "file").unlink()
    (copy / "file").symlink_to(outside / "secret")  # as a cell could: the copy is in its workspace
    (session.workspace / "file").rename(session.workspace / "gone")
    (session.workspace / "sub").symlink_to(outside)
    restored = session.restore(checkpoint, files=True)
    assert "These are as they are now: file." in restored.notes
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == "secret"
    assert not (session.workspace / "sub").exists()
    assert not (session.workspace / "file").is_symlink()
