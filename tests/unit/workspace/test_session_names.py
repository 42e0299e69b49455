"""Names of sessions of HTTP clients, which people read and type."""

from __future__ import annotations

import pytest

from kernelexec.mcp.callers import Caller
from kernelexec.workspace.directory import find_names, read_owner


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ("alice", "alice"),
        ("Alice B. Cooper", "Alice-B"),
        ("--", "client"),
        ("", "client"),
        ("日本", "client"),
        ("a" * 9, "a" * 8),
    ],
)
def test_a_name_shows_its_owner(title: str, shown: str) -> None:
    name = Caller(agent=f"name {title}", title=title).resolve_session("default")
    assert read_owner(name) == f"{shown}/default"
    assert len(Caller(agent=f"name {title}", title=title).resolve_session("x" * 38)) <= 64


@pytest.mark.parametrize("name", ["default", "a.b-c", "alice.0123-default", "h-" + "0" * 40])
def test_other_names_are_shown_as_they_are(name: str) -> None:
    assert read_owner(name) == name


def test_a_name_is_found_in_full_with_and_without_its_owner() -> None:
    alice, other, bob = (Caller(agent=f"name {agent}", title=agent[:5]) for agent in ("alice", "alice 2", "bob"))
    known = [*(caller.resolve_session("default") for caller in (alice, other, bob)), "plain"]
    assert find_names(known[0], known) == [known[0]]
    assert find_names("bob/default", known) == [known[2]]
    assert find_names("alice/default", known) == known[:2]
    assert find_names("default", known) == known[:3]
    assert find_names("default", [*known, "default"]) == ["default"]
    assert find_names("plain", known) == ["plain"]
    assert find_names("lain", known) == find_names("", known) == []
