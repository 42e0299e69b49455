"""Messages of the launcher's session are those of jupyter_client, whatever is in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jupyter_client.session as jupyter
import pytest
import zmq

from kernelexec.launcher.ipython.messages import LauncherMessageSession, pack

KEY = b"secret"
ODD = {"text": '\u65e5\n"', "nested": {"a": [1, None, True, 1.5]}, "when": jupyter.utcnow()}


class Socket:
    """Takes what would be sent."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def send_multipart(self, frames: list[bytes], **_: object) -> None:
        self.frames = frames


@pytest.fixture
def theirs() -> jupyter.Session:
    return jupyter.Session(key=KEY)


@pytest.fixture
def ours() -> LauncherMessageSession:
    return LauncherMessageSession(key=KEY)


def sent(session: jupyter.Session, *args: Any, **kwargs: Any) -> list[bytes]:
    socket = Socket()
    session.send(socket, *args, **kwargs)  # type: ignore[arg-type]  # it asks for send_multipart only
    return [bytes(frame) for frame in socket.frames]


def read(session: jupyter.Session, frames: list[bytes]) -> dict[str, Any]:
    idents, parts = session.feed_identities(frames)
    return {"idents": idents, **session.deserialize(parts)}


def test_sent_messages_equal_those_of_jupyter(ours: LauncherMessageSession, theirs: jupyter.Session) -> None:
    parent = {"header": theirs.msg_header("execute_request")}
    reader = jupyter.Session(key=KEY)
    reported = {"content": ODD, "parent": parent, "metadata": {"m": 1}, "ident": [b"a", b"b"]}
    for _again in range(2):
        actual, expected = (read(reader, sent(session, "stream", **reported)) for session in (ours, theirs))
        for item in (actual, expected):
            for varies in ("msg_id", "session", "date"):
                assert item["header"].pop(varies)
            item.pop("msg_id")
        assert actual == expected


def test_buffers_and_messages_that_are_made_elsewhere_go_their_way(
    ours: LauncherMessageSession, theirs: jupyter.Session
) -> None:
    message = ours.msg("comm_msg", {"a": 1})
    assert read(theirs, sent(ours, message))["content"] == {"a": 1}
    assert [bytes(b) for b in read(theirs, sent(ours, "comm_msg", {}, buffers=[b"raw"]))["buffers"]] == [b"raw"]
    assert [bytes(b) for b in read(theirs, sent(ours, {**ours.msg("comm_msg"), "buffers": [b"raw"]}))["buffers"]] == [b"raw"]


@pytest.mark.parametrize("copy", [True, False])
def test_messages_are_read_as_by_jupyter(ours: LauncherMessageSession, theirs: jupyter.Session, copy: bool) -> None:  # noqa: FBT001 - a parameter
    frames = sent(jupyter.Session(key=KEY), "execute_request", {"code": "1"}, metadata={"m": 1}, buffers=[b"raw"])[1:]
    value: list[Any] = frames if copy else [zmq.Frame(frame) for frame in frames]
    actual, expected = (session.deserialize(value, copy=copy) for session in (ours, theirs))
    for name in ("msg_id", "msg_type", "metadata", "content"):
        assert actual[name] == expected[name]
    assert [bytes(buffer) for buffer in actual["buffers"]] == [b"raw"]


BROKEN: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "unsigned": lambda frames: [b"", *frames[1:]],
    "signed otherwise": lambda frames: [b"0" * 64, *frames[1:]],
    "changed": lambda frames: [*frames[:4], b'{"code": "2"}'],
    "cut short": lambda frames: frames[:4],
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
def test_messages_with_a_wrong_signature_are_refused(
    ours: LauncherMessageSession, change: Callable[[list[bytes]], list[bytes]]
) -> None:
    changed, frames = (sent(jupyter.Session(key=KEY), "execute_request", {"code": "1"})[1:] for _ in range(2))
    with pytest.raises((ValueError, TypeError)):
        ours.deserialize(change(changed))
    assert ours.deserialize(frames)["content"] == {"code": "1"}


def test_the_same_message_is_read_once(ours: LauncherMessageSession) -> None:
    frames = sent(jupyter.Session(key=KEY), "execute_request", {"code": "1"})[1:]
    ours.deserialize(frames)
    with pytest.raises(ValueError, match="Duplicate Signature"):
        ours.deserialize(frames)


@pytest.mark.parametrize(
    "odd",
    [
        {"username": 'a"b\\c\n\x00\x7fé\u2028日'},
        {"username": "\udc80"},
        {"username": None},
        {"date": jupyter.utcnow()},
        {"more": 1},
    ],
    ids=["characters", "a lone surrogate", "no text", "a date", "one field more"],
)
def test_a_header_is_packed_as_any_value(ours: LauncherMessageSession, odd: dict[str, Any]) -> None:
    header = {**ours.msg_header("status"), **odd}
    frames = ours.serialize({"header": header, "parent_header": {}, "metadata": {}, "content": {}})
    assert frames[2] == pack(header)


def test_jupyter_client_packs_the_parent_of_each_message_again(ours: LauncherMessageSession, theirs: jupyter.Session) -> None:
    parent = theirs.msg_header("execute_request")
    for session, packs_anew in ((theirs, True), (ours, False)):
        first, second = (session.serialize(session.msg("status", {}, parent)) for _ in range(2))
        assert (first[3] is not second[3]) is packs_anew
