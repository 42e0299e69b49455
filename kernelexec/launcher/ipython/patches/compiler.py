"""The module of a cell's frames, found without a search.

- Checked for: ipykernel 7.4.0, CPython 3.11 to 3.14.
- Gain: 1.3 ms a cell that fails; a millisecond for each frame once pandas is imported.
- Obsolete when: ``test_the_module_of_a_cell_is_searched_for``.
"""

from __future__ import annotations

import inspect
from typing import Any

from ipykernel.compiler import XCachingCompiler


class Compiler(XCachingCompiler):
    """ipykernel's compiler, which also registers with ``inspect`` the module of each cell.

    A traceback asks ``inspect`` for each frame's module, twice. For an unknown file ``inspect`` looks at all modules.
    """

    def get_code_name(self, raw_code: str, code: str, number: int) -> Any:
        """Return the file name of a cell."""
        name = super().get_code_name(raw_code, code, number)
        modules: dict[str, str] = getattr(inspect, "modulesbyfile", {})
        modules[name] = "__main__"
        return name
