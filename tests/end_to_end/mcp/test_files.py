"""The tools of files, as a model calls them: what comes back, and what is refused and why."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from fastmcp import Client
from fastmcp.client.client import CallToolResult
from mcp.types import ImageContent

from kernelexec import AsyncExecutor
from kernelexec.mcp.server import make_server
from kernelexec.mcp.sessions import SessionService
from kernelexec.results.media import PICTURE_BYTES, read_pixel_size
from tests.support.mcp_clients import ERAS, Agent, text_of


@pytest.fixture(scope="module", params=ERAS)
def agent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """A client of a server in the process of the test."""
    with start_blocking_portal() as portal, ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr("kernelexec.workspace.agent_files.operations.WRITE_BYTES", 150_000)
        executor = AsyncExecutor("local", workspace=tmp_path_factory.mktemp("served"))
        stack.enter_context(portal.wrap_async_context_manager(executor))
        server = portal.call(lambda: _served(executor))
        client = stack.enter_context(portal.wrap_async_context_manager(Client(server, mode=request.param)))
        yield Agent(portal, client)


async def _served(executor: AsyncExecutor) -> Any:
    return make_server(SessionService(executor, interval=1.0))


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A session of the test's own."""
    return re.sub(r"\W", "", request.node.originalname)[:60]


def found(agent: Agent, tool: str, /, **arguments: Any) -> dict[str, Any]:
    result = agent.call(tool, **arguments)
    assert not result.is_error, text_of(result)
    assert result.structured_content is not None
    return result.structured_content


def picture_of(result: CallToolResult) -> ImageContent:
    [picture] = (block for block in result.content if isinstance(block, ImageContent))
    return picture


def test_a_file_is_written_read_listed_and_deleted(agent: Agent, name: str) -> None:
    text = agent.text("write_file", path="src/a.py", content="n = 41\n", session=name)
    assert text == "src/a.py was created: 7 bytes."
    assert "was added to: 14 bytes" in agent.text("write_file", path="src/a.py", content="n += 1\n", append=True, session=name)
    ran = agent.text("execute_code", code="exec(open('src/a.py').read())\nprint(n)", session=name)
    assert "42" in ran.splitlines()
    read = agent.call("read_file", path="src/a.py", session=name)
    assert text_of(read) == "[kernelexec: src/a.py, from byte 0 of 14; end of file]\nn = 41\nn += 1\n"
    assert read.meta is not None
    assert read.meta["kernelexec/file"]["total_bytes"] == 14
    listed = found(agent, "list_files", recursive=True, pattern="*.py", session=name)
    assert listed == {"entries": [{"path": "src/a.py", "kind": "file", "size_bytes": 14}], "total": 1, "complete": True}
    assert "was replaced: 0 bytes" in agent.text("write_file", path="src/a.py", content="", session=name)
    deleted = found(agent, "delete_files", path="src", recursive=True, session=name)
    assert deleted == {"deleted": ["src"], "deleted_total": 1, "refused": [], "refused_total": 0, "complete": True}


def test_a_long_file_is_read_on(agent: Agent, name: str) -> None:
    whole = "".join(f"line {number}\n" for number in range(8000))
    agent.call("write_file", path="long.txt", content=whole, session=name)
    first = agent.text("read_file", path="long.txt", session=name)
    assert first.startswith(f"[kernelexec: long.txt, from byte 0 of {len(whole)}; continue with offset=20000]\n")
    rest = agent.text("read_file", path="long.txt", offset=20000, limit=10**9, session=name)
    assert first.partition("]\n")[2] + rest.partition("]\n")[2] == whole
    assert "[kernelexec: empty; " in agent.text("read_file", path="long.txt", offset=10**6, session=name)


def test_a_file_that_is_no_text_is_named_with_its_kind_and_size(agent: Agent, name: str) -> None:
    agent.call("execute_code", code="open('raw.zip', 'wb').write(bytes(range(256)) * 200)", session=name)
    note = agent.text("read_file", path="raw.zip", session=name)
    assert note == "[kernelexec: raw.zip: application/zip, 51200 bytes; no text in UTF-8, so read it with code]"


def test_a_text_with_a_byte_that_is_none_is_shown(agent: Agent, name: str) -> None:
    agent.call("execute_code", code="open('old.txt', 'wb').write(b'caf\\xe9 and more words\\x1b')", session=name)
    read = agent.text("read_file", path="old.txt", session=name)
    assert "end of file; bytes that are not UTF-8 are shown as \N{REPLACEMENT CHARACTER}; invisible " in read
    assert read.endswith("]\ncaf\N{REPLACEMENT CHARACTER} and more words\\x1b")


