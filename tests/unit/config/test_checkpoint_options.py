"""The option of checkpoints: a mode."""

from __future__ import annotations

import pytest

from kernelexec.config import load
from kernelexec.errors import InvalidConfig


@pytest.mark.parametrize("mode", ["auto", "each", "named", "off"])
def test_a_mode_is_chosen_by_its_name(mode: str) -> None:
    assert load("local", config={"checkpoints": mode}).checkpoints == mode
    assert load("local").checkpoints == "auto"


@pytest.mark.parametrize("options", ["always", {"mode": "each"}, 3, None])
def test_other_options_are_refused(options: object) -> None:
    with pytest.raises(InvalidConfig, match="checkpoints"):
        load("local", config={"checkpoints": options})
