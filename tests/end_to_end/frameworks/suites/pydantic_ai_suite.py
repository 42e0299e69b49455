"""Pydantic-AI's conformance suite for workspaces, on sessions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator

import pytest
from pydantic_ai.workspaces import WorkspaceBackend, WorkspaceRef
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from kernelexec import Executor
from kernelexec.adapters.pydantic_ai import SessionWorkspace

CONFIG = {"rules": {"dangers": False}, "container": {"image": os.environ["SUITE_IMAGE"]}}


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    with Executor(os.environ["SUITE_ISOLATION"], workspace=tmp_path_factory.mktemp("workspaces"), config=CONFIG) as opened:
        yield opened


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class TestSessionWorkspace(WorkspaceBackendSuite):
    @pytest.fixture
    def backend(self, executor: Executor) -> WorkspaceBackend:
        return SessionWorkspace(executor)

    @pytest.fixture
    def fresh_backend(self, executor: Executor) -> Callable[[], WorkspaceBackend]:
        return lambda: SessionWorkspace(executor)

    @pytest.fixture
    def attach_backend(self, executor: Executor) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        return lambda ref: SessionWorkspace(executor, ref)

    @pytest.fixture
    def destroy_environment(self, executor: Executor) -> Callable[[WorkspaceBackend], Awaitable[None]]:
        async def destroy(backend: WorkspaceBackend) -> None:
            assert backend.ref is not None
            await asyncio.to_thread(executor.close_session, backend.ref.id)

        return destroy
