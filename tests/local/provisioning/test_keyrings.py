"""The kernel's keyrings, which processes of a login share without a file: no cell reads or writes one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelexec import Executor
from tests.support.engine import needs_bubblewrap

CALLS = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
NUMBERS = {"x86_64": (248, 249, 250), "aarch64": (217, 218, 219)}[__import__("platform").machine()]
add, request, control = NUMBERS
results = [
    libc.syscall(add, b"user", b"kernelexec:test", b"value", 5, -3),
    libc.syscall(request, b"user", b"kernelexec:test", None, 0),
    libc.syscall(control, 0, -3, 0),
]
results, errno.errorcode[ctypes.get_errno()]
"""


@pytest.mark.parametrize("isolation", ["local", pytest.param("bubblewrap", marks=needs_bubblewrap)])
def test_a_cell_has_no_keyrings(isolation: str, tmp_path: Path) -> None:
    with Executor(isolation, workspace=tmp_path) as executor:
        assert executor.session().execute(CALLS).text == "([-1, -1, -1], 'ENOSYS')"
