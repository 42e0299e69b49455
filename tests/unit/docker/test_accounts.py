"""The files of accounts that a container gets: they have all that its image has, and a line of ours."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kernelexec.docker.accounts import missing_account
from kernelexec.docker.client import Engine

PASSWD, GROUP = b"root:x:0:0::/root:/bin/sh\n", b"root:x:0:\n"


def engine_of(files: Mapping[str, bytes | None]) -> Engine:
    """An engine whose container has these files in ``/etc``; None stands for a link."""

    def get_archive(_container: str, path: str) -> tuple[Iterator[bytes], dict[str, Any]]:
        name = PurePosixPath(path).name
        content = files[name]
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            member = tarfile.TarInfo(name)
            if content is None:
                member.type, member.linkname = tarfile.SYMTYPE, "elsewhere"
            else:
                member.size = len(content)
            tar.addfile(member, io.BytesIO(content or b""))
        return (chunk for chunk in [packed.getvalue()]), {}

    return cast("Engine", SimpleNamespace(api=SimpleNamespace(get_archive=get_archive)))


def test_an_unknown_user_and_group_get_a_line_each() -> None:
    files = missing_account(engine_of({"passwd": PASSWD, "group": GROUP}), "c", "7:8", "/home")
    assert files == {"passwd": PASSWD + b"kernel:*:7:8::/home:/bin/sh\n", "group": GROUP + b"kernel:*:8:\n"}


@pytest.mark.parametrize("group", [None, b"x" * 2**20], ids=["a link", "too large"])
def test_groups_that_cannot_be_read_are_not_hidden(group: bytes | None) -> None:
    assert missing_account(engine_of({"passwd": PASSWD, "group": group}), "c", "7:8", "/home").keys() == {"passwd"}
