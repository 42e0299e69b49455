"""The figures of a server over HTTP: they count what happened, and only some users may see them."""

from __future__ import annotations

from http.client import HTTPConnection
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.support.command_line import BOUND
from tests.support.mcp_clients import record_of
from tests.support.mcp_server import Server, create_token, serving
from tests.support.pace import until


def figures(server: Server, **headers: str) -> dict[str, float]:
    """All samples, each by its name and the values of its labels, in the order of those."""
    status, answer = server.ask("GET", "/metrics", b"", **headers)
    assert status == 200
    families = text_string_to_metric_families(answer.decode())
    actual = (item for family in families for item in family.samples)
    return {" ".join([item.name, *(value for _, value in sorted(item.labels.items()))]): item.value for item in actual}


def test_the_figures_are_what_happened(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        before = figures(server)
        assert before["kernelexec_sessions"] == before["kernelexec_cells_running"] == 0
        assert before["process_resident_memory_bytes"] > 10_000_000
        with server.client(x_kernelexec_agent="a") as agent:
            agent.call("execute_code", code="print('x' * 100)")
            agent.call("execute_code", code="1 / 0")
            agent.call("execute_command", command="sleep 0.2", session="other")
            agent.call("execute_code", code="import os; os._exit(1)", session="other")
            agent.call("execute_code", code="1", language="klingon")
            agent.call("read_output", execution_id="0" * 32)
            agent.call("no_tool_at_all")
            begun = agent.call("execute_code", code="import time; time.sleep(600)", timeout=700, wait=0.2)
            until(lambda: figures(server)["kernelexec_cells_running"] == 1)
            amid = figures(server)
            agent.call("interrupt_kernel")
            agent.call("wait_execution", execution_id=record_of(begun)["execution_id"])
            agent.call("close_session", session="other")
        after = figures(server)
    assert (amid["kernelexec_sessions"], amid["kernelexec_cells_running"]) == (2, 1)
    assert (after["kernelexec_sessions"], after["kernelexec_cells_running"]) == (1, 0)
    assert after["kernelexec_cells_total code kept ok"] == 1
    assert after["kernelexec_cells_total code kept error"] == 2  # one that failed, one that was interrupted
    assert after["kernelexec_cells_total code restored error"] == 1
    assert after["kernelexec_cells_total command kept ok"] == 1
    assert 0.2 < after["kernelexec_cell_seconds_sum command"] < 60
    assert after["kernelexec_output_bytes_total"] >= 101
    assert after["kernelexec_kernels_total  started"] >= 2
    assert after["kernelexec_kernels_total exited died"] == 1
    assert after["kernelexec_calls_total error read_output"] == 1
    assert after["kernelexec_calls_total error unknown"] == 1
    assert after["kernelexec_calls_total ok execute_code"] == 4
    assert after["kernelexec_call_seconds_count execute_code"] == 5
    assert not any("no_tool_at_all" in name or " a" in name for name in after)


def test_the_users_that_may_see_them(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    runner, looker = create_token(tokens, "runner"), create_token(tokens, "prometheus", "admin")
    with serving(tmp_path, "--tokens", str(tokens)) as server:
        assert server.ask("GET", "/metrics")[0] == 401
        assert server.ask("GET", "/metrics", authorization="Bearer nonsense")[0] == 401
        assert server.ask("GET", "/metrics", authorization=f"Bearer {runner}")[0] == 403
        assert figures(server, authorization=f"Bearer {looker}")["kernelexec_sessions"] == 0
        with server.client(authorization=f"Bearer {looker}") as agent:
            assert "needs a token with the scope execute" in agent.text("execute_code", code="1")
            assert "needs a token with the scope" in agent.text("list_sessions")
            assert "The tools are: none." in agent.text("nothing")
        host, port = server.url.split("/")[2].split(":")
        connection = HTTPConnection(host, int(port), timeout=BOUND)
        connection.request("GET", "/metrics", headers={"Host": "evil.example", "Authorization": f"Bearer {looker}"})
        assert connection.getresponse().status == 403
        connection.close()


def test_a_server_without_their_library_runs_and_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['prometheus_client'] = None\n", encoding="utf-8")
    with serving(tmp_path, PYTHONPATH=str(tmp_path)) as server:
        status, answer = server.ask("GET", "/metrics")
        assert (status, b"pip install 'kernelexec[metrics]'" in answer) == (501, True)
        with server.client(x_kernelexec_agent="a") as agent:
            assert agent.text("execute_code", code="1 + 1").endswith("2")
