"""What a session is given before it lives: where a part of it cannot be had, nothing of the others stays open."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

from kernelexec.config import Config, load
from kernelexec.errors import InvalidConfig
from kernelexec.executor import resources
from kernelexec.executor.resources import SessionResources, SessionStart
from kernelexec.provisioning import Handover
from kernelexec.provisioning.runtime.discovery import OrphanedSessionFile
from kernelexec.records import journal
from kernelexec.records.journal import journal_path
from kernelexec.records.notebook import recorder


class Refusal:
    """Takes the place of a step: it fails once, then it is the step."""

    def __init__(self, step: Callable[..., object]) -> None:
        self._step = step
        self._failed = False

    def __call__(self, *args: object, **more: object) -> object:
        if self._failed:
            return self._step(*args, **more)
        self._failed = True
        raise InvalidConfig("This cannot be had.")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load("local", workspace=tmp_path / "ws", config={"log_dir": tmp_path / "logs"})


def opened(below: Path) -> list[Path]:
    """The files below a directory that this process has open."""
    actual = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            actual.append(descriptor.readlink())
    return [path for path in actual if path.is_relative_to(below)]


def made(config: Config, root: Path) -> SessionResources:
    return SessionResources.create(SessionStart("a"), root, config)


def taken_over(config: Config, root: Path) -> SessionResources:
    workspace, directory = config.absolute_workspace / "a", root / "left"
    for path in (workspace, directory):
        path.mkdir(parents=True, exist_ok=True)
    left = OrphanedSessionFile("a", workspace, directory, None, Handover(1, "token", {}, {}))
    return SessionResources.adopt(left, root, config)


@pytest.mark.parametrize(
    ("module", "step"), [(resources, "backend_for"), (recorder, "open_recorder"), (journal, "journal_path")]
)
@pytest.mark.parametrize("had", [made, taken_over])
def test_after_a_failure_nothing_is_open_and_the_next_attempt_has_the_journal_itself(
    had: Callable[[Config, Path], SessionResources],
    module: ModuleType,
    step: str,
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setattr(module, step, Refusal(getattr(module, step)))
    with pytest.raises(InvalidConfig, match="cannot be had"):
        had(config, root)
    assert opened(tmp_path) == []
    assert [path.name for path in root.iterdir() if path.name != "left"] == []
    assert list(config.absolute_workspace.glob("a/*")) == []
    actual = had(config, root)
    try:
        assert actual.journal is not None
        assert actual.journal.path == journal_path(config.workspace, "a")
        assert actual.recorder is not None
        assert actual.recorder.path.name == "a.ipynb"
        assert set(opened(tmp_path)) == {actual.journal.path, actual.journal.path.parent, actual.recorder.path.parent}
    finally:
        actual.discard()
    assert opened(tmp_path) == []
