"""Cases that are alike: a few of them are in the gate, the others are tried at night."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest


def at_night(*cases: Any) -> list[Any]:
    """Return these as parameters that are tried at night."""
    return [pytest.param(case, marks=pytest.mark.nightly) for case in cases]


def named_cases(cases: Mapping[str, Any], gate: Collection[str]) -> list[Any]:
    """Return parameters with these names, one or a tuple of several each; those in ``gate`` are tried in the gate too."""
    if not cases.keys() >= set(gate):
        raise ValueError(f"there are no cases {sorted(set(gate) - cases.keys())}")
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), id=name, marks=() if name in gate else pytest.mark.nightly
        )
        for name, case in cases.items()
    ]
