"""Where an executor's private directory is made, whatever the machine says about its directories."""

from __future__ import annotations

import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelexec.errors import KernelStartFailed
from kernelexec.provisioning import load_identity, new_root
from kernelexec.provisioning.runtime.owned_directory import all_bases, runtime_bases, swept_bases


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def an_executable_file(base: Path) -> Path:
    (base / "file").touch(mode=0o700)
    return base / "file"


def a_long_path(base: Path) -> Path:
    path = base / ("d" * 100)
    path.mkdir()
    return path


USELESS: dict[str, Callable[[Path], object]] = {
    "empty": lambda _: "",
    "missing": lambda base: base / "missing",
    "too long": a_long_path,
    "a plain file": an_executable_file,
    "relative": lambda _: "run",
}


@pytest.fixture
def bases(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to work in with a usable ``run`` and ``tmp`` in it; TMPDIR is ``tmp`` and XDG_RUNTIME_DIR is not set."""
    for name in ("run", "tmp"):
        (short_path / name).mkdir()
    monkeypatch.chdir(short_path)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(short_path / "tmp"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.delenv("KERNELEXEC_RUNTIME_DIR", raising=False)
    return short_path


def test_the_runtime_directory_of_the_user_comes_first(bases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(bases / "run"))
    root, other = new_root(), new_root()
    assert (root.parent, other.parent) == (bases / "run", bases / "run")
    assert root != other
    assert mode(root) == 0o700


def test_a_chosen_directory_is_the_only_one(bases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(bases / "run"))
    (bases / "own").mkdir()
    monkeypatch.setenv("KERNELEXEC_RUNTIME_DIR", str(bases / "own"))
    assert new_root().parent == bases / "own"
    assert list(runtime_bases()) == [bases / "own"]
    assert list(swept_bases()) == [bases / "own", bases / "tmp"]
    assert list(all_bases()) == [bases / "own", bases / "run", bases / "tmp", Path("/tmp")]


@pytest.mark.parametrize("useless", [choice for name, choice in USELESS.items() if name != "empty"])
def test_a_chosen_directory_that_is_useless_is_an_error(
    bases: Path, monkeypatch: pytest.MonkeyPatch, useless: Callable[[Path], object]
) -> None:
    monkeypatch.setenv("KERNELEXEC_RUNTIME_DIR", str(useless(bases)))
    with pytest.raises(KernelStartFailed, match="KERNELEXEC_RUNTIME_DIR must be writable"):
        new_root()


def test_the_temporary_directory_comes_next(bases: Path) -> None:
    assert new_root().parent == bases / "tmp"


@pytest.mark.parametrize("useless", USELESS.values(), ids=USELESS)
def test_a_useless_runtime_directory_is_passed_over(
    bases: Path, monkeypatch: pytest.MonkeyPatch, useless: Callable[[Path], object]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(useless(bases)))
    root = new_root()
    assert root.is_absolute()
    assert root.parent == bases / "tmp"


def test_where_all_are_too_long_a_short_one_is_found(bases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = str(a_long_path(bases))
    monkeypatch.setenv("XDG_RUNTIME_DIR", long)
    monkeypatch.setenv("TMPDIR", long)
    root = new_root()
    assert root.parent == Path("/tmp")
    assert mode(root) == 0o700
    root.rmdir()


def test_a_sessions_identity_is_made_once_and_is_its_owners_only(tmp_path: Path) -> None:
    identity = load_identity(tmp_path)
    assert load_identity(tmp_path) == identity
    assert len(identity) == 32
    assert mode(tmp_path / "identity") == 0o600
    (tmp_path / "other").mkdir()
    assert load_identity(tmp_path / "other") != identity
