"""Waiting until libzmq has passed its messages to the system: messages that it holds die with the process."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

_TASKS = "/proc/self/task"
_OWN_NAME = "ZMQbg/IO"
_AT_REST = b"S"
_PATIENCE_SECONDS, _LOOK_SECONDS = 0.25, 0.0002
#: Seconds of a pause, and between two pauses, where the system does not show the state of threads.
_PAUSE_SECONDS, _REST_SECONDS = 0.003, 0.05


class IOThreads:
    """libzmq's I/O threads. A call that sends wakes one up; it sleeps once the system has the message."""

    def __init__(self, tasks: str = _TASKS) -> None:
        self._tasks = Path(tasks)
        self._threads: list[str] = []
        self._paused = 0.0

    def wait(self) -> None:
        """Wait, for a bounded time, until the system has all messages."""
        deadline = monotonic() + _PATIENCE_SECONDS
        while (states := self._states()) and any(state != _AT_REST for state in states) and monotonic() < deadline:
            sleep(_LOOK_SECONDS)
        if not states and monotonic() - self._paused > _REST_SECONDS:
            sleep(_PAUSE_SECONDS)
            self._paused = monotonic()

    def _states(self) -> list[bytes]:
        """Return the state of each thread; nothing where the system does not show it."""
        try:
            if self._threads:
                return [_state(path) for path in self._threads]
        except (OSError, IndexError):  # the threads of the process that forked this one
            self._threads = []
        with suppress(OSError, IndexError):
            threads = [str(task) for task in self._tasks.iterdir() if (task / "comm").read_text().startswith(_OWN_NAME)]
            self._threads = threads
            return [_state(path) for path in threads]
        return []


def _state(task: str) -> bytes:
    with open(f"{task}/stat", "rb") as file:  # noqa: PTH123 - in every flush
        return file.read().rpartition(b")")[2].split(None, 1)[0]
