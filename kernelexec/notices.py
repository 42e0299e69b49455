"""What a person is told on stderr, unasked: where code runs, and which containers are being removed."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress

from kernelexec.events import Event, InContainer, KernelChanged, SessionAdopted, SessionClosing

_SECRETS = "The environment is scrubbed of what looks like secrets."
_RISKS = {
    "local": (
        "isolation=local: code runs on this machine as you, and no container keeps it from your files: `kernelexec doctor` says"
        f" what does. {_SECRETS} Use containers for code that you do not trust."
    ),
    "bubblewrap": (
        "isolation=bubblewrap: code runs on this machine as you, in namespaces of its own: it sees the system's programs and"
        f" its workspace. {_SECRETS}"
    ),
    "container-host": (
        "isolation=container-host: code runs in the container that this process is in, with its rights. "
        f"{_SECRETS} KERNELEXEC_FORCE_CONTAINER=1 gives kernels containers of their own."
    ),
}
_PASSED = (
    "environment.pass_all=True: every variable of this process goes to the kernels, its keys, tokens and passwords too: what"
    " runs there can read them and send them on. Name those that are needed by environment.pass_names, or give them as secrets."
)
_told: set[str] = set()
logger = logging.getLogger("kernelexec")


class Notices:
    """A hook for one session: the first container of a process is told of, and every one that goes with its session.

    Whoever embeds this has the same by the logger ``kernelexec``, and is ``quiet``.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._containers: dict[str, str] = {}

    def __call__(self, event: Event, /) -> None:
        """Tell what is new, and know which containers are there."""
        match event:
            case KernelChanged(change="started", container=InContainer() as container):
                self._containers[event.language] = container.name
                self._started(event.session, container)
            case KernelChanged(change="died"):
                self._containers.pop(event.language, None)
            case SessionAdopted(container=InContainer() as container):
                self._containers["python"] = container.name
                logger.info("kernelexec.session_adopted", extra={"session": event.session, "container": container.name})
                if not self._quiet:
                    _say(f"session {event.session!r}: goes on in its container {container.name}, whose owner died.")
            case SessionClosing() if self._containers:
                names = ", ".join(self._containers.values())
                logger.info("kernelexec.containers_removed", extra={"session": event.session, "containers": names})
                if not self._quiet:
                    _say(f"session {event.session!r}: removing its container{'s' * (len(self._containers) > 1)} {names}.")

    def _started(self, session: str, container: InContainer) -> None:
        written = sum(not only for *_, only in container.mounts)
        read = len(container.mounts) - written
        extra = {"session": session, "container": container.name, "image": container.image, "network": container.network}
        given = {"mounts_written": written, "mounts_read": read, "sudo": container.sudo}
        logger.info("kernelexec.container_started", extra={**extra, **given})
        if not self._quiet:
            sudo = ", with sudo: it can become root in them" if container.sudo else ""
            _say_once(
                "container",
                f"isolation=container: code runs in containers of the image {container.image}{sudo}; "
                f"network: {container.connected}; "
                f"of this machine it sees {_directories(written)} for reading and writing, {read} for reading only. "
                f"The first is {container.name}.",
            )


def tell_risk(isolation: str) -> None:
    """Say what kernels can do that are in no container of their own, once per process."""
    if isolation in _RISKS:
        _say_once(isolation, _RISKS[isolation])


def tell_passing(*, everything: bool) -> None:
    """Say what it means that kernels get every variable of this process, once per process."""
    if everything:
        logger.warning("kernelexec.environment_passed")
        _say_once("environment", _PASSED)


def _directories(number: int) -> str:
    return f"{number} director{'y' if number == 1 else 'ies'}"


def _say_once(what: str, line: str) -> None:
    if what not in _told:
        _told.add(what)
        _say(line)


def _say(line: str) -> None:
    with suppress(AttributeError, OSError, ValueError):  # a stderr that is closed or full is no reason not to run
        sys.stderr.write(f"kernelexec: {line}\n")
        sys.stderr.flush()
