"""A flag of this process: whether a cell of the kernel forked it, so it is no kernel."""

from __future__ import annotations

import os

#: Asked in every write, where a system call would cost too much.
forked = False


def track_forks() -> None:
    """Set the flag in forked children of this process."""

    def note() -> None:
        global forked  # noqa: PLW0603 - see above
        forked = True

    os.register_at_fork(after_in_child=note)
