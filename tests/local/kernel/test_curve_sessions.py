"""Sessions whose kernels are reached by encrypted tcp do what all sessions do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelexec import Executor, Session, session_resources
from kernelexec.config import Config
from kernelexec.provisioning import LocalBackend
from tests.contract.launcher.test_launcher import (
    test_displays_and_prints_keep_their_order,
    test_figures_are_shown_without_being_asked_for_and_saved,
    test_output_by_every_way_is_in_its_own_cell,
    test_stdout_and_stderr_keep_their_order,
    test_what_a_thread_of_an_earlier_cell_prints_is_in_the_running_cell,
)
from tests.contract.session.test_restart import (
    test_a_cell_whose_reply_is_too_large_is_what_its_outputs_say,
    test_a_death_between_cells_is_reported_though_a_restart_came_between,
    test_waiting_cells_run_in_the_new_kernel_and_their_state_stays,
    test_what_a_restart_cost_is_reported_by_the_next_result,
)
from tests.contract.test_contract import (
    test_a_cell_that_raises_is_a_result_with_its_output,
    test_a_chatty_loop_is_ended_by_the_wall_clock,
    test_a_timeout_keeps_state_and_output_and_step,
    test_state_lasts_from_cell_to_cell,
    test_two_kernels_do_not_see_each_other,
    test_unicode_survives_both_ways,
    test_wait_returns_early_and_the_cell_goes_on,
)
from tests.contract.test_resilience import (
    test_a_timeout_that_the_cell_swallows,
    test_input_without_an_answer,
    test_the_kernel_dies,
)
from tests.hostile.test_floods import test_ten_megabytes_come_whole_where_the_budget_allows
from tests.support.pace import BOUND

pytestmark = pytest.mark.nightly

__all__ = [
    "test_a_cell_that_raises_is_a_result_with_its_output",
    "test_a_cell_whose_reply_is_too_large_is_what_its_outputs_say",
    "test_a_chatty_loop_is_ended_by_the_wall_clock",
    "test_a_death_between_cells_is_reported_though_a_restart_came_between",
    "test_a_timeout_keeps_state_and_output_and_step",
    "test_a_timeout_that_the_cell_swallows",
    "test_displays_and_prints_keep_their_order",
    "test_figures_are_shown_without_being_asked_for_and_saved",
    "test_input_without_an_answer",
    "test_output_by_every_way_is_in_its_own_cell",
    "test_state_lasts_from_cell_to_cell",
    "test_stdout_and_stderr_keep_their_order",
    "test_ten_megabytes_come_whole_where_the_budget_allows",
    "test_the_kernel_dies",
    "test_two_kernels_do_not_see_each_other",
    "test_unicode_survives_both_ways",
    "test_wait_returns_early_and_the_cell_goes_on",
    "test_waiting_cells_run_in_the_new_kernel_and_their_state_stays",
    "test_what_a_restart_cost_is_reported_by_the_next_result",
    "test_what_a_thread_of_an_earlier_cell_prints_is_in_the_running_cell",
]


def encrypted(config: Config, *, workspace: Path, **_: object) -> LocalBackend:
    return LocalBackend(config, str(workspace), transport="curve")


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_resources, "backend_for", encrypted)
        with Executor("local", workspace=tmp_path_factory.mktemp("workspaces")) as opened:
            yield opened


def test_the_kernels_here_are_encrypted(session: Session) -> None:
    session.execute("1")
    assert session.connection_file is not None
    assert '"curve_publickey"' in Path(session.connection_file).read_text(encoding="utf-8")


def test_a_hundred_thousand_prints_are_all_there_in_order(session: Session) -> None:
    result = session.execute("for n in range(100_000): print(n)", timeout=BOUND)
    expected = "".join(f"{n}\n" for n in range(100_000))
    assert (result.status, result.stdout) == ("ok", expected)
