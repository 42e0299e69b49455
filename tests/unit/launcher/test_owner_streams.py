"""Streams of a command that its owner has, with answers of owners of all kinds."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import pytest

from kernelexec.launcher.processes.command import OwnerStreams
from kernelexec.launcher.protocol import CommandProcess

PROCESS: CommandProcess = {"env": {}, "user": None, "owner_runs": True, "reads_owner": True, "writes_owner": True}


def make_streams(*answers: Mapping[str, Any]) -> tuple[OwnerStreams, list[dict[str, Any]]]:
    left, questions = list(answers), list[dict[str, Any]]()

    def ask(question: dict[str, Any]) -> Mapping[str, Any]:
        questions.append(question)
        return left.pop(0)

    return OwnerStreams(ask, PROCESS), questions


def test_input_is_read_piece_by_piece_and_not_beyond_its_end() -> None:
    pieces = [{"content": b64encode(piece).decode(), "more": piece != b"c"} for piece in (b"a\xff", b"b", b"c")]
    streams, questions = make_streams(*pieces)
    assert streams.read is not None
    assert [streams.read() for _ in range(5)] == [b"a\xff", b"b", b"c", b"", b""]
    assert questions == [{"action": "read"}] * 3


def test_input_of_an_owner_that_is_gone_is_an_error_and_no_end() -> None:
    streams, _ = make_streams({"content": b64encode(b"half").decode(), "more": True}, {})
    assert streams.read is not None
    assert streams.read() == b"half"
    with pytest.raises(RuntimeError, match="had the rest of the command's input is gone"):
        streams.read()


@pytest.mark.parametrize("answer", [{}, {"exit_code": None}, {"exit_code": "0"}])
def test_a_command_of_an_owner_that_is_gone_is_an_error(answer: dict[str, Any]) -> None:
    streams, _ = make_streams(answer)
    with pytest.raises(RuntimeError, match="ran the command is gone"):
        streams.run()


def test_output_ends_where_the_owner_wants_no_more() -> None:
    streams, questions = make_streams({"more": True}, {"more": False}, {})
    assert streams.write is not None
    assert [streams.write(b"x") for _ in range(3)] == [True, False, False]
    assert questions[0] == {"action": "write", "content": "eA=="}
