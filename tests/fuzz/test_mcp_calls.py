"""Five hundred calls, at night two thousand, that mostly make no sense: each is answered, and the server is none the worse."""

from __future__ import annotations

import json
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.command_line import BOUND, names
from tests.support.mcp_clients import ERAS, Raw, raw
from tests.support.pace import until

SEED = int(os.environ.get("KERNELEXEC_TEST_SEED", "20261121"))
CALLS = 2000
BATCH = 20
TOOLS = {
    "execute_code": ["code", "session", "language", "timeout", "wait", "request_id"],
    "execute_command": ["command", "timeout", "work_dir", "session", "wait", "request_id"],
    "wait_execution": ["execution_id", "wait", "cursor", "session"],
    "read_output": ["execution_id", "offset", "limit", "grep", "session"],
    "interrupt_kernel": ["session"],
    "restart_kernel": ["session"],
    "create_session": [],
    "list_sessions": [],
    "close_session": ["session"],
    "list_variables": ["session"],
    "set_variables": ["variables", "session"],
    "get_variable": ["name", "session"],
    "start_background": ["command", "work_dir", "session"],
    "background_output": ["command_id", "lines", "session"],
    "kill_background": ["command_id", "session"],
    "list_background": ["session"],
    "run_tests": ["cases", "code", "timeout", "session"],
    "install_packages": ["packages", "session", "wait"],
    "list_files": ["path", "recursive", "pattern", "session"],
    "read_file": ["path", "offset", "limit", "session"],
    "write_file": ["path", "content", "append", "session"],
    "edit_file": ["path", "old_text", "new_text", "replace_all", "session"],
    "delete_files": ["path", "recursive", "include", "exclude", "session"],
    "checkpoint": ["name", "session"],
    "restore": ["checkpoint", "session"],
    "undo": ["cells", "session"],
    "branch": ["name", "session"],
    "promote": ["session"],
}
COUNTS = ["timeout", "wait", "cursor", "offset", "limit", "cells"]
PATTERNS = ["1", "(", "(?i)x|y", "(a+)+$", "\\p{L}", "[", ""]
NUMBERS: list[Any] = [0, 1, -1, 0.001, 1e-9, 1e308, -1e308, 2**31, 2**63, -(2**63), 2**64, 10**400, float("nan"), float("inf")]
WORDS = [
    "",
    " ",
    "default",
    "two",
    "x",
    "../x",
    "/",
    "a" * 65,
    "a" * 100_000,
    "\0",
    "a\0b",
    "\ud800",
    "\u202e",
    "🦊" * 1000,
    "nul",
]


class Maker:
    """Makes calls, from one seed. What might run is a comment or a number, so that it harms nothing."""

    def __init__(self, seed: int, known: list[str]) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a test's numbers are no secrets
        self.known = known  # executions that there are

    def text(self) -> str:
        if self.random.random() < 0.5:
            return self.random.choice(WORDS)
        codes = (self.random.choice([128, 0x3000, 0x10FFFF]) for _ in range(self.random.randrange(40)))
        return "".join(chr(self.random.randrange(top)) for top in codes)

    def value(self, depth: int = 0) -> Any:
        kind = self.random.randrange(9 if depth < 4 else 6)
        if kind < 3:
            return self.text()
        if kind < 5:
            return self.random.choice(NUMBERS)
        if kind == 5:
            return self.random.choice([None, True, False])
        if kind == 6:
            return self.nested(self.random.choice([1, 10, 90, 150]))
        if kind == 7:
            return [self.value(depth + 1) for _ in range(self.random.randrange(5))]
        return {self.text(): self.value(depth + 1) for _ in range(self.random.randrange(5))}

    def nested(self, depth: int) -> Any:
        actual: Any = 1
        for _ in range(depth):
            actual = [actual] if self.random.random() < 0.5 else {"a": actual}
        return actual

    def harmless(self) -> str:
        return "# " + " ".join(self.text().split()) if self.random.random() < 0.7 else "print(1)"

    def arguments(self, tool: str) -> dict[str, Any]:
        actual: dict[str, Any] = {}
        for name in TOOLS.get(tool, ["code", "x"]):
            chance = self.random.random()
            if name in ("code", "command"):
                actual[name] = self.harmless() if chance < 0.6 else self.random.choice(["", " ", None, 5, [], "\0", "\ud800"])
            elif name == "session":
                actual[name] = self.random.choice(["default", "two"]) if chance < 0.4 else f" {self.text()}"
            elif name == "execution_id" and chance < 0.7:
                actual[name] = self.random.choice(self.known)
            elif name in COUNTS and chance < 0.5:
                actual[name] = self.random.choice(NUMBERS)
            elif name == "grep" and chance < 0.5:
                actual[name] = self.random.choice(PATTERNS)
            elif chance < 0.2:
                actual[name] = self.value()
        if self.random.random() < 0.2:
            actual[self.text()] = self.value()
        return actual

    def call(self) -> tuple[str, dict[str, Any]]:
        some = [name for name in TOOLS if name != "create_session"]  # of which there would be hundreds
        tool = self.random.choice([*some, "execute_code", "wait_execution", "read_output", self.text()])
        if tool == "restart_kernel" and self.random.random() < 0.95:  # a kernel takes its time
            return tool, {"session": self.value()} | {self.text(): 1}
        return tool, self.arguments(tool)


