"""What dead owners left is removed, what the living hold is not, and nothing that is not ours is touched."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from kernelexec.docker.labels import OWNER, ROOT
from kernelexec.errors import KernelStartFailed
from kernelexec.provisioning import new_root, platform
from kernelexec.provisioning.container.containers import has_dead_owner
from kernelexec.provisioning.runtime import owned_directory
from kernelexec.provisioning.runtime.discovery import list_live_roots
from kernelexec.provisioning.runtime.owned_directory import RECORD_FILE, OwnedDirectory, OwnerRecord, runtime_bases, sweep

OWN = """
import os, sys
from pathlib import Path
from kernelexec.provisioning import new_root
from kernelexec.provisioning.runtime.owned_directory import OwnedDirectory
root = OwnedDirectory.claim(new_root())
(root.path / "work" / "1").mkdir(parents=True)
(root.path / "work" / "1" / "spill").write_text("kept")
print(root.path, flush=True)
"""
OLD = 1_000_000_000.0


@pytest.fixture
def base(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELEXEC_RUNTIME_DIR", str(short_path))
    return short_path


@pytest.fixture
def owner(base: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that owns a root, whose path it says, and lives until its stdin is closed."""
    with owning("sys.stdin.read()") as process:
        yield process
        process.kill()


def owning(*then: str) -> subprocess.Popen[str]:
    code = OWN + "\n".join(then)
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


OUT_OF_DESCRIPTORS = """
import json, os, resource, sys
from pathlib import Path
from kernelexec.docker.labels import OWNER, ROOT
from kernelexec.provisioning.container.containers import has_dead_owner
from kernelexec.provisioning.runtime.owned_directory import RECORD_FILE, OwnerRecord
record = Path(sys.argv[1], RECORD_FILE).read_text()
owner, labels = OwnerRecord.parse(json.loads(record)), {OWNER: record, ROOT: sys.argv[1]}
free = os.dup(0)
os.close(free)
resource.setrlimit(resource.RLIMIT_NOFILE, (free, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
print(owner.has_ended, has_dead_owner(labels), has_dead_owner({**labels, ROOT: "/nowhere"}))
"""


