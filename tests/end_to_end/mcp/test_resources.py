"""What clients read by an address: a notebook, files and output, within bounds, of one's own sessions only."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastmcp.exceptions import McpError
from mcp.types import INVALID_PARAMS

from kernelexec.mcp.server import BLOB_BYTES, TEXT_BYTES
from tests.support.mcp_clients import ERAS, Agent, connected, record_of
from tests.support.mcp_in_memory import InMemory
from tests.support.mcp_server import create_token, serving

PLOT = "import pathlib\npathlib.Path('a b.png').write_bytes(b'\\x89PNG\\r\\n\\x1a\\n\\xff')\nprint('drawn')\n6 * 7"


@pytest.fixture(scope="module", params=ERAS)
def agent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    directory = tmp_path_factory.mktemp("resources")
    with connected(InMemory(directory, "--secret", "TOKEN=env:KX_TOKEN", KX_TOKEN="s3cr3t-value"), request.param) as agent:  # noqa: S106
        yield agent


def read(agent: Agent, address: str) -> tuple[str, str | bytes]:
    """The media type and the content of a resource."""
    (actual,) = agent.do("read_resource", f"kernelexec://sessions/{address}")
    return actual.mime_type, actual.text if hasattr(actual, "text") else base64.b64decode(actual.blob)


def refused(agent: Agent, address: str) -> str:
    with pytest.raises(McpError) as caught:
        read(agent, address)
    assert caught.value.code == INVALID_PARAMS
    return str(caught.value)


def test_the_addresses_are_listed(agent: Agent) -> None:
    listed = {actual.uri_template: actual.mime_type for actual in agent.do("list_resource_templates")}
    assert listed == {
        "kernelexec://sessions/{session}/notebook": "application/x-ipynb+json",
        "kernelexec://sessions/{session}/output/{execution_id}": "text/plain",
        "kernelexec://sessions/{session}/files/{path*}": "application/octet-stream",
    }


def test_a_notebook_a_file_and_output_are_read(agent: Agent) -> None:
    execution = record_of(agent.call("execute_code", code=PLOT, session="Mine"))["execution_id"]
    kind, notebook = read(agent, "Mine/notebook")
    assert kind == "application/x-ipynb+json"
    cells: list[dict[str, Any]] = json.loads(notebook)["cells"]
    assert "".join(cells[-1]["source"]) == PLOT
    assert cells[-1]["outputs"][0]["text"] == ["drawn\n"] or cells[-1]["outputs"][0]["text"] == "drawn\n"
    assert read(agent, f"Mine/output/{execution}") == ("text/plain", "drawn\n")
    assert read(agent, "Mine/files/a%20b.png") == ("image/png", b"\x89PNG\r\n\x1a\n\xff")
    agent.call("write_file", path="d/t.csv", content="a,b\n1,\N{EURO SIGN}\n", session="Mine")
    assert read(agent, "Mine/files/d/t.csv") == ("text/csv", "a,b\n1,\N{EURO SIGN}\n")


def test_unreadable_resources_are_reported(agent: Agent) -> None:
    code = f"""
import os
open('large.txt', 'w').write('x' * ({TEXT_BYTES} + 1))
open('whole.txt', 'w').write('x' * {TEXT_BYTES})
open('large.bin', 'wb').write(bytes([255]) * ({BLOB_BYTES} + 1))
os.symlink('/etc/passwd', 'link')
"""
    agent.call("execute_code", code=code, session="odd")
    assert len(read(agent, "odd/files/whole.txt")[1]) == TEXT_BYTES
    assert f"has {TEXT_BYTES + 1} bytes; the limit of a resource is {TEXT_BYTES}." in refused(agent, "odd/files/large.txt")
    assert f"the limit of a binary resource is {BLOB_BYTES}" in refused(agent, "odd/files/large.bin")
    agent.call("write_file", path="quotes.json", content='"' * (TEXT_BYTES // 2 + 1), session="odd")
    assert f"has {TEXT_BYTES + 2} bytes as JSON; the limit of a resource is {TEXT_BYTES}" in refused(
        agent, "odd/files/quotes.json"
    )
    agent.call("execute_code", code="open('a\\n[kernelexec: b]', 'wb').write(bytes([255]) * 10**6)", session="odd")
    assert "a\\n\\[kernelexec: b] has 1000000 bytes" in refused(agent, "odd/files/a%0A%5Bkernelexec:%20b%5D")
    assert "link" in refused(agent, "odd/files/link")
    assert "nothing.txt" in refused(agent, "odd/files/nothing.txt")
    for outside in ("odd/files/..%2Fother", "odd/files/%2Fetc%2Fpasswd", "odd/files/a/../../x", "..%2Fodd/notebook"):
        assert refused(agent, outside), outside
    assert "No session 'new' is open" in refused(agent, "new/notebook")
    assert "new" not in [row["name"] for row in agent.rows("list_sessions", "sessions")]
    assert "has an execution" in refused(agent, f"odd/output/{'0' * 32}")


def test_secrets_are_masked_or_what_holds_them_is_not_shown(agent: Agent) -> None:
    code = """
