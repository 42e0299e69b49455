"""Fixtures of the tests of adapters."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def collect_garbage() -> Iterator[None]:
    """Free what a framework leaves open before the test ends, so that its warnings appear in no other test."""
    yield
    gc.collect()