def test_without_free_descriptors_no_owner_counts_as_dead(owner: subprocess.Popen[str]) -> None:
    command = [sys.executable, "-c", OUT_OF_DESCRIPTORS, line_of(owner)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False False False\n"


@pytest.mark.parametrize(("failure", "is_dead"), [(errno.ENOENT, True), (errno.EMFILE, False), (errno.ENOMEM, False)])
def test_a_directory_that_cannot_be_opened_for_want_of_resources_says_nothing_about_its_owner(
    monkeypatch: pytest.MonkeyPatch, failure: int, *, is_dead: bool
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(failure, os.strerror(failure))

    labels = {OWNER: json.dumps(asdict(dead())), ROOT: "/adopted"}
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        actual = has_dead_owner(labels)
    assert actual == is_dead


def swept(base: Path) -> list[str]:
    """The names that are left after a sweep."""
    sweep([base], threading.Event())
    return sorted(path.name for path in base.iterdir())


def left(base: Path, record: OwnerRecord | str | None, *names: str, name: str = "kx-abcd1234") -> Path:
    """A root without an owner, with this record."""
    path = base / name
    path.mkdir(mode=0o700)
    for each in names:
        (path / each).mkdir()
    if record is not None:
        (path / RECORD_FILE).write_text(json.dumps(asdict(record)) if isinstance(record, OwnerRecord) else record)
    os.utime(path, (OLD, OLD))
    return path


def dead(**changes: Any) -> OwnerRecord:
    """An owner on this machine that has ended."""
    return replace(
        OwnerRecord(
            2**22 + 1,
            5,
            owned_directory._read_boot_id(),
            owned_directory._read_pid_namespace(),
            os.uname().nodename,
            locked=True,
        ),
        **changes,
    )


def test_the_directory_of_a_killed_owner_is_removed_and_reported(
    base: Path, owner: subprocess.Popen[str], caplog: pytest.LogCaptureFixture
) -> None:
    root = Path(line_of(owner))
    assert swept(base) == [root.name]
    owner.kill()
    owner.wait()
    with caplog.at_level(logging.INFO, logger="kernelexec"):
        assert swept(base) == []
    [record] = caplog.records
    assert (record.message, record.levelname) == ("kernelexec.orphaned_root_removed", "INFO")
    reported = record.__dict__
    assert (reported["root"], reported["owner_pid"], reported["sessions"]) == (str(root), owner.pid, ["work"])


def test_an_owner_that_is_a_zombie_is_dead(base: Path, owner: subprocess.Popen[str]) -> None:
    line_of(owner)
    owner.kill()
    os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
    assert swept(base) == []


def test_a_forked_child_that_lives_on_holds_nothing(base: Path) -> None:
    child = "if os.fork() == 0:\n    print('child', flush=True)\n    sys.stdin.read()\n    os._exit(0)\nsys.stdin.read()"
    with owning(child) as process:
        root = line_of(process)
        assert line_of(process) == "child"
        assert swept(base) == [Path(root).name]
        process.kill()
        process.wait()
        assert swept(base) == []


def test_the_own_root_is_held_until_its_removal(base: Path) -> None:
    root = OwnedDirectory.claim(new_root())
    (root.path / "work" / "deep").mkdir(parents=True)
    assert swept(base) == [root.path.name]
    root.remove()
    assert list(base.iterdir()) == []
    root.remove()


STALE = {
    "no such process": dead(),
    "a reused id": dead(pid=os.getpid()),
    "before the machine was started anew": dead(pid=os.getpid(), boot="another"),
    "another pid namespace, where the lock tells": dead(pid_namespace="pid:[1]"),
    "without locks": dead(locked=False),
}


@pytest.mark.parametrize("record", STALE.values(), ids=STALE)
def test_an_owner_that_is_gone_is_recognised(base: Path, record: OwnerRecord) -> None:
    left(base, record, "work")
    assert swept(base) == []


def test_an_owner_that_may_live_is_left_alone(base: Path) -> None:
    alive = OwnerRecord.of_this_process(locked=True)
    elsewhere = dead(boot="another", machine="another")
    unknown = dead(pid_namespace="pid:[1]", locked=False)
    names = [left(base, record, name=f"kx-{n:08}").name for n, record in enumerate((alive, elsewhere, unknown))]
    assert swept(base) == names


@pytest.mark.parametrize("record", ["", "{", "[]", '{"pid": 1}', "[" * 5000, '{"pid": "x"}', "\0", None])
def test_without_a_whole_record_only_what_is_empty_and_old_is_removed(base: Path, record: str | None) -> None:
    filled = left(base, record, "precious", name="kx-filled00")
    young = left(base, record, name="kx-young000")
    os.utime(young)
    left(base, record, name="kx-old00000")
    assert swept(base) == [filled.name, young.name]


def test_nothing_is_taken_that_is_not_a_private_directory_of_this_user(base: Path) -> None:
    outside = base / "outside"
    outside.mkdir()
    (base / "kx-link0000").symlink_to(left(outside, dead(), "precious"))
    (base / "kx-file0000").write_text("precious")
    os.mkfifo(base / "kx-fifo0000")
    left(base, dead(), "precious", name="kx-open0000").chmod(0o755)
    left(base, dead(), "precious", name="kx-doctor-abcd1234")
    left(base, dead(), "precious", name="kx-UPPER000")
    before = sorted(base.rglob("*"))
    swept(base)
    assert sorted(base.rglob("*")) == before


def test_nothing_is_taken_that_belongs_to_another_user(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = left(base, dead(), "precious")
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    assert swept(base) == [path.name]


def test_no_link_is_followed_out_of_a_root(base: Path) -> None:
    outside = base / "outside"
    (outside / "precious").mkdir(parents=True)
    path = left(base, dead(), "work")
    (path / "link").symlink_to(outside)
    (path / "work" / "link").symlink_to(outside)
    (path / "work" / "up").symlink_to("..")
    assert swept(base) == ["outside"]
    assert (outside / "precious").is_dir()


def test_a_record_that_is_no_plain_file_says_nothing(base: Path) -> None:
    path = left(base, None, "precious")
    os.mkfifo(path / RECORD_FILE)
    other = left(base, None, "precious", name="kx-other000")
    (other / RECORD_FILE).symlink_to("/etc/passwd")
    os.utime(path, (OLD, OLD))
    assert swept(base) == [path.name, other.name]


def test_a_cancelled_sweep_stops_and_the_next_sweep_goes_on(base: Path) -> None:
    path = left(base, dead(), *(f"work{n}" for n in range(10)))
    stop = threading.Event()
    stop.set()
    sweep([base], stop)
    assert len(list(path.iterdir())) == 11
    assert swept(base) == []


def test_sweeps_at_once_and_starts_at_once_harm_no_session(base: Path) -> None:
    for n in range(30):
        left(base, dead(), "work", name=f"kx-{n:08}")
    owners = [owning("sys.stdin.read()") for _ in range(4)]
    sweepers = [threading.Thread(target=sweep, args=([base], threading.Event())) for _ in range(8)]
    for thread in sweepers:
        thread.start()
    alive = [Path(line_of(process)) for process in owners]
    for thread in sweepers:
        thread.join()
    assert swept(base) == sorted(path.name for path in alive)
    assert all((path / "work" / "1" / "spill").read_text() == "kept" for path in alive)
    for process in owners:
        process.kill()
        process.communicate()
    assert swept(base) == []


def test_every_place_where_roots_can_be_is_swept_and_a_missing_one_is_passed_over(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert next(runtime_bases()) == base
    left(base, dead(), "work")
    left(tmp_path, dead(), "work")
    sweep([tmp_path / "missing", base, tmp_path, base], threading.Event())
    assert list(base.iterdir()) == list(tmp_path.iterdir()) == []


def test_a_full_disk_is_a_clear_error_and_leaves_nothing(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    path = new_root()
    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(KernelStartFailed, match=r"kx-.* is not writable: No space left on device"):
        OwnedDirectory.claim(path)
    assert list(base.iterdir()) == []


def test_a_sweep_of_many_names_looks_only_at_those_that_can_be_roots(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    actual_open = os.open

    def recording(path: str | Path, *args: Any, **options: Any) -> int:
        looked_at.append(Path(path).name)
        return actual_open(path, *args, **options)

    for n in range(2000):
        (base / f"other-{n}").touch()
    held = [OwnedDirectory.claim(new_root()) for _ in range(50)]
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", recording)
        sweep([base], threading.Event())
    assert {root.path.name for root in held} <= set(looked_at)
    assert not [name for name in looked_at if name.startswith("other")]
    assert all(root.path.exists() for root in held)
    for root in held:
        root.remove()


def test_the_lock_of_a_process_that_removes_a_directory_is_no_living_owner(base: Path, owner: subprocess.Popen[str]) -> None:
    living, removed = Path(line_of(owner)), left(base, dead())
    removing = os.open(removed, os.O_RDONLY | os.O_DIRECTORY)
    platform.lock(removing, shared=False)
    assert [root for root, _ in list_live_roots([base])] == [living]
    os.close(removing)
