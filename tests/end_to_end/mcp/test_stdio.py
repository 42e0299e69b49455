"""The server as a process: what goes over its streams, and that nothing is left when it ends, however that comes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from kernelexec.mcp.stdio import OVERLONG, LineReader, make_parse_error
from tests.conftest import Command
from tests.support.command_line import (
    AWAY,
    BOUND,
    COMMAND,
    END_STATUS,
    IMPATIENT,
    STUBBORN,
    appears,
    environment,
    names,
    refused,
)
from tests.support.mcp_clients import BOTH_ERAS, ERAS, connected, raw, record_of, text_of, without_head
from tests.support.mcp_in_memory import InMemory
from tests.support.pace import slow, until


@pytest.mark.parametrize(
    ("end", "era"),
    [
        (None, "auto"),
        pytest.param(signal.SIGTERM, "auto", marks=pytest.mark.nightly),  # in the gate its containers end, and one over HTTP
        *(pytest.param(end, "legacy", marks=pytest.mark.nightly) for end in (signal.SIGINT, None)),
    ],
)
def test_everything_ends_also_while_a_cell_runs(end: signal.Signals | None, era: str, tmp_path: Path, short_path: Path) -> None:
    private = short_path / "private"
    private.mkdir(mode=0o700)
    with raw(tmp_path, era, *IMPATIENT, TMPDIR=str(private), KERNELEXEC_RUNTIME_DIR=str(private)) as client:
        client.call("execute_code", code=STUBBORN)
        appears(client.process, tmp_path / "workspaces" / "default" / "begun")  # type: ignore[arg-type]
        family = psutil.Process(client.process.pid).children(recursive=True)
        assert len(family) >= 2
        if end is None:
            assert client.process.stdin is not None
            client.process.stdin.close()
            client.process.stdin = None
        else:
            client.process.send_signal(end)
        status = client.process.wait(BOUND)
        gone, left = psutil.wait_procs(family, timeout=BOUND)
        assert left == []
        assert len(gone) == len(family)
        messages, stderr = client.end()
    assert status == END_STATUS[end]
    assert all(message["jsonrpc"] == "2.0" for message in messages)
    assert "Traceback" not in stderr
    until(lambda: names(private) == [])


@pytest.mark.parametrize("era", ERAS)
def test_a_cancelled_request_interrupts_its_cell_and_the_kernel_is_in_step(era: str, tmp_path: Path) -> None:
    with raw(tmp_path, era) as client:
        client.answer(client.call("execute_code", code="x = 5"))
        number = client.call("execute_code", code="open('begun', 'w').close()\nimport time\ntime.sleep(600)", timeout=700)
        appears(client.process, tmp_path / "workspaces" / "default" / "begun")  # type: ignore[arg-type]
        client.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}})
        text = client.answer(client.call("execute_code", code="print(x)"))["result"]["content"][0]["text"]
        assert without_head(text) == "5\n"
        client.process.terminate()
        messages, _ = client.end()
    assert not [message for message in messages if message.get("id") == number and "result" in message]


@pytest.mark.nightly  # in the gate it is shown in memory, and that messages go out during a call by questions of cells
@pytest.mark.parametrize("era", BOTH_ERAS)
def test_progress_comes_while_a_call_blocks(era: str, tmp_path: Path) -> None:
    with raw(tmp_path, era) as client:
        client.progress = "mine"
        client.answer(client.call("list_sessions"))
        client.answer(client.call("execute_code", code="1"))
        code = "print('at work', flush=True)\nimport os, time\nwhile not os.path.exists('go'): time.sleep(0.02)"
        called = client.call("execute_code", code=code)
        first, second = (client.hear(": at work")["params"] for _ in range(2))
        (tmp_path / "workspaces" / "default" / "go").touch()
        record = client.answer(called)["result"]["_meta"]["kernelexec/result"]
    assert 0 < first["progress"] < second["progress"]
    for progress in (first, second):
        assert progress["progressToken"] == "mine"
        assert progress["message"] == f"{progress['progress']:.0f} s: execution_id {record['execution_id']}: at work"


def test_a_call_that_does_not_say_how_long_it_waits_returns_after_the_operators_time(tmp_path: Path) -> None:
    with connected(InMemory(tmp_path, "--wait", "0.2"), "auto") as agent:
        answer = agent.call("execute_code", code="import time; time.sleep(60)")
        assert record_of(answer)["status"] == "running"
        assert "a call blocks for 0.2 s" in (agent.client.instructions or "")


@pytest.mark.parametrize("era", ERAS)
def test_nothing_but_the_protocol_is_on_stdout(era: str, tmp_path: Path) -> None:
    code = "import os, sys\nprint('printed')\nos.write(1, b'raw\\n')\nos.system('echo shell')\nprint('err', file=sys.stderr)"
    with raw(tmp_path, era) as client:
        answer = client.answer(client.call("execute_code", code=code))
        text = answer["result"]["content"][0]["text"]
        assert all(word in text for word in ("printed", "raw", "shell", "err"))
        client.process.terminate()
        messages, stderr = client.end()
    assert [message["jsonrpc"] for message in messages] == ["2.0"] * len(messages)
    [line] = stderr.splitlines()
    assert "code runs on this machine" in line


def test_a_line_that_is_no_message_is_answered_and_harms_no_other(tmp_path: Path) -> None:
    call = {"name": "execute_code", "arguments": {"code": "print('\ud800')"}}
    with raw(tmp_path, "legacy") as client:
        for line, number in (
            (b"{", None),
            (b"[]", None),
            (b"\xff\xfe", None),
            (json.dumps({"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": call}).encode(), 77),
            (b'{"jsonrpc": "2.0", "id": 78, "method": "tools/call", "params": ' + b"[" * 100_000 + b"}", None),
        ):
            client.write(line)
            answer = client.answer()
            assert (answer["id"], answer["error"]["code"]) == (number, -32700)
            assert "Invalid line" in answer["error"]["message"]
        client.write(b"")
        assert "2" in client.answer(client.call("execute_code", code="1 + 1"))["result"]["content"][0]["text"]


def test_a_client_that_stops_reading_does_not_keep_the_server(tmp_path: Path) -> None:
    with raw(tmp_path, "legacy") as client:
        for _ in range(50):  # more than a pipe holds
            client.ask("tools/list")
        begun = client.call("execute_code", code="open('begun', 'w').close()")
        assert begun
        client.process.terminate()
        assert client.process.wait(BOUND) == 0


def test_a_client_whose_pipes_break_ends_the_server(tmp_path: Path) -> None:
    with raw(tmp_path, "legacy") as client:
        assert client.process.stdout is not None
        client.process.stdout.close()
        client.ask("tools/list")
        assert client.process.wait(BOUND) == 0
        client.process.stdout = None


def test_a_file_can_be_standard_input(tmp_path: Path) -> None:
    (tmp_path / "given").write_text("{\n")
    with (tmp_path / "given").open() as value:
        words = [COMMAND, "mcp", "--isolation", "local"]
        done = subprocess.run(
            words, cwd=tmp_path, env=environment(), stdin=value, capture_output=True, check=False, timeout=BOUND
        )
    assert done.returncode == 0
    assert json.loads(done.stdout)["error"]["code"] == -32700


def test_without_a_choice_of_isolation_it_refuses_at_once(tmp_path: Path, in_process: Command) -> None:
    done = in_process(tmp_path, "mcp", KERNELEXEC_FORCE_CONTAINER="1", DOCKER_HOST=AWAY)
    assert "containers by default" in refused(done)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        (("--timeout", "0"), "timeout=0"),
        (("--workspace", " "), "must not be empty"),
        (("--isolation", "locl"), "did you mean 'local'"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(
    option: tuple[str, str], reason: str, tmp_path: Path, in_process: Command
) -> None:
    chosen = () if option[0] == "--isolation" else ("--isolation", "local")
    assert reason in refused(in_process(tmp_path, "mcp", *chosen, *option))


def test_without_fastmcp_the_way_to_install_it_is_reported(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom importlib.machinery import PathFinder\nfind = PathFinder.find_spec\n"
        "PathFinder.find_spec = classmethod(lambda cls, name, *rest: None if name == 'fastmcp' else find(name, *rest))\n"
        "sys.argv = ['kernelexec', 'mcp', '--isolation', 'local']\nfrom kernelexec.cli import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert "pip install fastmcp" in refused(done)


def test_the_command_line_does_not_import_it_for_other_commands() -> None:
    code = (
        "import sys\nsys.argv = ['kernelexec', '--help']\nfrom kernelexec.cli import main\n"
        "try:\n    main()\nfinally:\n    assert 'fastmcp' not in sys.modules and 'mcp' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_options_reach_the_sessions(tmp_path: Path) -> None:
    options = ("--workspace", str(tmp_path / "there"), "--timeout", str(slow(2)))
    with connected(InMemory(tmp_path, *options), "legacy") as agent:
        answer = agent.call("execute_code", code="import os, time\nprint(os.getcwd())\ntime.sleep(600)")
        head, *_, output = text_of(answer).split("\n", 2)
        assert head.startswith("[error · exit code 124 · ended by timeout · ")
        assert str(tmp_path / "there" / "default") in output


def lines_of(content: bytes, limit: int) -> list[bytes]:
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    try:
        lines = LineReader(reading, limit)
        return list(iter(lines.read_line, None))
    finally:
        os.close(reading)


def test_lines_are_taken_apart_and_bounded() -> None:
    assert lines_of(b"a\n\nbc\nunfinished", 100) == [b"a", b"", b"bc"]
    assert lines_of(b"x" * 60_000 + b"\nafter\n", 100) == [OVERLONG, b"after"]
    assert lines_of(b"x" * 100 + b"\n" + b"x" * 101 + b"\nafter\n", 100) == [b"x" * 100, OVERLONG, b"after"]


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_standard_descriptor_is_not_taken_by_another_file(closed: int) -> None:
    code = (
        "import os, sys\nfrom kernelexec.mcp.stdio import StdioTransport\n"
        f"report, stdout = os.dup(1), os.fstat(1)\nos.close({closed})\n"
        "transport = StdioTransport(print)\n"
        "numbers = [transport._in, transport._out]\n"
        "links = [os.readlink(f'/proc/self/fd/{fd}') for fd in range(3)]\n"
        "os.write(report, repr((min(numbers) > 2, links[0], links[1] == links[2])).encode())"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("(True, '/dev/null', True)", "")


def test_a_refusal_names_the_id_only_where_it_is_one() -> None:
    def number(line: bytes) -> Any:
        return json.loads(make_parse_error(line))["id"]

    assert number(b'{"id": 5}') == 5
    assert number(b'{"id": "five"}') == "five"
    assert number(b'{"id": {}}') is None
    assert number(b"5") is None
