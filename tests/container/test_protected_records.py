"""What cells see and must not change, tried from a cell: the records that are kept of them, wherever those lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernelexec import Executor
from tests.support.engine import MINIMAL, needs_engine

pytestmark = needs_engine

#: Tries to write on a file, to move it away, and to move what it lies in away; says what came of it.
TRY = """
import errno, os
from pathlib import Path
def tried(call, *args):
    try:
        call(*args)
        return 'DONE'
    except OSError as exc:
        return errno.errorcode[exc.errno]
def write(path):
    with open(path, 'a') as file:
        file.write('forged')
def tries(path, top):
    path, ways = Path(path), []
    while str(path) != top:
        ways.append(path)
        path = path.parent
    print(tried(write, ways[0]), *(tried(os.rename, way, f'{way}-moved') for way in ways))
"""


def config(**more: Any) -> dict[str, Any]:
    return {"container": {"image": MINIMAL, **more}}


def test_a_journal_deep_in_the_workspace_is_neither_written_nor_moved_away(tmp_path: Path) -> None:
    project = tmp_path / "project"
    workspaces = project / "deep" / "down"
    value = config() | {"work_dir": project}
    with Executor("container", workspace=workspaces, config=value) as executor:
        session = executor.session("a")
        journal = workspaces / ".journals" / "a.jsonl"
        tried = session.execute(f"{TRY}tries({str(journal)!r}, {str(project)!r})")
        assert tried.text == "EROFS EROFS EBUSY EBUSY EBUSY\n"
        assert session.execute(f"Path({str(workspaces)!r}, 'file').write_text('as before')").ok
    assert (workspaces / "file").read_text() == "as before"
    assert "forged" not in journal.read_text().replace("'forged'", "")


def test_logs_in_a_mount_that_can_be_written_are_neither_written_nor_moved_away(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / "deep").mkdir(parents=True)
    logs = shared / "deep" / "logs"
    value = config(mounts=[{"source": shared, "read_only": False}]) | {"log_dir": logs}
    with Executor("container", workspace=tmp_path / "ws", config=value) as executor:
        sessions = [executor.session(name) for name in ("a", "b")]
        log = logs / "b" / "docker_container.log"
        for session in sessions:
            tried = session.execute(f"{TRY}tries({str(log)!r}, {str(shared)!r})")
            assert tried.text == "EROFS EROFS EROFS EBUSY EBUSY\n"
        assert sessions[0].execute(f"Path({str(shared / 'file')!r}).write_text('as before')").ok
        assert "cell" in log.read_text()
    assert log.read_text().endswith(" session closed\n")


def test_a_journal_below_a_link_is_not_written(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "link").symlink_to(project)
    value = config() | {"work_dir": project}
    with Executor("container", workspace=tmp_path / "link" / "ws", config=value) as executor:
        journal = project / "ws" / ".journals" / "a.jsonl"
        tried = executor.session("a").execute(f"{TRY}tries({str(journal)!r}, {str(project)!r})")
    assert tried.text == "EROFS EROFS EBUSY EBUSY\n"
