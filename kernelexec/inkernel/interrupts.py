"""When SIGINT raises: where the user's code runs, and nowhere else."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: How long completing or inspecting a name may take, in seconds: it runs where cells run, and the next cell waits for it.
_LOOK_SECONDS = 3.0


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt in here, and is ignored again after; the same for children that are started here."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def looked(look: Callable[[], Any], nothing: dict[str, Any]) -> Any:
    """What a look at the user's objects gives; nothing where it fails, or does not end in time by itself."""
    end = threading.Timer(_LOOK_SECONDS, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    end.daemon = True
    try:
        with interruptible():
            end.start()
            try:
                return look()
            finally:
                end.cancel()
    except BaseException:  # what the user's classes raise is anything
        return nothing
