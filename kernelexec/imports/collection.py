"""Import of many modules at the start of a program that is ours."""

from __future__ import annotations

import gc
import sys
from importlib import import_module


def import_without_collection(*names: str) -> None:
    """Import modules without collections of garbage, which take a sixth of the time of an import of thousands of objects.

    Nearly all of these objects live as long as the process, so later collections skip them too. Call it only in a process
    of our own, before its work: what is garbage at that time is never collected.
    """
    if all(name in sys.modules for name in names):
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for name in names:
            import_module(name)
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()
