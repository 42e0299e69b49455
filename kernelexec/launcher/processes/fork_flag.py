"""A flag of this process: whether a cell of the kernel forked it, so it is no kernel."""

from __future__ import annotations

import os

#: Read in every write, where a system call would cost too much.
is_forked_child = False


def track_forks() -> None:
    """Set the flag in forked children of this process."""

    def set_flag() -> None:
        global is_forked_child  # noqa: PLW0603 - see above
        is_forked_child = True

    os.register_at_fork(after_in_child=set_flag)
