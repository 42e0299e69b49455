"""Fixtures of the tests of adapters."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture
def collect_garbage() -> Iterator[None]:
    """Free what a framework leaves open before the test ends, so that its warnings appear in no other test."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def import_ag2() -> None:
    """Import AG2 for its first test: it takes five seconds, which each worker would need for its collection of tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what AG2 imports
        import autogen.coding.func_with_reqs  # noqa: F401
