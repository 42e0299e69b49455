"""Notices on stderr: the isolation of a session, its containers, and their removal."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress

from kernelexec.events import Event, KernelChanged, KernelContainer, SessionAdopted, SessionClosing

_SECRETS = "Variables that look like secrets are removed from the environment."
_RISKS = {
    "local": (
        "isolation=local: code runs on this machine as you, and no container protects your files: `kernelexec doctor` lists the"
        f" layers that do. {_SECRETS} Use containers for code that you do not trust."
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
_ENVIRONMENT_PASSED = (
    "environment.pass_all=True: kernels get every variable of this process, with its keys, tokens and passwords: code"
    " can read them and send them on. Name the needed ones in environment.pass_names, or give them as secrets."
)
_printed_notices: set[str] = set()
logger = logging.getLogger("kernelexec")


class Notices:
    """A hook for one session: it prints the first container of a process, and every container that a session removes.

    With ``quiet`` it prints nothing; the logger ``kernelexec`` has the same events.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._containers: dict[str, str] = {}

    def __call__(self, event: Event, /) -> None:
        """Print what is new, and track the containers."""
        match event:
            case KernelChanged(change="started", container=KernelContainer() as container):
                self._containers[event.language] = container.name
                self._announce_container(event.session, container)
            case KernelChanged(change="died"):
                self._containers.pop(event.language, None)
            case SessionAdopted(container=KernelContainer() as container):
                self._containers["python"] = container.name
                logger.info("kernelexec.session_adopted", extra={"session": event.session, "container": container.name})
                if not self._quiet:
                    _print_notice(f"session {event.session!r}: continues in its container {container.name}, whose owner died.")
            case SessionClosing() if self._containers:
                names = ", ".join(self._containers.values())
                logger.info("kernelexec.containers_removed", extra={"session": event.session, "containers": names})
                if not self._quiet:
                    _print_notice(
                        f"session {event.session!r}: removing its container{'s' * (len(self._containers) > 1)} {names}."
                    )

    def _announce_container(self, session: str, container: KernelContainer) -> None:
        writable = sum(not only for *_, only in container.mounts)
        read_only = len(container.mounts) - writable
        extra = {"session": session, "container": container.name, "image": container.image, "network": container.network}
        counts = {"mounts_written": writable, "mounts_read": read_only, "sudo": container.sudo}
        logger.info("kernelexec.container_started", extra={**extra, **counts})
        if not self._quiet:
            sudo = ", with sudo: it can become root in them" if container.sudo else ""
            _print_once(
                "container",
                f"isolation=container: code runs in containers of the image {container.image}{sudo}; "
                f"network: {container.network_text}; "
                f"of this machine it sees {_directories(writable)} for reading and writing, {read_only} for reading only. "
                f"The first is {container.name}.",
            )


def warn_about_isolation(isolation: str) -> None:
    """Print the risk of an isolation without a container of its own, once per process."""
    if isolation in _RISKS:
        _print_once(isolation, _RISKS[isolation])


def warn_about_environment(*, everything: bool) -> None:
    """Warn that kernels get every environment variable of this process, once per process."""
    if everything:
        logger.warning("kernelexec.environment_passed")
        _print_once("environment", _ENVIRONMENT_PASSED)


def _directories(number: int) -> str:
    return f"{number} director{'y' if number == 1 else 'ies'}"


def _print_once(topic: str, line: str) -> None:
    if topic not in _printed_notices:
        _printed_notices.add(topic)
        _print_notice(line)


def _print_notice(line: str) -> None:
    with suppress(AttributeError, OSError, ValueError):  # cells run also if stderr is closed or full
        sys.stderr.write(f"kernelexec: {line}\n")
        sys.stderr.flush()