def makes_sense(answer: dict[str, Any]) -> bool:
    """Whether an answer is an error with a message, or a result with something to read."""
    if "error" in answer:
        return bool(answer["error"]["message"]) and isinstance(answer["error"]["code"], int)
    texts = [block["text"] for block in answer["result"]["content"] if block["type"] == "text"]
    return any(text.strip() for text in texts) and not texts[0].startswith(
        "Error calling tool"
    )  # which is how an error of ours would come


def cost(client: Raw) -> tuple[int, int]:
    """What the server takes with both sessions open, whichever were closed before."""
    for session in ("default", "two"):
        client.answer(client.call("execute_code", code="1", session=session))
    process = psutil.Process(client.process.pid)
    return process.memory_info().rss, process.num_fds()


@pytest.mark.parametrize("era", ERAS)
def test_every_call_is_answered_and_the_server_is_none_the_worse(
    era: str, tmp_path: Path, short_path: Path, pytestconfig: pytest.Config
) -> None:
    print("seed", SEED)
    batches = CALLS // BATCH if pytestconfig.getoption("nightly") else CALLS // BATCH // 4
    private = short_path / "private"
    private.mkdir(mode=0o700)
    unclear: list[Any] = []
    before = (0, 0)
    (tmp_path / "wheels").mkdir()
    options = ("--packages-from", str(tmp_path / "wheels"))
    with (
        raw(tmp_path, era, *options, TMPDIR=str(private), KERNELEXEC_RUNTIME_DIR=str(private)) as client,
        ThreadPoolExecutor(1) as writer,
    ):
        known = []
        for session in ("default", "two"):
            answer = client.answer(client.call("execute_code", code="print('a' * 1000)", session=session))
            known.append(answer["result"]["_meta"]["kernelexec/result"]["execution_id"])
        maker = Maker(SEED, known)
        for number in range(batches):
            calls = [maker.call() for _ in range(BATCH)]
            asking = writer.submit(lambda pairs: [client.call(tool, **settings) for tool, settings in pairs], calls)
            answers = [client.answer() for _ in calls]  # both at once: pipes hold less than a batch
            assert sorted(answer["id"] for answer in answers) == asking.result()
            unclear += [answer for answer in answers if not makes_sense(answer)]
            client.lines.clear()
            before = cost(client) if number == batches // 4 else before
        until(lambda: cost(client)[1] - before[1] <= 4)  # what was closed last may have its descriptors for a moment more
        after = cost(client)
        family = psutil.Process(client.process.pid).children(recursive=True)
        alive = client.answer(client.call("execute_code", code="print(6 * 7)", session="two"))
        client.process.terminate()
        _, stderr = client.end()
    assert json.dumps(unclear[:3]) == "[]"
    assert "42" in alive["result"]["content"][0]["text"]
    assert after[0] - before[0] < 64 * 2**20
    assert psutil.wait_procs(family, timeout=BOUND)[1] == []
    until(lambda: names(private) == [])
    assert "Traceback" not in stderr
