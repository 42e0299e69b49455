"""Notices on stderr and in the log: the containers in which code runs, their removal, and kernels that are killed at an end."""

from __future__ import annotations

import logging

from kernelexec.events import Event, KernelChanged, KernelContainer, SessionAdopted, SessionClosed, SessionClosing
from kernelexec.notices import print_notice, print_once

logger = logging.getLogger("kernelexec")
_CUT = "the kernel ({}) was killed: its threads or exit handlers had not ended after the time of budgets.stop."


class ContainerNotices:
    """A hook for one session: it prints the first container of a process, and logs every start and removal of a container.

    A kernel is killed at the end of its session if its threads or exit handlers do not end in time: that is printed too.

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
                    print_notice(f"session {event.session!r}: continues in its container {container.name}, whose owner died.")
            case SessionClosing() if self._containers:
                names = ", ".join(self._containers.values())
                logger.info("kernelexec.containers_removed", extra={"session": event.session, "containers": names})

            case SessionClosed(cut=(_, *_) as cut):
                logger.info("kernelexec.kernels_cut", extra={"session": event.session, "languages": ", ".join(cut)})
                if not self._quiet:
                    print_notice(f"session {event.session!r}: {_CUT.format(', '.join(cut))}")

    def _announce_container(self, session: str, container: KernelContainer) -> None:
        writable = sum(not only for *_, only in container.mounts)
        read_only = len(container.mounts) - writable
        extra = {"session": session, "container": container.name, "image": container.image, "network": container.network}
        counts = {"mounts_written": writable, "mounts_read": read_only, "sudo": container.sudo}
        logger.info("kernelexec.container_started", extra={**extra, **counts})
        if not self._quiet:
            sudo = "with sudo, " * container.sudo
            print_once("container", f"code runs in containers of {container.image}, {sudo}network: {container.network}.")
