"""Notices on stderr about code that runs without a container of its own."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress

#: One line each, of at most 100 columns.
_RISKS = {
    "local": "code runs on this machine as you, in no container: `kernelexec doctor` shows its limits.",
    "bubblewrap": "code runs on this machine as you, in namespaces: `kernelexec doctor` shows its limits.",
    "container-host": "code runs in the container of this process: `kernelexec doctor` shows its limits.",
}
_ENVIRONMENT_PASSED = "kernels get all variables of this process, keys and passwords too: environment.pass_all."
_printed_notices: set[str] = set()
logger = logging.getLogger("kernelexec")


def warn_about_isolation(isolation: str, *, quiet: bool) -> None:
    """Print where code runs if not in a container of its own, once per process; the log always has the event."""
    if isolation in _RISKS:
        logger.debug("kernelexec.isolation", extra={"isolation": isolation})
        if not quiet:
            print_once(isolation, _RISKS[isolation])


def warn_about_environment(*, everything: bool, quiet: bool) -> None:
    """Warn that kernels get every environment variable of this process, once per process; the log always has the event."""
    if everything:
        logger.warning("kernelexec.environment_passed")
        if not quiet:
            print_once("environment", _ENVIRONMENT_PASSED)


def print_once(topic: str, line: str) -> None:
    """Print a line about a topic, once per process."""
    if topic not in _printed_notices:
        _printed_notices.add(topic)
        print_notice(line)


def print_notice(line: str) -> None:
    """Print a line to stderr, if possible."""
    with suppress(AttributeError, OSError, ValueError):  # cells run also if stderr is closed or full
        sys.stderr.write(f"kernelexec: {line}\n")
        sys.stderr.flush()
