"""ipykernel without its debugger.

- Checked for: ipykernel 7.4.0.
- Gain: 35 ms a start in processor time, 150 ms without a fork server, and 10 MiB: only Jupyter's own clients debug.
- Obsolete when: ``test_ipykernel_loads_its_debugger``.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def leave_out_debugger() -> None:
    """Make ipykernel find no debugpy. Call this before creating a kernel."""
    absent: Any = ModuleType("ipykernel.debugger")
    absent.Debugger, absent._is_debugpy_available = object, False  # noqa: SLF001 - both names are imported by ipykernel 7
    sys.modules.setdefault(absent.__name__, absent)
