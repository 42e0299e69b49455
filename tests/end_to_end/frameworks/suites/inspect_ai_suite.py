"""Inspect's self-check for sandboxes, on a session."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
from inspect_ai.util._sandbox import self_check

from kernelexec.adapters.inspect_ai import KernelSandboxConfig, KernelSandboxEnvironment

vars().update({name: check for name, check in vars(self_check).items() if name.startswith("test_")})
pytestmark = pytest.mark.anyio

OPTIONS = json.loads(os.environ["SUITE_OPTIONS"])
CONFIG = KernelSandboxConfig(isolation=OPTIONS.pop("isolation"), config=OPTIONS)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def sandbox_env(anyio_backend: str) -> AsyncIterator[Any]:
    environments = await KernelSandboxEnvironment.sample_init("task", CONFIG, {})
    yield environments["default"]
    await KernelSandboxEnvironment.sample_cleanup("task", CONFIG, environments, interrupted=False)
    await KernelSandboxEnvironment.task_cleanup("task", CONFIG, cleanup=True)