def test_a_picture_is_read_as_a_picture(agent: Agent, name: str) -> None:
    draw = "import matplotlib.pyplot as plt, numpy as np; plt.imsave('p.png', np.random.rand(2000, 30, 3))"
    agent.call("execute_code", code=draw + "; open('no.png', 'wb').write(bytes(9)); None", session=name)
    read = agent.call("read_file", path="p.png", session=name)
    assert [block.type for block in read.content] == ["text", "image"]
    assert re.fullmatch(r"\[kernelexec: p\.png: image/png, \d+ bytes; shown smaller\]", text_of(read))
    damaged = agent.text("read_file", path="no.png", session=name)
    assert damaged == "[kernelexec: no.png: image/png, 9 bytes; no text in UTF-8, so read it with code]"


@pytest.mark.parametrize("kind", ["png", "jpeg", "gif", "webp"])
def test_a_picture_is_known_by_its_content(agent: Agent, name: str, kind: str) -> None:
    draw = (
        f"import PIL.Image as i; [i.new('RGB', (9, 9), 'red').save(f, '{kind}') for f in ('plain', 'a.zip', 'a.png', 'a.gif')]"
    )
    agent.call("execute_code", code=f"{draw}; None", session=name)
    for file in ("plain", "a.zip", "a.png", "a.gif"):
        read = agent.call("read_file", path=file, session=name)
        assert read_pixel_size(base64.b64decode(picture_of(read).data)) == (9, 9)
        assert re.fullmatch(rf"\[kernelexec: {file}: image/{kind}, \d+ bytes\]", text_of(read))


@pytest.mark.parametrize("encoding", ["cp1251", "utf-16"])
def test_a_text_in_another_encoding_is_named_as_no_utf_8(agent: Agent, name: str, encoding: str) -> None:
    save = f"for f in ('a.txt', 'a', 'a.txt.gz'): open(f, 'w', encoding='{encoding}').write('\u0431\u0443\u043a\u0432\u044b')"
    agent.call("execute_code", code=save, session=name)
    for file, kind in (("a.txt", "text/plain"), ("a", "a file of unknown type"), ("a.txt.gz", "gzip")):
        note = agent.text("read_file", path=file, session=name)
        assert re.fullmatch(rf"\[kernelexec: {file}: {kind}, \d+ bytes; no text in UTF-8, so read it with code\]", note)


def test_a_large_picture_is_shown_as_one_of_a_cell_would_be(agent: Agent, name: str) -> None:
    draw = "import os, PIL.Image as i\nfor side, kind in ((365, 'png'), (405, 'png'), (1030, 'png'), (800, 'jpeg')):\n"
    draw += "    i.frombytes('RGB', (side, side), os.urandom(3 * side**2)).save(f'{side}.{kind}', quality=100)\n"
    agent.call("execute_code", code=draw, session=name)
    for file in ("365.png", "405.png", "1030.png", "800.jpeg"):
        read = agent.call("read_file", path=file, session=name)
        assert ("shown smaller" in text_of(read)) == (file == "1030.png")
        content = base64.b64decode(picture_of(read).data)
        assert read_pixel_size(content) is not None
        assert len(content) <= PICTURE_BYTES
    agent.call("execute_code", code=f"os.truncate('365.png', {2**24 + 1})", session=name)
    read = agent.call("read_file", path="365.png", session=name)
    assert text_of(read) == "[kernelexec: 365.png: image/png, 16777217 bytes; no text in UTF-8, so read it with code]"
    assert len(read.content) == 1


def test_a_notebook_is_read_without_the_base64_of_its_pictures(agent: Agent, name: str) -> None:
    agent.call("execute_code", code="import matplotlib.pyplot as plt; plt.plot([1, 3]); plt.show()", session=name)
    [notebook] = found(agent, "list_files", pattern="*.ipynb", session=name)["entries"]
    read = agent.text("read_file", path=notebook["path"], limit=100_000, session=name)
    assert re.search(r'"image/png": "\[\.\.\. \d{5} bytes of base64 \.\.\.\]"', read)
    assert "plt.plot([1, 3])" in read
    assert len(read) < 5000


def test_only_long_runs_of_base64_are_left_out_of_a_text(agent: Agent, name: str) -> None:
    encoded = base64.b64encode(bytes(range(256)) * 200).decode()
    lines = [
        encoded[:200],
        encoded[:7000],
        "acgt" * 100,
        "GATTACA" * 100,
        "0123456789" * 30,
        "Abc" * 90,
        f"<{encoded[:300]}==>",
    ]
    agent.call("write_file", path="runs.txt", content="\n".join(lines), session=name)
    read = agent.text("read_file", path="runs.txt", session=name).splitlines()[1:]
    assert read == [lines[0], "[... 7000 bytes of base64 ...]", *lines[2:6], "<[... 302 bytes of base64 ...]>"]


