"""Fixtures of the tests of adapters."""

from __future__ import annotations

import gc
import sys
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
    """Import AG2 for its first test: it takes seconds, which each worker would need for its collection of tests."""
    unneeded = {"anthropic", "google.genai"} - sys.modules.keys()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what AG2 imports
        sys.modules.update(dict.fromkeys(unneeded))  # type: ignore[arg-type] # AG2 does without them, in half of the time
        import autogen.coding.func_with_reqs  # noqa: F401
    for name in unneeded:
        del sys.modules[name]
