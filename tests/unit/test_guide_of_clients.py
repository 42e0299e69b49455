"""The guide's page of MCP clients says what the scripts do that ``python -m tests.clients`` runs."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import ROOT

SCRIPTS = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "tests/clients/scripts").glob("*.py")}
PAGE = (ROOT / "kernelexec/guide/clients.md").read_text(encoding="utf-8")
ROWS = {
    re.sub(r"\W+", "_", client.lower()): cells
    for client, *cells in (
        line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ") and "---" not in line
    )
    if client != "client"
}


def test_each_script_has_a_row_and_each_row_a_script() -> None:
    assert ROWS.keys() == SCRIPTS.keys()


@pytest.mark.parametrize("client", ROWS)
def test_the_code_of_a_row_is_that_of_the_script(client: str) -> None:
    codes = re.findall(r"`([^`]+)`", " ".join(ROWS[client]))
    assert codes
    assert [code for code in codes if code not in SCRIPTS[client]] == []


@pytest.mark.parametrize("client", ROWS)
def test_a_row_says_where_pictures_are_lost(client: str) -> None:
    _, pictures, _ = ROWS[client]
    assert (pictures == "no") == ("# lacks: picture\n" in SCRIPTS[client])
