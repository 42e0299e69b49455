"""Structured answers stay within what clients take, whatever a session has, and say how much is not there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.mcp_clients import Raw, raw

ANSWER_BYTES = 900_000
LONG = "n" * 200


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raw]:
    with raw(tmp_path_factory.mktemp("structured"), "auto") as client:
        yield client


def structured_of(client: Raw, tool: str, /, **arguments: Any) -> Any:
    answer = client.answer(client.call(tool, **arguments))
    assert len(client.lines[-1]) <= ANSWER_BYTES
    return answer["result"].get("structuredContent", answer["result"])


def test_many_cases_that_say_much(client: Raw) -> None:
    cases = ["print('x' * 16_000)\nassert False, 'm' * 4000\n#" + "c" * 4000, *["print(chr(1) * 9000) or True"] * 79]
    actual = structured_of(client, "run_tests", cases=cases, session="tests")
    assert [case["verdict"] for case in actual["cases"]] == ["FAIL", *["PASS"] * 79]
    assert "characters left out: print less]" in actual["cases"][0]["output"]
    assert "characters left out: shorten the message]" in actual["cases"][0]["message"]
    few = structured_of(client, "run_tests", cases=cases[:1], session="tests")["cases"][0]
    assert len(few["output"]) == 16_001
    assert "left out" not in few["message"]


def test_files_with_long_paths(client: Raw) -> None:
    deep = "/".join([LONG] * 8)
    code = f"import os\nos.makedirs({deep!r})\nfor n in range(600): open(f'{deep}/{LONG}{{n:03}}.tmp', 'w').close()"
    structured_of(client, "execute_code", code=code, session="files")
    actual = structured_of(client, "list_files", path=deep, session="files")
    assert actual["total"] == 600
    assert 100 < len(actual["entries"]) < 500
    kept = structured_of(client, "delete_files", include=["*.tmp"], session="files")
    assert (kept["deleted_total"], kept["refused_total"]) == (0, 600)
    assert 50 < len(kept["refused"]) < 500


def test_many_long_commands_in_the_background(client: Raw) -> None:
    for n in range(40):
        structured_of(client, "start_background", command=f"true {n} # " + "c" * 30_000, session="many")
    actual = structured_of(client, "list_background", session="many")["commands"]
    assert [item["command"].split()[1] for item in actual] == [str(n) for n in range(40)]
    assert all("characters left out: the command as you sent it" in item["command"] for item in actual)
