"""Many agents on one server over HTTP, for minutes, with faults: no answer may be wrong, memory stays flat, nothing is left.

python -m tests.load                              50 agents for 10 minutes, on local kernels
python -m tests.load --agents 8 --minutes 0.3     a short one
python -m tests.load --image kernelexec/data-science   in containers, which are also removed by others

Exit status 1 where anything was wrong. It speaks to this machine only, and stops by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import signal
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
from fastmcp import Client
from fastmcp.client.client import CallToolResult
from fastmcp.client.transports import StreamableHttpTransport

from kernelexec.docker.labels import WORKSPACE
from tests.benchmarks.mcp import served
from tests.support.mcp_clients import WHOLE

#: What one agent pauses between two calls, in seconds, on average; how often a fault comes, of all its turns.
_THINKS, _FAULTS = 2.0, 0.05
#: What a server may grow by in the second half of the time: by the first each session remembers as many results as it may.
_EXTRA_BYTES, _EXTRA_SHARE = 96 * 2**20, 0.15
_CALL_SECONDS, _LOOKED_AT = 120.0, 5.0


class Wrong(Exception):
    """An answer that is not what it must be."""


class Agent:
    """One agent: it knows what its kernel must know, and compares."""

    def __init__(self, url: str, number: int, counts: Counter[str], *, contained: bool) -> None:
        self.name = f"agent-{number}"
        self._faults = [self._dies, self._leaves, self._is_removed if contained else self._is_killed]
        self._url, self._counts = url, counts
        self._random = random.Random(number)  # noqa: S311 - a test's numbers are no secrets
        self._number = 0
        self._possible: set[int | None] = {None}
        self._turns = 0

    def client(self) -> Client[Any]:
        transport = StreamableHttpTransport(self._url, headers={"x-kernelexec-agent": self.name})
        return Client(transport, timeout=_CALL_SECONDS, mode=self._random.choice(["auto", "legacy"]))

    async def work(self, until: float) -> None:
        while time.monotonic() < until:
            async with self.client() as client:
                for _ in range(20):
                    if time.monotonic() >= until:
                        break
                    await self._turn(client)
                    await asyncio.sleep(self._random.uniform(0, 2 * _THINKS))

    async def _turn(self, client: Client[Any]) -> None:
        kinds: list[Callable[[Client[Any]], Awaitable[None]]]
        kinds = [self._remembers] * 4 + [self._fails, self._prints, self._runs, self._waits, self._writes, self._draws]
        kind = self._random.choice(kinds)
        if self._random.random() < _FAULTS:
            kind = self._random.choice(self._faults)
        await kind(client)
        self._counts[kind.__name__.strip("_")] += 1

    async def _ask(self, client: Client[Any], code: str, **more: Any) -> tuple[str, dict[str, Any]]:
        answer = await client.call_tool("execute_code", {"code": code, **more}, raise_on_error=False, meta=WHOLE)
        output = _text(answer)
        if answer.is_error or answer.meta is None:
            raise Wrong(f"{self.name}: {code!r} was refused: {output[:300]}")
        record: dict[str, Any] = answer.meta["kernelexec/result"]
        self._follow(record["state"], output)
        return output, record

    def _follow(self, state: object, notes: str) -> None:
        """Note which values its variable may have after a result."""
        if state == "lost":
            self._possible = {None}
        elif state == "restored" and "have changed in them is lost" in notes:
            self._possible = {None, *range(1, self._number + 1)}

    async def _remembers(self, client: Client[Any]) -> None:
        """Its own variable has its own value, or an answer has said that the state was lost or is older."""
        self._number += 1
        output, record = await self._ask(client, f"print('was', globals().get('x')); x = {self._number}; '{self.name}'")
        value = output.partition("\nwas ")[2].split("\n")[0]
        possible = [str(each) for each in self._possible]
        if value not in possible or f"'{self.name}'" not in output or record["status"] != "ok":
            raise Wrong(f"{self.name}: one of {possible[-9:]} was expected: {output[:300]}")
        self._possible = {self._number}

    async def _fails(self, client: Client[Any]) -> None:
        output, record = await self._ask(client, f"raise ValueError({self.name!r})")
        if record["status"] != "error" or f"ValueError: {self.name}" not in output or record["exit_code"] != 1:
            raise Wrong(f"{self.name}: an error was expected: {output[:300]}")

    async def _prints(self, client: Client[Any]) -> None:
        output, record = await self._ask(client, f"for n in range(20000): print({self.name!r}, n)")
        if f"{self.name} 0\n" not in output or f"{self.name} 19999" not in output or not record["total_bytes"] > 20_000:
            raise Wrong(f"{self.name}: its lines were expected: {output[:300]}")

    async def _runs(self, client: Client[Any]) -> None:
        command = f"echo {self.name}; echo err >&2; exit 7"
        answer = await client.call_tool("execute_command", {"command": command}, raise_on_error=False)
        actual = answer.structured_content or {}
        self._follow(actual.get("state"), _text(answer))
        if (actual.get("exit_code"), actual.get("stdout"), actual.get("stderr")) != (7, f"{self.name}\n", "err\n"):
            raise Wrong(f"{self.name}: {actual}")

    async def _waits(self, client: Client[Any]) -> None:
        output, record = await self._ask(client, "import time; print('begun'); time.sleep(30)", timeout=0.3)
        if record["status"] != "error" or record["interrupted"] != "timeout" or record["exit_code"] != 124:
            raise Wrong(f"{self.name}: a timeout was expected: {output[:300]}")

    async def _writes(self, client: Client[Any]) -> None:
        text = f"{self.name} {self._random.random()}"
        await client.call_tool("write_file", {"path": "note.txt", "content": text})
        output, _ = await self._ask(client, "print(open('note.txt').read())")
        if text not in output:
            raise Wrong(f"{self.name}: {text!r} was expected: {output[:300]}")

    async def _draws(self, client: Client[Any]) -> None:
        code = "import matplotlib.pyplot as plt; plt.figure(figsize=(1, 1)); plt.plot([1, 2]); plt.show()"
        answer = await client.call_tool("execute_code", {"code": code}, raise_on_error=False)
        self._follow((answer.meta or {})["kernelexec/result"]["state"], _text(answer))
        if [block.type for block in answer.content][:2] != ["text", "image"]:
            raise Wrong(f"{self.name}: a picture was expected: {_text(answer)[:300]}")

    async def _dies(self, client: Client[Any]) -> None:
        output, record = await self._ask(client, "import os; os._exit(3)")
        if (record["status"], record["exit_code"]) != ("error", 3) or record["state"] not in ("restored", "lost"):
            raise Wrong(f"{self.name}: a death was expected: {output[:300]}")

    async def _is_killed(self, client: Client[Any]) -> None:
        output, _ = await self._ask(client, "import os; print('pid', os.getpid())")
        pid = int(output.partition("pid ")[2].split()[0])
        psutil.Process(pid).send_signal(signal.SIGKILL)  # a kernel of ours: it has just reported itself
        await self._is_reported(client, "restored", "lost")

    async def _is_removed(self, client: Client[Any]) -> None:
        """Remove the container from outside; its host name is its id."""
        output, _ = await self._ask(client, "import socket; print('in', socket.gethostname())")
        container = output.partition("in ")[2].split()[0]
        removing = await asyncio.create_subprocess_exec("docker", "rm", "--force", container, stdout=DEVNULL)
        if await removing.wait():
            raise Wrong(f"{self.name}: its container {container} could not be removed: {output[:300]}")
        await self._is_reported(client, "lost")

    async def _is_reported(self, client: Client[Any], *states: str) -> None:
        output, record = await self._ask(client, "1")  # it may have been sent to the kernel that dies: then it says so
        if record["state"] not in states or (record["status"] != "ok" and record["cause"] != "killed"):
            raise Wrong(f"{self.name}: {' or '.join(states)} was expected: {output[:300]}")
        await self._remembers(client)

    async def _leaves(self, _client: Client[Any]) -> None:
        """Let a client leave during a cell; the next cell must be in step."""
        async with self.client() as other:
            call = asyncio.ensure_future(self._ask(other, "import time; time.sleep(20)"))
            await asyncio.sleep(self._random.uniform(0.0, 0.5))
            call.cancel()
            await asyncio.wait([call])
        self._possible = self._possible if call.cancelled() else {None}


def _text(answer: CallToolResult) -> str:
    return "".join(block.text for block in answer.content if block.type == "text")


async def watch(server: psutil.Process, sizes: list[int]) -> None:
    while True:
        sizes.append(server.memory_info().rss)
        await asyncio.sleep(_LOOKED_AT)


async def load(agents: int, minutes: float, directory: str, image: str | None) -> list[str]:
    counts: Counter[str] = Counter()
    sizes: list[int] = []
    wrong: list[str] = []
    before = set(psutil.Process().children(recursive=True))
    kernels = ("--isolation", "local") if image is None else ("--isolation", "container", "--image", image)
    async with served(directory, kernels=kernels) as url:
        server = psutil.Process().children()[0]
        until = time.monotonic() + minutes * 60
        watching = asyncio.ensure_future(watch(server, sizes))
        working = (Agent(url, n, counts, contained=image is not None).work(until) for n in range(agents))
        outcomes = await asyncio.gather(*working, return_exceptions=True)
        watching.cancel()
        wrong += [repr(item)[:500] for item in outcomes if item is not None]
        family = server.children(recursive=True)
    tenth = max(1, len(sizes) // 10)
    first, last = (sum(part) / len(part) for part in (sizes[-5 * tenth :][:tenth], sizes[-tenth:]))
    print(f"{agents} agents, {minutes:g} minutes: {sum(counts.values())} turns: {dict(counts.most_common())}")
    tenths = [sizes[len(sizes) * n // 10] // 2**20 for n in range(10)] + [sizes[-1] // 2**20]
    print(f"the server's memory, MiB, by tenths of the time: {' '.join(map(str, tenths))}")
    print(f"the server's memory: {first / 2**20:.0f} MiB after half of the time, {last / 2**20:.0f} MiB at the end")
    if last > first * (1 + _EXTRA_SHARE) and last - first > _EXTRA_BYTES:
        wrong.append("memory grew")
    wrong += [f"left behind: {item}" for item in psutil.wait_procs(family, timeout=10)[1]]
    wrong += [f"left behind: {item}" for item in set(psutil.Process().children(recursive=True)) - before]
    return wrong + ([] if image is None else await containers_of(directory))


async def containers_of(directory: str) -> list[str]:
    """The containers that are still there, of sessions in this directory."""
    form = f'{{{{.Label "{WORKSPACE}"}}}} {{{{.Names}}}}'
    listing = await asyncio.create_subprocess_exec("docker", "ps", "--all", "--format", form, stdout=PIPE)
    listed, _ = await listing.communicate()
    return [f"left behind: {line}" for line in listed.decode().splitlines() if line.startswith(directory)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.load", description=__doc__)
    parser.add_argument("--agents", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--image")
    chosen = parser.parse_args()
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # clients that are dropped say much
    with tempfile.TemporaryDirectory() as directory:
        (private := Path(directory, "private")).mkdir(mode=0o700)
        tempfile.tempdir = str(private)
        wrong = asyncio.run(load(chosen.agents, chosen.minutes, f"{directory}/workspaces", chosen.image))
        wrong += [f"left behind: {path}" for path in private.glob("kx*")]
    print("\n".join(wrong[:20]) or "no wrong answer, nothing left behind")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