import os
token = os.environ['TOKEN']
open('t.txt', 'w').write(token)
open('t.bin', 'wb').write(bytes([255]) + token.encode())
open(token, 'wb').write(bytes([255]) * 700_000)
print(token)
"""
    execution = record_of(agent.call("execute_code", code=code, session="secret"))["execution_id"]
    for address in ("secret/files/t.txt", "secret/notebook", f"secret/output/{execution}"):
        answer = read(agent, address)[1]
        assert isinstance(answer, str)
        assert "TOKEN" in answer, address
        assert "s3cr3t-value" not in answer, address
    assert "contains a secret" in refused(agent, "secret/files/t.bin")
    too_large = refused(agent, "secret/files/s3cr3t-value")
    assert "the limit of a binary resource is" in too_large
    assert "s3cr3t-value has" not in too_large


def test_the_output_of_a_running_cell_is_what_it_is_so_far(agent: Agent) -> None:
    begun = agent.begin("begun", code="print('begun', flush=True)\ninput_ = 1\nwhile True: pass", session="runs")
    assert read(agent, f"runs/output/{record_of(begun)['execution_id']}") == ("text/plain", "begun\n")
    agent.call("interrupt_kernel", session="runs")
    long = agent.call("execute_code", code="print('x' * 2_000_000)", session="runs")
    answer = read(agent, f"runs/output/{record_of(long)['execution_id']}")[1]
    assert isinstance(answer, str)
    assert answer.endswith(f"\n[kernelexec: read_output with offset={TEXT_BYTES} continues]")
    assert len(answer) < TEXT_BYTES + 100
    quotes = agent.call("execute_code", code="print('\"' * 2_000_000)", session="runs")
    answer = read(agent, f"runs/output/{record_of(quotes)['execution_id']}")[1]
    assert isinstance(answer, str)
    assert len(json.dumps(answer)) < TEXT_BYTES + 200
    assert answer.endswith(f"\n[kernelexec: read_output with offset={answer.index(chr(10))} continues]")


def test_a_strangers_session_is_as_good_as_none(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    alice, bob = (create_token(tokens, name) for name in ("alice", "bob"))
    reader = create_token(tokens, "reader", "read")
    invented = "ks-" + "0" * 32
    with serving(tmp_path, "--tokens", str(tokens)) as server:
        with server.client(authorization=f"Bearer {alice}") as agent:
            handle = agent.call("create_session").structured_content["session"]  # type: ignore[index]
            execution = record_of(agent.call("execute_code", code="open('f', 'w').write('hers')", session=handle))[
                "execution_id"
            ]
            assert read(agent, f"{handle}/files/f")[1] == "hers"
            agent.call("execute_code", code="1", session="named")
        for token in (bob, reader):
            with server.client(authorization=f"Bearer {token}") as agent:
                for rest in ("notebook", "files/f", f"output/{execution}"):
                    answers = [refused(agent, f"{session}/{rest}").replace(handle, invented) for session in (handle, invented)]
                    assert answers[0] == answers[1]
                    assert f"No session '{invented}' is open" in answers[0]
                assert "No session 'named' is open" in refused(agent, "named/notebook")


def test_files_are_offered_with_their_tools_only(tmp_path: Path) -> None:
    with connected(InMemory(tmp_path, "--tools", "core"), "auto") as agent:
        assert [actual.uri_template.rpartition("/")[2] for actual in agent.do("list_resource_templates")] == [
            "notebook",
            "{execution_id}",
        ]
        agent.call("execute_code", code="open('f', 'w').write('x')")
        assert refused(agent, "default/files/f")
