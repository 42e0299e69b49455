"""A dead owner's directory is taken over by one process, and by none while its owner lives; sweeps spare the listed ones."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernelexec.provisioning.runtime.owned_directory import RECORD_FILE, OwnedDirectory, OwnerRecord, sweep
from tests.local.provisioning.test_owned_directory import base, dead, left, line_of, owner, swept

__all__ = ["base", "owner"]

TAKE = """
import sys
from pathlib import Path
from kernelexec.provisioning.runtime.owned_directory import OwnedDirectory
sys.stdin.readline()
root = OwnedDirectory.take_over(Path(sys.argv[1]))
print(root is not None, flush=True)
sys.stdin.read()
"""


def owner_of(path: Path) -> OwnerRecord | None:
    fd = os.open(path, os.O_RDONLY)
    try:
        return OwnerRecord.read(fd)
    finally:
        os.close(fd)


def test_a_dead_owners_directory_is_taken_over_with_its_files(base: Path, owner: subprocess.Popen[str]) -> None:
    path = Path(line_of(owner))
    assert OwnedDirectory.take_over(path) is None
    owner.kill()
    owner.wait()
    root = OwnedDirectory.take_over(path)
    assert root is not None
    assert (path / "work" / "1" / "spill").read_text() == "kept"
    assert owner_of(path) == OwnerRecord.of_this_process(locked=True)
    assert swept(base) == [path.name]
    assert OwnedDirectory.take_over(path) is None
    root.remove()
    assert list(base.iterdir()) == []


def test_of_many_processes_one_takes_it_though_others_sweep_meanwhile(base: Path) -> None:
    path = left(base, dead(), "work")
    takers = [
        subprocess.Popen([sys.executable, "-c", TAKE, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    stop = threading.Event()

    def sweeps() -> None:
        while not stop.is_set():
            sweep([base], threading.Event(), spare=lambda root: root == path)

    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            pool.submit(sweeps)
        for taker in takers:
            assert taker.stdin is not None
            taker.stdin.write("go\n")
            taker.stdin.flush()
        taken = [line_of(taker) for taker in takers]
        stop.set()
    assert sorted(taken) == ["False"] * 5 + ["True"]
    assert swept(base) == [path.name]
    for taker in takers:
        taker.communicate()
    assert swept(base) == []


def test_a_sweep_spares_what_it_must(base: Path) -> None:
    spared, other = left(base, dead(), "work", name="kx-spared00"), left(base, dead(), "work", name="kx-other000")
    asked: list[Path] = []

    def spare(root: Path) -> bool:
        asked.append(root)
        return root == spared

    living = OwnedDirectory.claim(left(base, None, name="kx-living00"))
    sweep([base], threading.Event(), spare=spare)
    assert sorted(asked) == [other, spared]
    assert sorted(base.iterdir()) == [living.path, spared]
    living.remove()


REFUSED = {
    "no record": None,
    "a record that says nothing": "{",
    "an owner on another machine": dead(boot="another", machine="another"),
    "an owner that lives": OwnerRecord.of_this_process(locked=True),
}


@pytest.mark.parametrize("record", REFUSED.values(), ids=REFUSED)
def test_directories_with_a_possible_owner_are_not_taken_over(base: Path, record: OwnerRecord | str | None) -> None:
    path = left(base, record, "work")
    before = sorted(path.iterdir())
    assert OwnedDirectory.take_over(path) is None
    assert sorted(path.iterdir()) == before


def test_links_and_open_directories_are_not_taken_over(base: Path) -> None:
    path = left(base, dead())
    (base / "kx-link0000").symlink_to(path)
    assert OwnedDirectory.take_over(base / "kx-link0000") is None
    assert OwnedDirectory.take_over(base / "kx-missing0") is None
    path.chmod(0o755)
    assert OwnedDirectory.take_over(path) is None


def test_a_full_disk_leaves_it_to_the_next_one(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = left(base, dead(), "work")

    def full(*_: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", full)
        assert OwnedDirectory.take_over(path) is None
    assert (path / RECORD_FILE).is_file()
    root = OwnedDirectory.take_over(path)
    assert root is not None
    root.remove()
