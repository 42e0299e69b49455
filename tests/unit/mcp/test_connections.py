"""Connections of older clients end in any order of requests, and their sessions are closed once."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from kernelexec.mcp.callers import Connections

STEPS = range(8)
pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("has_session", [False, True], ids=["without a session", "with a session"])
@pytest.mark.parametrize("steps", STEPS)
async def test_an_ended_connection_whose_last_request_ends_at_any_moment_closes_its_sessions_once(
    steps: int, *, has_session: bool
) -> None:
    closed: list[str] = []

    async def close(session: str) -> None:
        await anyio.lowlevel.checkpoint()
        closed.append(session)

    connections = Connections(close, lambda _: False, silent_seconds=None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connections.run)
        connections.begin_request("c")
        if has_session:
            connections.add_session("c", "s")
        connections.end("c")
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        connections.end_request("c")
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert closed == ["s"] * has_session


async def test_a_silent_connection_with_a_running_cell_is_kept() -> None:
    closed: list[str] = []

    async def close(session: str) -> None:
        closed.append(session)

    connections = Connections(close, lambda session: session == "busy", silent_seconds=0.0)
    for session in ("busy", "idle"):
        connections.begin_request(session)
        connections.add_session(session, session)
        connections.end_request(session)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connections.run)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert closed == ["idle"]


async def test_room_is_made_by_a_connection_without_open_requests_only() -> None:
    closed: list[str] = []

    async def close(session: str) -> None:
        closed.append(session)

    connections = Connections(close, lambda _: False, silent_seconds=None)
    for name in ("calling", "silent"):
        connections.begin_request(name)
        connections.add_session(name, f"{name}'s")
    assert not await connections.make_room()
    connections.end_request("silent")
    assert await connections.make_room()
    assert not await connections.make_room()
    assert closed == ["silent's"]
