"""Whether this process is a child that a cell of the kernel forked: it is no kernel, whatever it inherited."""

from __future__ import annotations

import os

#: Asked in every write, where a system call would cost too much.
forked = False


def note_forks() -> None:
    """Have the children of this process, which is a kernel, know what they are."""

    def note() -> None:
        global forked  # noqa: PLW0603 - see above
        forked = True

    os.register_at_fork(after_in_child=note)
