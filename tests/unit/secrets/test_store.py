"""Secrets are read again each time, from their configured source, and nothing of them is raised or logged."""

from __future__ import annotations

import logging
import os
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from kernelexec import InvalidConfig
from kernelexec.config import load
from kernelexec.rules.secrets import SecretStore, store

VALUE = "sk-live-0f9a8b7c6d"


def store_of(**references: Any) -> SecretStore:
    return SecretStore(load("local", config={"secrets": references}).secrets)


def read(**references: Any) -> dict[str, str]:
    return anyio.run(store_of(**references).read)


def refused(**references: Any) -> str:
    with pytest.raises(InvalidConfig) as failed:
        read(**references)
    assert VALUE not in "".join(traceback.format_exception(failed.value))
    assert failed.value.__context__ is None or VALUE not in repr(failed.value.__context__)
    return str(failed.value)


def test_values_come_from_variables_files_and_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KX_VALUE", " in a variable\n")
    (tmp_path / "value").write_text("in a file\n\n")
    actual = read(A={"env": "KX_VALUE"}, B={"file": tmp_path / "value"}, C=lambda: "from a function")
    assert actual == {"A": " in a variable\n", "B": "in a file\n", "C": "from a function"}


def test_of_a_windows_file_the_end_of_the_line_is_cut(tmp_path: Path) -> None:
    (tmp_path / "value").write_bytes(b"in a file\r\n")
    assert read(A={"file": str(tmp_path / "value")}) == {"A": "in a file"}


def test_every_value_that_was_read_stays_masked() -> None:
    values = iter(["first-value", "first-value", "second-value"])
    opened = store_of(KEY=lambda: next(values))
    assert opened.masker.mask_text("first-value") == "first-value"
    assert [anyio.run(opened.read)["KEY"] for _ in range(3)] == ["first-value", "first-value", "second-value"]
    assert opened.masker.mask_text("first-value second-value") == "[secret KEY] [secret KEY]"


def test_a_masker_is_built_again_only_for_new_values() -> None:
    opened = store_of(KEY=lambda: VALUE)
    anyio.run(opened.read)
    before = opened.masker
    anyio.run(opened.read)
    assert opened.masker is before


def test_a_missing_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KX_VALUE", raising=False)
    assert refused(A={"env": "KX_VALUE"}) == (
        "secrets.A: the environment variable KX_VALUE is not set here: set it, or name another source."
    )


def broken() -> str:
    raise ValueError(VALUE)


def leaving() -> str:
    raise SystemExit(VALUE)


FUNCTIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "raises": (broken, "its function raised ValueError"),
    "ends the program": (leaving, "its function raised SystemExit"),
    "returns bytes": (VALUE.encode, "its function returned bytes, not str"),
    "returns None": (lambda: None, "its function returned NoneType, not str"),
    "short": (lambda: "abc", "less than 4 characters"),
    "blank": (lambda: "a  \n   b", "less than 4 characters"),
    "large": (lambda: VALUE * 4000, "larger than 65536 bytes"),
    "a NUL": (lambda: f"{VALUE}\0", "control character"),
    "an escape": (lambda: f"\x1b[1m{VALUE}", "control character"),
    "a surrogate": (lambda: f"{VALUE}\ud800", "is not valid text"),
}


@pytest.mark.parametrize(("function", "problem"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_results_of_a_function_must_be_secrets(
    function: Callable[[], Any], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    answer = refused(A=function)
    assert answer.startswith("secrets.A: its function ")
    assert problem in answer
    assert VALUE not in caplog.text


def test_functions_that_take_for_ever_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_PATIENCE", 0.05)
    held = socket.socketpair()
    with held[0], held[1]:

        def wait() -> str:
            held[1].recv(1)
            return VALUE

        opened = store_of(A=wait)

        async def ask() -> None:
            with pytest.raises(InvalidConfig, match="were not read within"):
                await opened.read()
            held[0].send(b"x")

        anyio.run(ask)


def test_a_file_is_a_regular_one_of_this_user(tmp_path: Path) -> None:
    assert "No such file" in refused(A={"file": tmp_path / "none"})
    os.mkfifo(tmp_path / "pipe")
    assert "is no regular file" in refused(A={"file": tmp_path / "pipe"})
    assert "is no regular file" in refused(A={"file": tmp_path})
    (tmp_path / "large").write_text(VALUE * 4000)
    assert "larger than" in refused(A={"file": tmp_path / "large"})
    (tmp_path / "full").write_text("x" * 65536 + "\n")
    assert len(read(A={"file": tmp_path / "full"})["A"]) == 65536
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x01\x02")
    assert "is not UTF-8" in refused(A={"file": tmp_path / "binary"})


def test_a_link_of_the_callers_own_is_followed(tmp_path: Path) -> None:
    (tmp_path / "value").write_text(VALUE)
    (tmp_path / "near").symlink_to("value")
    (tmp_path / "far").symlink_to(tmp_path / "near")
    assert read(A={"file": tmp_path / "far"}) == {"A": VALUE}
    (tmp_path / "round").symlink_to("round")
    assert "Too many levels" in refused(A={"file": tmp_path / "round"})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes links of others")
def test_a_link_of_another_user_is_not(tmp_path: Path) -> None:
    (tmp_path / "value").write_text(VALUE)
    (tmp_path / "link").symlink_to("value")
    os.chown(tmp_path / "link", 43210, 43210, follow_symlinks=False)
    assert "another user's link" in refused(A={"file": tmp_path / "link"})
