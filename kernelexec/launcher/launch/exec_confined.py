"""A kernel whose interpreter, or what that imports, may be anybody's: who starts it is isolated, and confined before that."""

from __future__ import annotations

import json
import os
import sys

from ..owner import ORDER, Order, apply_limits
from ..sandbox.confinement import confine


def main(arguments: list[str]) -> None:
    """Become a command that starts our launcher, which is told what has been done.

    Raises:
        SystemExit: the command cannot be started, or confinement is required and missing.
    """
    said = json.loads(os.environ[ORDER])
    order = Order.take()
    apply_limits(order.limits)
    said |= {"confinement": None, "confined": confine(order.confinement), "environment": {}, "cwd": None}
    order.settle()
    os.environ[ORDER] = json.dumps(said)
    try:
        os.execvp(arguments[0], arguments)  # noqa: S606 - no shell on purpose
    except OSError as exc:
        sys.exit(f"{arguments[0]} cannot be started: {exc.strerror}.")
