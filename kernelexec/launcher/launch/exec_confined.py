"""Confinement of this process, which runs the owner's isolated interpreter, before it executes an untrusted interpreter."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from ..owner import apply_limits
from ..protocol import LaunchOptions
from ..sandbox.confinement import confine


def main(arguments: list[str]) -> None:
    """Confine this process and execute a command that starts the launcher, which gets the result by its options.

    Raises:
        SystemExit: the command cannot be started, or confinement is required and missing.
    """
    options = LaunchOptions.take()
    apply_limits(options.limits)
    confined = confine(options.confinement)
    options.apply()
    os.environ.update(replace(options, confinement=None, confined=confined, environment={}, cwd=None).as_environment())
    try:
        os.execvp(arguments[0], arguments)  # noqa: S606 - no shell on purpose
    except OSError as exc:
        sys.exit(f"{arguments[0]} cannot be started: {exc.strerror}.")
