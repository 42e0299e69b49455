"""Notices on stderr: the isolation of a session, its containers, and their removal."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress

from kernelexec.events import Event, KernelChanged, KernelContainer, SessionAdopted, SessionClosing

#: One line each, of at most 100 columns.
_RISKS = {
    "local": "code runs on this machine as you, in no container: `kernelexec doctor` shows its limits.",
    "bubblewrap": "code runs on this machine as you, in namespaces: `kernelexec doctor` shows its limits.",
    "container-host": "code runs in the container of this process: `kernelexec doctor` shows its limits.",
}
_ENVIRONMENT_PASSED = "kernels get all variables of this process, keys and passwords too: environment.pass_all."
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
            sudo = "with sudo, " * container.sudo
            _print_once("container", f"code runs in containers of {container.image}, {sudo}network: {container.network_text}.")


def warn_about_isolation(isolation: str, *, quiet: bool) -> None:
    """Print where code runs that gets no container of its own, once per process; the log has it in any case."""
    if isolation in _RISKS:
        logger.debug("kernelexec.isolation", extra={"isolation": isolation})
        if not quiet:
            _print_once(isolation, _RISKS[isolation])


def warn_about_environment(*, everything: bool, quiet: bool) -> None:
    """Warn that kernels get every environment variable of this process, once per process; the log has it in any case."""
    if everything:
        logger.warning("kernelexec.environment_passed")
        if not quiet:
            _print_once("environment", _ENVIRONMENT_PASSED)


def _print_once(topic: str, line: str) -> None:
    if topic not in _printed_notices:
        _printed_notices.add(topic)
        _print_notice(line)


def _print_notice(line: str) -> None:
    with suppress(AttributeError, OSError, ValueError):  # cells run also if stderr is closed or full
        sys.stderr.write(f"kernelexec: {line}\n")
        sys.stderr.flush()
