"""Messages: those of Jupyter's own session are read, it reads ours, and broken ones are distinguished from cut ones."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from jupyter_client.session import Session

from kernelexec.kernel.wire.messages import Malformed, Message, MessageSession
from kernelexec.kernel.wire.zmtp import Multipart
from tests.support.night import at_night

KEY = b"0123456789abcdef"
DELIMITER = b"<IDS|MSG>"
HEADER: dict[str, Any] = {"msg_id": "m1", "msg_type": "stream", "session": "s1", "username": "u", "version": "5.4"}
PARENT: dict[str, Any] = {"msg_id": "p1"}
CONTENT: dict[str, Any] = {"name": "stdout", "text": "\u65e5 \U0001f389 \x00 \u2028"}
DEEP = b'{"a":' * 30_000 + b"1" + b"}" * 30_000


def jupyter() -> Session:
    return Session(key=KEY, signature_scheme="hmac-sha256")


def dumped(value: object) -> bytes:
    return json.dumps(value).encode()


def signed(key: bytes = KEY, /, **parts: bytes | None) -> list[bytes | None]:
    """The frames of a message, rightly signed, with some parts replaced; a skipped one counts as empty."""
    whole = {"header": dumped(HEADER), "parent": dumped(PARENT), "metadata": b"{}", "content": dumped(CONTENT), **parts}
    return [DELIMITER, MessageSession(key)._sign([part or b"" for part in whole.values()]), *whole.values()]


def unpacked(*frames: bytes | None, dropped_bytes: int = 0) -> Message:
    return MessageSession(KEY).unpack(Multipart(frames, dropped_bytes))


def test_packed_messages_are_read_by_jupyter() -> None:
    session, wire = jupyter(), MessageSession(KEY)
    msg_id, frames = wire.pack("execute_request", CONTENT)
    identities, parts = session.feed_identities(frames)
    actual = session.deserialize(parts)
    assert identities == []
    assert actual["content"] == CONTENT
    assert (actual["header"]["msg_id"], actual["header"]["msg_type"]) == (msg_id, "execute_request")
    assert (actual["header"]["session"], actual["parent_header"], actual["metadata"]) == (wire.session_id, {}, {})


def test_messages_of_jupyter_are_unpacked() -> None:
    session = jupyter()
    request = session.msg("execute_request")
    created = session.msg("stream", CONTENT, parent=request, metadata={"k": [1, None]})
    actual = unpacked(*session.serialize(created, ident=[b"kernel.stream", b"\x00\xff"]))
    assert actual == Message(
        msg_type="stream",
        msg_id=created["header"]["msg_id"],
        parent_id=request["header"]["msg_id"],
        session=session.session,
        content=CONTENT,
        metadata={"k": [1, None]},
    )


def test_packed_messages_are_unpacked() -> None:
    wire = MessageSession(KEY)
    msg_id, frames = wire.pack("kernel_info_request", {"a": {"b": [1.5, True]}})
    actual = wire.unpack(Multipart(tuple(frames)))
    assert actual == Message("kernel_info_request", msg_id, "", wire.session_id, {"a": {"b": [1.5, True]}})


def test_every_request_has_an_id_of_its_own() -> None:
    wires = [MessageSession(KEY), MessageSession(KEY)]
    ids = [wire.pack("execute_request", {})[0] for wire in wires for _ in range(100)]
    assert len(set(ids)) == 200


def test_a_given_id_is_used() -> None:
    msg_id, frames = MessageSession(KEY).pack("execute_request", {}, msg_id="chosen")
    assert msg_id == "chosen"
    assert unpacked(*frames).msg_id == "chosen"


def test_jupyter_refuses_what_was_packed_with_another_key() -> None:
    _, frames = MessageSession(b"another").pack("execute_request", {})
    session = jupyter()
    with pytest.raises(ValueError, match="Invalid Signature"):
        session.deserialize(session.feed_identities(frames)[1])


WHOLE = signed()
BROKEN: dict[str, list[bytes | None]] = {
    "no frames": [],
    "only the delimiter": [DELIMITER],
    "only skipped frames": [None] * 6,
    "no delimiter": WHOLE[1:],
    "a skipped delimiter": [None, *WHOLE[1:]],
    "no signature": [DELIMITER, *WHOLE[2:]],
    "an empty signature": [DELIMITER, b"", *WHOLE[2:]],
    "a skipped signature": [DELIMITER, None, *WHOLE[2:]],
    "a signature that is not ASCII": [DELIMITER, b"\xff" * 64, *WHOLE[2:]],
    "the signature of another key": signed(b"another"),
    "the signature of no key": signed(b""),
    "the signature of other content": [*WHOLE[:5], dumped({"name": "stderr", "text": ""})],
    "no content": WHOLE[:5],
    "no metadata and no content": WHOLE[:4],
    "header and parent exchanged": [*WHOLE[:2], WHOLE[3], WHOLE[2], *WHOLE[4:]],
    "a skipped header": signed(header=None),
    "a skipped parent": signed(parent=None),
    "a skipped header and content": signed(header=None, content=None),
    "a huge header": signed(header=dumped({**HEADER, "more": "x" * 70_000})),
    "a huge parent": signed(parent=dumped({**PARENT, "more": "x" * 70_000})),
    "a huge header and skipped content": signed(header=dumped({**HEADER, "more": "x" * 70_000}), content=None),
}


@pytest.mark.parametrize("frames", BROKEN.values(), ids=BROKEN)
def test_foreign_and_broken_frames_are_malformed(frames: list[bytes | None]) -> None:
    with pytest.raises(Malformed):
        unpacked(*frames)


NO_OBJECTS = {
    "empty": b"",
    "cut": b'{"a": "b',
    "more than one": b"{}{}",
    "text": b"hello",
    "bytes that are no text": b'{"a": "\xff\xfe"}',
    "NUL": b"\x00",
    "a list": b"[]",
    "null": b"null",
    "a string": b'"x"',
    "a number": b"1",
    "a list of pairs": b'[["msg_id", "m"]]',
    "a number of 10000 digits": b'{"a": ' + b"9" * 10_000 + b"}",
    "depth without an end": b"[" * 60_000,
    "a deep object": DEEP,
    "a Python dict": b"{'a': 1}",
}


@pytest.mark.parametrize("part", ["header", "parent", "metadata", "content"])
@pytest.mark.parametrize("value", NO_OBJECTS.values(), ids=NO_OBJECTS)
def test_a_signed_part_that_is_no_json_object_is_malformed(part: str, value: bytes) -> None:
    with pytest.raises(Malformed):
        unpacked(*signed(**{part: value}))


@pytest.mark.parametrize("part", ["metadata", "content"])
@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"-Infinity"])
def test_numbers_that_json_does_not_have_are_read_as_python_writes_them(part: str, value: bytes) -> None:
    actual = unpacked(*signed(**{part: b'{"a": [' + value + b"]}"}))
    assert str(getattr(actual, part)["a"]) == str([float(value)])


@pytest.mark.parametrize("skipped", [{"content": None}, {"metadata": None}, {"content": None, "metadata": None}])
def test_a_message_with_skipped_frames_keeps_what_it_is_about(skipped: dict[str, None]) -> None:
    actual = unpacked(*signed(**skipped), dropped_bytes=12_345)
    assert actual == Message("stream", "m1", "p1", "s1", {}, {}, whole=False, dropped_bytes=12_345)


def test_skipped_buffers_leave_the_message_whole() -> None:
    actual = unpacked(*WHOLE, b"buffer", None, dropped_bytes=99)
    assert (actual.whole, actual.content, actual.dropped_bytes) == (True, CONTENT, 99)


@pytest.mark.parametrize("identities", [[], [b""], [b"kernel.x.stream"], [b"\x00\xff", b"{}"], [None]])
def test_identities_before_the_delimiter_are_passed_over(identities: list[bytes | None]) -> None:
    assert unpacked(*identities, *WHOLE).content == CONTENT


@pytest.mark.parametrize("value", [None, 5, 1.5, True, [], ["m"], {}, {"msg_id": "x"}])
def test_fields_of_a_wrong_type_are_empty(value: object) -> None:
    header = dumped({"msg_type": value, "msg_id": value, "session": value})
    assert unpacked(*signed(header=header, parent=dumped({"msg_id": value}))) == Message("", "", "", "", CONTENT)


def test_missing_fields_are_empty() -> None:
    assert unpacked(*signed(header=b"{}", parent=b"{}")) == Message("", "", "", "", CONTENT)


def test_lone_surrogates_in_a_message_are_read() -> None:
    assert unpacked(*signed(content=b'{"text": "\\ud800"}')).content == {"text": "\ud800"}


def test_a_header_just_within_the_bound_is_read() -> None:
    spare = 64 * 1024 - len(dumped({**HEADER, "more": ""}))
    assert unpacked(*signed(header=dumped({**HEADER, "more": "x" * spare}))).msg_id == "m1"
    with pytest.raises(Malformed):
        unpacked(*signed(header=dumped({**HEADER, "more": "x" * (spare + 1)})))


def test_large_content_is_read_whole() -> None:
    text = "\u65e5" * 1_000_000
    assert unpacked(*signed(content=dumped({"text": text}))).content == {"text": text}


def test_a_changed_byte_anywhere_in_what_is_signed_is_malformed() -> None:
    for index in range(1, len(WHOLE)):
        part = WHOLE[index] or b""
        for at in range(len(part)):
            changed = part[:at] + bytes((part[at] ^ 1,)) + part[at + 1 :]
            with pytest.raises(Malformed):
                unpacked(*WHOLE[:index], changed, *WHOLE[index + 1 :])


def test_signed_noise_raises_nothing_but_malformed() -> None:
    rng = random.Random(1)  # noqa: S311 - a reproducible test, no secret
    alphabet = [b"{", b"}", b"[", b"]", b'"', b":", b",", b"1", b"e", b"-", b"null", b"\\u", b"d800", b"\xff", b"\x00", b" "]
    for _ in range(5000):
        part = rng.choice(["header", "parent", "metadata", "content"])
        noise = b"".join(rng.choices(alphabet, k=rng.randrange(12)))
        try:
            assert unpacked(*signed(**{part: b'{"msg_id":' + noise + b"}"})).whole
        except Malformed:
            continue


@pytest.mark.parametrize(
    "value",
    [
        [[]] * 250_001,
        [{}] * 250_001,
        [0] * 250_001,
        ['\\",', "["] * 125_001,
        {f"{n}": n for n in range(250_001)},
        [[1, 2]] * 90_000,
    ],
)
@pytest.mark.parametrize("part", ["content", *at_night("metadata")])
def test_a_part_with_too_many_elements_is_not_read(value: object, part: str) -> None:
    content = dumped({"value": value})
    actual = unpacked(*signed(**{part: content}))
    assert (actual.whole, actual.content, actual.metadata) == (False, {}, {})
    assert actual.dropped_bytes >= len(content)
    assert (actual.msg_type, actual.parent_id) == ("stream", "p1")


@pytest.mark.parametrize(
    "text", [",[{" * 400_000, '"' * 400_000, '\\",' * 400_000, "\\" * 400_001, '\\\\",[{"' * 200_000, '\U0001f389,"' * 300_000]
)
def test_signs_in_a_text_are_no_elements(text: str) -> None:
    content = {"name": "stdout", "text": text, text[:7]: [0] * 200_000}
    actual = unpacked(*signed(content=dumped(content)))
    assert (actual.whole, actual.content) == (True, content)
