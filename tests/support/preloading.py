"""Sessions whose kernels were forked once the fork server had imported modules."""

from __future__ import annotations

import subprocess
import sys
import time

from kernelexec import Executor, Session

_BOUND = 30


def make_font_list() -> None:
    """Have matplotlib make its list of fonts in this HOME, before a fork server imports it.

    It warns where that takes long, and a fork server that shows text ends: a kernel has to show it.
    """
    subprocess.run([sys.executable, "-c", "import matplotlib.font_manager"], check=True)


def preloaded_session(executor: Executor, *modules: str) -> Session:
    """A session whose kernel had these modules from its start."""
    end = time.monotonic() + _BOUND
    while True:  # the server imports between requests, or after a while: kernels that are forked later have all
        session = executor.session("next")
        loaded = session.execute(f"import sys; {set(modules)} <= sys.modules.keys()").text
        if loaded == "True" or time.monotonic() > end:
            break
        session.close()
    assert loaded == "True"
    return session
