"""The module of a cell's frames, found without a search.

- Checked for: ipykernel 7.4.0, CPython 3.11 to 3.14.
- Gain: 1.3 ms a cell that fails; a millisecond for each frame once pandas is imported.
- Obsolete when: ``test_the_module_of_a_cell_is_searched_for``.
"""

from __future__ import annotations

import inspect
import os
from typing import Any

from ipykernel.compiler import XCachingCompiler, get_tmp_hash_seed, murmur2_x86


class Compiler(XCachingCompiler):
    """ipykernel's compiler, which also registers with ``inspect`` the module of each cell.

    A traceback asks ``inspect`` for each frame's module, twice. For an unknown file ``inspect`` looks at all modules.
    """

    def get_code_name(self, raw_code: str, code: str, number: int) -> Any:
        """Return the file name of a cell."""
        try:
            name = super().get_code_name(raw_code, code, number)
        except OSError:  # no directory for temporary files can be written now; the name is that of no file
            name = f"{os.environ.get('TMPDIR', '/tmp')}/ipykernel_{os.getpid()}/{murmur2_x86(raw_code, get_tmp_hash_seed())}.py"  # noqa: S108
        modules: dict[str, str] = getattr(inspect, "modulesbyfile", {})
        modules[name] = "__main__"
        return name
