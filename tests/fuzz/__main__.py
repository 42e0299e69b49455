"""Thousands of requests of MCP that mostly make little sense, over HTTP: each is answered, and the server is none the worse.

python -m tests.fuzz                         10,000 messages
python -m tests.fuzz --messages 1000 --seed 7

Exit status 1 where anything was wrong. It speaks to this machine only, and stops by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx2
import psutil

from tests.benchmarks.mcp import served
from tests.fuzz.messages import AGENTS, Message, Messages

#: How many are on their way at once, how long one may take, and how long a stream without an end is listened to, in seconds.
_AT_ONCE, _PATIENCE, _LISTENS = 8, 120.0, 0.2
_LEGACY_SESSIONS = 4
_HANDLE = re.compile(r"ks-[0-9a-f]{32}")
_EXTRA_BYTES, _EXTRA_DESCRIPTORS = 64 * 2**20, 40
_HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "fuzz", "version": "1"}}
_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "fuzz", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
_HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


class Fuzzing:
    """One run against one server."""

    def __init__(self, client: httpx2.AsyncClient, url: str, server: psutil.Process) -> None:
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self._client, self._url = client, url
        self._server = server
        self._handles: set[str] = set()

    async def run(self, seed: int, count: int) -> None:
        tools = (await self.asked("tools/list", {}))["result"]["tools"]
        messages = Messages(seed, tools)
        for _ in range(_LEGACY_SESSIONS):
            messages.sessions.append(await self._greeted())
        first = await self._phase(messages, count // 4)
        last = await self._phase(messages, count - count // 4)
        print(f"with no session open: memory {first[0] >> 20} -> {last[0] >> 20} MiB, descriptors {first[1]} -> {last[1]}")
        if last[0] > first[0] + _EXTRA_BYTES or last[1] > first[1] + _EXTRA_DESCRIPTORS:
            self.wrong.append("the server grew")

    async def _phase(self, messages: Messages, count: int) -> tuple[int, int]:
        """Send so many, have all that they opened closed, and see what the server takes then."""
        created = (messages.message() for _ in range(count))

        async def send() -> None:
            for message in created:
                await self._send(message)

        async with anyio.create_task_group() as tasks:
            for _ in range(_AT_ONCE):
                tasks.start_soon(send)
        answer = await self._called("judge", "execute_code", code="print(6 * 7)")
        if "42" not in json.dumps(answer):
            self.wrong.append(f"a cell came out wrong: {answer}")
        for agent in [*AGENTS, "judge"]:
            open_now = (await self._called(agent, "list_sessions"))["result"]["structuredContent"]["sessions"]
            for session in [item["name"] for item in open_now] + sorted(self._handles):
                await self._called(agent, "close_session", session=session)
        return self._server.memory_info().rss, self._server.num_fds()

    async def _called(self, agent: str, tool: str, **arguments: Any) -> dict[str, Any]:
        return await self.asked("tools/call", {"name": tool, "arguments": arguments}, **{"x-kernelexec-agent": agent})

    async def asked(self, method: str, params: dict[str, Any], **headers: str) -> dict[str, Any]:
        """The answer to a request that makes sense."""
        body = {"jsonrpc": "2.0", "id": 0, "method": method, "params": params | {"_meta": _META}}
        more = {"mcp-protocol-version": "2026-07-28", "mcp-method": method, "mcp-name": str(params.get("name", ""))}
        output = await self._client.post(self._url, json=body, headers=_HEADERS | more | headers)
        return answers(output.text)[-1]

    async def _greeted(self) -> str:
        body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": _HELLO}
        output = await self._client.post(self._url, json=body, headers=_HEADERS)
        session = output.headers["mcp-session-id"]
        headers = _HEADERS | {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
        await self._client.post(self._url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
        return str(session)

    async def _send(self, message: Message) -> None:
        text = ""
        try:
            with anyio.fail_after(_PATIENCE):
                async with self._client.stream("POST", self._url, content=message.body, headers=message.headers) as output:
                    with anyio.move_on_after(_LISTENS if message.streams else _PATIENCE):
                        async for part in output.aiter_text():
                            text += part
        except (TimeoutError, httpx2.HTTPError) as exc:
            self._note(message, f"no answer: {exc!r}")
            return
        self.counts[str(output.status_code)] += 1
        if output.status_code >= 500:
            self._note(message, f"{output.status_code} {text[:200]}")
        self._handles |= set(_HANDLE.findall(text))
        for answer in answers(text):
            reason = fault(answer, message)
            if reason:
                self._note(message, f"{reason}: {json.dumps(answer)[:300]}")

    def _note(self, message: Message, reason: str) -> None:
        self.wrong.append(f"{reason}\n  sent {message.body[:300]!r}\n  with {str(message.headers)[:300]}")


def answers(text: str) -> list[dict[str, Any]]:
    """The JSON-RPC messages of an answer, plain or as events."""
    lines = [line.removeprefix("data:").strip() for line in text.splitlines() if line.startswith(("data:", "{"))]
    actual = [json.loads(line) for line in lines if line.startswith("{")]
    return [item for item in actual if isinstance(item, dict) and "jsonrpc" in item]


def fault(answer: dict[str, Any], message: Message) -> str:
    """What is wrong with an answer."""
    if "method" in answer:  # of the server's own accord
        return "" if "result" not in answer and "error" not in answer else "a request with a result"
    if ("result" in answer) == ("error" in answer):
        return "neither a result nor an error"
    if "error" not in answer:
        return "" if answer.get("id") == message.id else "another request's answer"
    error = answer["error"]
    if not (isinstance(error.get("code"), int) and isinstance(error.get("message"), str) and error["message"].strip()):
        return "no error with a code and a message"
    if "Traceback" in error["message"] or error["code"] == -32603:
        return "an error of the server's own"
    return ""


async def fuzz(seed: int, count: int, directory: str) -> list[str]:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(served(f"{directory}/workspaces", "--max-sessions", "6"))
        server = psutil.Process().children()[0]
        client = await stack.enter_async_context(httpx2.AsyncClient(timeout=None))
        fuzzing = Fuzzing(client, url, server)
        began = time.monotonic()
        await fuzzing.run(seed, count)
        print(f"{count} messages, seed {seed}, {time.monotonic() - began:.0f} s: {dict(sorted(fuzzing.counts.items()))}")
        family = server.children(recursive=True)
    left = await asyncio.to_thread(psutil.wait_procs, family, timeout=_PATIENCE)
    return fuzzing.wrong + [f"left behind: {item}" for item in left[1]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=20261124)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        (private := Path(directory, "private")).mkdir(mode=0o700)
        tempfile.tempdir = str(private)
        wrong = asyncio.run(fuzz(chosen.seed, chosen.messages, directory))
        wrong += [f"left behind: {path}" for path in private.glob("kx*")]
    print("\n".join(wrong[:20]) or "every message was answered, nothing left behind")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