def test_a_batch_says_what_stays_and_why(agent: Agent, name: str) -> None:
    agent.call("execute_code", code="for n in 'abc': open(n + '.part', 'w').write(n)\nopen('x.log', 'w')", session=name)
    agent.call("read_file", path="a.part", session=name)
    done = found(agent, "delete_files", include=["*.part", "*.log"], exclude=["c.*"], session=name)
    assert done["deleted"] == ["a.part", "x.log"]
    problem = "b.part has not been read: read it first, so that nothing is deleted unseen."
    assert done["refused"] == [{"path": "b.part", "reason": problem}]


def test_calls_for_present_files_make_no_session(agent: Agent, name: str) -> None:
    nothing = {"entries": [], "total": 0, "complete": True}
    assert found(agent, "list_files", session=name) == nothing
    problem = f"The path does not exist: session {name!r} has no files yet."
    calls: list[tuple[str, dict[str, Any]]] = [
        ("list_files", {"path": "data"}),
        ("read_file", {"path": "x"}),
        ("edit_file", {"path": "x", "old_text": "a", "new_text": "b"}),
        ("delete_files", {"path": "x"}),
        ("delete_files", {"include": ["*"]}),
    ]
    for tool, arguments in calls:
        refused = agent.call(tool, session=name, **arguments)
        assert refused.is_error
        assert text_of(refused) == problem
    assert name not in [row["name"] for row in agent.rows("list_sessions", "sessions")]
    assert found(agent, "list_files", session=name) == nothing
    agent.call("write_file", path="x", content="a", session=name)
    agent.call("close_session", session=name)
    assert "x was edited" in agent.text("edit_file", path="x", old_text="a", new_text="b", session=name)
    agent.call("close_session", session=name)
    assert agent.text("read_file", path="x", session=name).endswith("]\nb")


def test_a_list_shows_so_many_and_counts_all(agent: Agent, name: str) -> None:
    agent.call("execute_code", code="for n in range(600): open(f'f{n}', 'w').close()", session=name)
    listed = found(agent, "list_files", pattern="f*", session=name)
    assert (len(listed["entries"]), listed["total"], listed["complete"]) == (500, 600, True)


@pytest.mark.parametrize(
    ("tool", "arguments", "problem"),
    [
        ("read_file", {"path": "nothing"}, "nothing does not exist: list the directory"),
        ("read_file", {"path": "../x"}, "name it without '..'"),
        ("read_file", {"path": "/etc/passwd"}, "'/etc/passwd' is outside of the allowed paths: "),
        ("read_file", {"path": "~/.ssh/id_rsa"}, "'~' is no home here"),
        ("read_file", {"path": "link"}, "link is left alone: a symbolic link is there"),
        ("read_file", {"path": "pipe"}, "pipe is left alone: it is not a regular file"),
        ("read_file", {"path": "a\0b"}, "without NUL characters"),
        ("read_file", {"path": "here", "limit": 1}, "limit=1: must be a number of bytes, from 4"),
        ("read_file", {"path": "here", "offest": 1}, "Unknown arguments: 'offest' (did you mean 'offset'?)."),
        ("write_file", {"path": "link", "content": "x"}, "link is left alone: a symbolic link is there"),
        (
            "write_file",
            {"path": "x", "content": "x" * 150_001},
            "one call writes 150000 at most: write the rest",
        ),
        ("write_file", {"path": "."}, "content is required"),
        ("list_files", {"path": "here/x"}, "is not a directory"),
        ("list_files", {"pattern": "/x"}, "a pattern is relative to the directory"),
        ("list_files", {"session": "a b"}, "session name 'a b'"),
        ("delete_files", {}, "Use either path, or include"),
        ("delete_files", {"path": "here", "include": ["*"]}, "Use either path, or include"),
        ("delete_files", {"include": ["*"], "recursive": True}, "Use recursive only with path"),
        ("delete_files", {"path": "here", "exclude": ["*"]}, "Nothing was deleted"),
        ("delete_files", {"include": []}, "include names no pattern"),
        ("delete_files", {"path": "here"}, "here has not been read: read it first"),
        ("delete_files", {"path": "."}, "is not deleted"),
    ],
)
def test_refused_file_calls_are_errors_with_the_reason(
    agent: Agent, tool: str, arguments: dict[str, Any], problem: str
) -> None:
    built = "import os\nfor name in ('link', 'pipe', 'here'):\n    if os.path.lexists(name): os.remove(name)\n"
    built += "os.symlink('/etc/passwd', 'link'); os.mkfifo('pipe'); open('here', 'w').close()"
    agent.call("execute_code", code=built, session="refusals")
    refused = agent.call(tool, **({"session": "refusals"} | arguments))
    assert refused.is_error
    assert problem in text_of(refused)
    assert "root:" not in text_of(refused)
    listed = found(agent, "list_files", session="refusals")
    assert {"here", "link", "pipe"} == {row["path"] for row in listed["entries"] if ".ipynb" not in row["path"]}
