"""Options of checkpoints: a mode alone, or all of them."""

from __future__ import annotations

import pytest

from kernelexec.config import load
from kernelexec.errors import InvalidConfig


@pytest.mark.parametrize("mode", ["auto", "each", "named", "off"])
def test_the_name_of_a_mode_is_enough(mode: str) -> None:
    assert load("local", config={"checkpoints": mode}).checkpoints.mode == mode


def test_all_options_can_be_chosen() -> None:
    chosen = load("local", config={"checkpoints": {"mode": "each", "limit": 3, "memory_bytes": "2g"}}).checkpoints
    assert (chosen.mode, chosen.limit, chosen.memory_bytes) == ("each", 3, 2 * 2**30)
    assert load("local").checkpoints.mode == "auto"


@pytest.mark.parametrize("options", ["always", {"limit": 0}, {"mode": "some"}, 3, {"memory_bytes": 1}])
def test_other_options_are_refused(options: object) -> None:
    with pytest.raises(InvalidConfig, match="checkpoints"):
        load("local", config={"checkpoints": options})
