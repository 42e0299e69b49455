"""A matplotlib that the fork server has imported, with the directories of the forked kernel.

- Checked for: matplotlib 3.11.2.
- Gain: forked kernels draw text that LaTeX sets; the cache that matplotlib remembers is the user's, which they cannot write.
- Obsolete when: ``test_matplotlib_remembers_its_directories``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def forget_directories() -> None:
    """Make matplotlib look up its directories again. Call this once the environment is the kernel's, before cells."""
    matplotlib: Any = sys.modules.get("matplotlib")
    if matplotlib is None:
        return
    for name in ("get_configdir", "get_cachedir"):
        function: Any = getattr(matplotlib, name)
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if variable == "called":  # of the decorator that remembers the first result
                cell.cell_contents = False
    manager: Any = getattr(sys.modules.get("matplotlib.texmanager"), "TexManager", None)
    if manager is not None:
        manager._cache_dir = Path(matplotlib.get_cachedir(), "tex.cache")  # noqa: SLF001 - set when its class is made
