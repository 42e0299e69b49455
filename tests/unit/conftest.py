"""The unit tier: no test starts a process or reaches a container engine, its fixtures included."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.support.no_processes import no_processes


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Guard the fixtures of a test."""
    with no_processes():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Guard a test."""
    with no_processes():
        return (yield)
