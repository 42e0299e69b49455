"""Tables of pandas, polars and pyarrow as values; pyarrow is in a directory of its own, as it starts a thread."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.framework_suites import failures, install_beside, run_suite, runs_suite

pytestmark = pytest.mark.nightly


@runs_suite
def test_tables_are_carried_and_hostile_ones_are_refused(tmp_path: Path) -> None:
    beside = install_beside(tmp_path / "beside", "pyarrow>=16", "polars>=1", "polars-runtime-32")
    outcomes = run_suite("arrow_suite", tmp_path, "local", variables={"PYTHONPATH": str(beside)})
    assert failures(outcomes) == {}
    assert len(outcomes) > 100
