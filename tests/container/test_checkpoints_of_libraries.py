"""Checkpoints of kernels whose libraries have threads of their own: the copy works with them again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelexec import Executor, Session
from tests.support.engine import IMAGE, needs_engine
from tests.support.takeovers import wait_until

pytestmark = [needs_engine, pytest.mark.nightly]
ARROW = """
import io, pandas, pyarrow.compute, pyarrow.csv
table = pyarrow.csv.read_csv(io.BytesIO(b"a,b\\n" + b"1,2\\n" * 500_000))
pyarrow.compute.sum(table["b"]).as_py()
"""
OPENMP = """
import numpy as np
from sklearn.cluster import KMeans
points = np.arange(60_000.0).reshape(-1, 6)
int(KMeans(2, n_init=1, random_state=0).fit(points).labels_.size)
"""
OPENBLAS = """
import numpy as np
half = np.full((600, 600), 0.5)
float((half @ half)[0, 0])
"""
#: The cell that has a library start its threads and ends with a figure, and the library of such a thread.
WORKS = {"Arrow": (ARROW, "libarrow"), "OpenMP": (OPENMP, "libgomp"), "OpenBLAS": (OPENBLAS, "openblas")}
#: The libraries whose code the native threads of the kernel wait in.
LIBRARIES = """
import sys
look = next(module for name, module in sys.modules.items() if name.endswith("checkpoints.fork_safety"))
mappings = look._read_mappings()
print(*(library for task in look._TASKS.iterdir() for library in look._find_libraries(task, mappings)))
"""


@pytest.fixture
def parallel(tmp_path: Path) -> Iterator[Session]:
    """A session whose libraries start threads, however few processors there are."""
    threads = {"OMP_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "4", "ARROW_IO_THREADS": "4"}
    config = {"checkpoints": "named"}  # another one may end the threads
    with Executor(image=IMAGE, workspace=tmp_path, env=threads, quiet=True, config=config) as executor:
        yield executor.session()


@pytest.mark.parametrize("name", WORKS)
def test_libraries_with_threads_work_again_in_a_copy(name: str, parallel: Session) -> None:
    code, library = WORKS[name]
    before = parallel.execute(code)
    assert before.ok, before.text
    wait_until(lambda: library in parallel.execute(LIBRARIES).text)  # threads that spin after their work wait in a moment
    for _ in range(2):  # the second checkpoint is one of a kernel that has gone on from the first
        checkpoint = parallel.checkpoint()
        parallel.execute("added = 1")
        assert parallel.restore(checkpoint).gone == ("added",)
        assert parallel.execute(code, timeout=60).value == before.value
