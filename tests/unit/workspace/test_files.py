"""Files as an agent lists, reads and writes them: pieces that join, writing at once, bounds that say what they are."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from kernelexec.config import Config
from kernelexec.errors import FileRefused, InvalidPath, InvalidRequest, KernelexecError
from kernelexec.results import FileBytes, FileEntry, FileList, FilesDeleted, FileText, FileWritten, NotDeleted
from kernelexec.workspace import system_calls as beneath
from kernelexec.workspace.agent_files.access import Access, FileRoot
from kernelexec.workspace.agent_files.operations import FileOperations, Globs

NOBODY = 65534


@pytest.fixture
def work(tmp_path: Path) -> Path:
    path = tmp_path.resolve() / "work"
    path.mkdir()
    return path


@pytest.fixture
def files(work: Path) -> FileOperations:
    return FileOperations(Access([FileRoot(work, str(work))]))


def pieces(files: FileOperations, path: str, limit: int) -> list[FileText]:
    actual, offset = [], 0
    while True:
        actual.append(files.read(path, offset=offset, limit=limit))
        following = actual[-1].next_offset
        if following is None:
            return actual
        assert following > offset
        offset = following


TEXTS = {
    "ascii": b"line\n" * 50,
    "two bytes": "\u00e4\u00f6".encode() * 40,
    "three bytes": "\u65e5\u672c".encode() * 40,
    "four bytes": "\U0001f98a".encode() * 40,
    "mixed": "a\u00e4\u65e5\U0001f98a\n".encode() * 20,
    "no text": bytes(range(256)) * 2,
    "characters that never end": b"\xf0\x9f\xa6" * 30,
    "bytes that never begin": b"\x80\xbf" * 30,
    "empty": b"",
}


@pytest.mark.parametrize("limit", [4, 5, 7, 64, 1000])
@pytest.mark.parametrize("raw", TEXTS.values(), ids=TEXTS)
def test_pieces_join_to_the_whole(files: FileOperations, work: Path, raw: bytes, limit: int) -> None:
    (work / "file").write_bytes(raw)
    actual = pieces(files, "file", limit)
    assert "".join(piece.text for piece in actual) == raw.decode("utf-8", "replace")
    assert all(len(raw[piece.offset : piece.next_offset]) <= limit for piece in actual)
    assert {piece.total_bytes for piece in actual} == {len(raw)}
    try:
        raw.decode()
    except UnicodeDecodeError:
        assert any(piece.lossy for piece in actual)
    else:
        assert not any(piece.lossy for piece in actual)


@pytest.mark.parametrize(
    ("offset", "text", "begins", "following"),
    [
        (0, "a\u65e5", 0, 4),
        (1, "\u65e5b", 1, 5),
        (2, "bcd", 4, None),
        (3, "bcd", 4, None),
        (6, "d", 6, None),
        (7, "", 7, None),
        (99, "", 99, None),
    ],
)
def test_a_piece_begins_with_a_whole_character(
    files: FileOperations, work: Path, offset: int, text: str, begins: int, following: int | None
) -> None:
    (work / "file").write_text("a\u65e5bcd")
    actual = files.read("file", offset=offset, limit=4)
    assert (actual.text, actual.offset, actual.next_offset) == (text, begins, following)


def test_bytes_are_read_as_they_are(files: FileOperations, work: Path) -> None:
    (work / "file").write_bytes(bytes(range(256)))
    first = files.read_bytes("file", limit=200)
    assert (first.content, first.next_offset, first.total_bytes) == (bytes(range(200)), 200, 256)
    rest = files.read_bytes(work / "file", offset=200)
    assert (rest.content, rest.offset, rest.next_offset) == (bytes(range(200, 256)), 200, None)
    assert files.read_bytes("file", offset=300) == FileBytes("file", b"", 300, None, 256)
    assert files.delete("file").deleted == ("file",)  # it counts as read
    for wrong in ({"offset": -1}, {"limit": 0}, {"limit": 2**20 + 1}):
        with pytest.raises(InvalidRequest, match="must be a number of bytes"):
            files.read_bytes("file", **wrong)


@pytest.mark.parametrize("size", [0, 1, 100])
def test_a_file_is_made_with_the_directories_that_it_is_in(files: FileOperations, work: Path, size: int) -> None:
    assert files.write("a/b/c.txt", "x" * size) == FileWritten("a/b/c.txt", size, created=True)
    assert (work / "a" / "b" / "c.txt").read_text() == "x" * size
    assert files.write("a/b/c.txt", b"\xff") == FileWritten("a/b/c.txt", 1, created=False)
    assert files.write(work / "a" / "b" / "c.txt", "\u00e4", append=True) == FileWritten("a/b/c.txt", 3, created=False)
    assert (work / "a" / "b" / "c.txt").read_bytes() == b"\xff\xc3\xa4"
    assert [path.name for path in (work / "a" / "b").iterdir()] == ["c.txt"]


def test_a_reader_of_a_replaced_file_has_the_old_one(files: FileOperations, work: Path) -> None:
    (work / "file").write_text("old")
    (work / "file").chmod(0o640)
    with (work / "file").open() as opened:
        files.write("file", "new")
        assert opened.read() == "old"
    assert (work / "file").read_text() == "new"
    assert stat.S_IMODE((work / "file").stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_created_by_root_belong_to_the_directorys_owner(files: FileOperations, work: Path) -> None:
    os.chown(work, NOBODY, NOBODY)
    files.write("a/b", "x")
    files.write("a/b", "y")
    assert {path.stat().st_uid for path in work.rglob("*")} == {NOBODY}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda files: files.read("file", offset=-1), r"offset=-1: must be a number of bytes, from 0"),
        (lambda files: files.read("file", offset=True), r"offset=True"),
        (lambda files: files.read("file", offset=2**63), r"offset=9223372036854775808"),
        (lambda files: files.read("file", limit=0), r"limit=0: must be a number of bytes, from 4 to 64"),
        (lambda files: files.read("file", limit=65), r"limit=65: must be a number of bytes, from 4 to 64"),
        (lambda files: files.write("file", "x" * 33), r"content has 33 bytes, and one call writes 32 at most: .*append=True"),
        (lambda files: files.write("file", "\ud800"), r"content holds half a character at position 0"),
        (lambda files: files.write("file", 5), r"content=5: must be text or bytes"),
        (lambda files: files.list(pattern="../x"), r"pattern='\.\./x': a pattern is relative"),
        (lambda files: files.list(pattern=""), r"pattern='': a pattern is text"),
        (lambda files: files.read(5), r"path=5: must be text"),
        (lambda files: files.read(b"file"), r"path=b'file': must be text"),
        (lambda files: files.read("nothing"), r"nothing does not exist: list the directory"),
        (lambda files: files.read("."), r"\. is a directory, and no file"),
        (lambda files: files.write(".", ""), r"\. is a directory, and no file"),
        (lambda files: files.write("directory", ""), r"directory is a directory, and no file"),
        (lambda files: files.list("nothing"), r"nothing does not exist"),
        (lambda files: files.list("file/x"), r"file/x: it, or its parent, is not a directory"),
        (lambda files: files.write("file/x", ""), r"file/x: it, or its parent, is not a directory"),
    ],
)
def test_invalid_arguments_are_reported_and_change_nothing(
    files: FileOperations, work: Path, monkeypatch: pytest.MonkeyPatch, call: Any, message: str
) -> None:
    monkeypatch.setattr("kernelexec.workspace.agent_files.operations.READ_BYTES", 64)
    monkeypatch.setattr("kernelexec.workspace.agent_files.operations.WRITE_BYTES", 32)
    (work / "file").write_text("old")
    (work / "directory").mkdir()
    with pytest.raises(InvalidRequest, match=message):
        call(files)
    assert (work / "file").read_text() == "old"
    assert sorted(path.name for path in work.iterdir()) == ["directory", "file"]


def test_a_list_shows_kinds_sizes_and_times(files: FileOperations, work: Path) -> None:
    (work / "d" / "e").mkdir(parents=True)
    (work / "d" / "e" / "f.py").write_text("12345")
    os.utime(work / "d" / "e" / "f.py", (7, 7))
    (work / "link").symlink_to("d")
    assert files.list().paths == ("d", "link")
    assert files.list(recursive=True).paths == ("d", "d/e", "d/e/f.py", "link")
    assert files.list("d/e").entries == (FileEntry("d/e/f.py", "file", 5, 7.0),)
    assert files.list("d/e/f.py") == FileList("d/e/f.py", (FileEntry("d/e/f.py", "file", 5, 7.0),))
    assert files.list(str(work / "d")).path == "d"
    assert len(files.list("d")) == 1


def test_a_list_takes_a_pattern_and_enters_nothing_that_tools_fill(files: FileOperations, work: Path) -> None:
    for name in ("a.py", "d/b.py", "d/e/c.py", "d/x.txt", ".git/config", "node_modules/m/i.js", "d/__pycache__/b.pyc"):
        files.write(name, "")
    assert files.list(recursive=True, pattern="*.py").paths == ("a.py", "d/b.py", "d/e/c.py")
    assert files.list(recursive=True, pattern="d/*.py").paths == ("d/b.py",)
    assert files.list(pattern="*.py").paths == ("a.py",)
    assert not [path for path in files.list(recursive=True).paths if "config" in path or ".js" in path or ".pyc" in path]
    assert files.list(".git").paths == (".git/config",)


def test_a_list_says_that_it_is_not_complete(files: FileOperations, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelexec.workspace.agent_files.access.ENTRIES_MAX", 10)
    for number in range(10):
        (work / str(number)).touch()
    assert (len(files.list()), files.list().complete) == (10, True)
    (work / "one more").touch()
    assert (len(files.list()), files.list().complete) == (10, False)


GLOBS = [
    ("*.py", "a.py", True),
    ("*.py", "d/a.py", True),
    ("*.py", "a.pyc", False),
    ("d/*.py", "d/a.py", True),
    ("d/*.py", "d/e/a.py", False),
    ("d/**/*.py", "d/a.py", True),
    ("d/**/*.py", "d/e/f/a.py", True),
    ("d/**/*.py", "x/d/a.py", False),
    ("**/d/*.py", "x/d/a.py", True),
    ("**", "a/b", True),
    ("d/**", "d/a", True),
    ("d/**", "d", False),
    ("./a.py", "a.py", True),
    ("./a.py", "d/a.py", False),
    ("[ab].py", "a.py", True),
    ("?.py", "ab.py", False),
    ("A.py", "a.py", False),
    ("[", "[", True),
]


@pytest.mark.parametrize(("pattern", "path", "matches"), GLOBS)
def test_a_pattern_matches_as_in_a_shell(pattern: str, path: str, matches: bool) -> None:  # noqa: FBT001 - a parameter
    assert Globs(pattern, "pattern").matches(path.split("/")) is matches


@pytest.mark.parametrize("pattern", ["/".join(["**", "a"] * 200), "*a" * 400 + "b", "*" * 900 + "b", "*?" * 400, "*[a]" * 200])
def test_no_pattern_takes_long(pattern: str) -> None:
    assert not Globs(pattern + "z", "pattern").matches(["a" * 255] * 500)


@pytest.mark.parametrize("patterns", [["a"] * 101, ["x" * 1001], [5], 5, ["/a"], ["a/../b"], [" "], ["."]])
def test_invalid_patterns_are_refused(patterns: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^include"):
        Globs(patterns, "include")


VALUES = [
    FileEntry("a", "link", 1, 2.5),
    FileList("d", (FileEntry("d/a", "file", 1, 2.0), FileEntry("d/b", "other", 0, 0.0)), complete=False),
    FileText("a", "\u65e5", 0, 3, 9, lossy=True),
    FileWritten("a", 3, created=True),
    NotDeleted("a", "why"),
    FilesDeleted(("a", "b"), (NotDeleted("c", "why"),), complete=False),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_an_answer_goes_to_json_and_back(value: Any) -> None:
    assert type(value).from_dict(json.loads(json.dumps(value.to_dict()))) == value
    with pytest.raises(ValueError, match=r"path|deleted"):
        type(value).from_dict({"path": 5, "deleted": 5})


def test_a_name_that_is_no_text_goes_to_json_too(files: FileOperations, work: Path) -> None:
    Path(os.fsdecode(os.fsencode(work) + b"/bad\xff")).write_text("x")
    [entry] = files.list()
    assert entry.path == "bad\\udcff"
    assert json.dumps(entry.to_dict(), ensure_ascii=False).encode()
    assert files.read("bad\udcff").text == "x"


def test_files_are_read_before_they_are_deleted_by_default() -> None:
    assert Config(isolation="local").read_before_delete
    with pytest.raises(ValueError, match="read_before_delete"):
        Config.model_validate({"isolation": "local", "read_before_delete": "no"})


@pytest.mark.parametrize("path", ["/a", "a/../b", "..", "a\0b"])
def test_only_what_is_beneath_is_asked_for(path: str) -> None:
    top = os.open("/", beneath.WAY)
    try:
        with pytest.raises(ValueError, match="no path beneath a directory"):
            beneath.open_beneath(top, path, os.O_RDONLY)
    finally:
        os.close(top)


def test_nothing_stays_open(files: FileOperations, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def everything() -> None:
        files.write("a/b/c", "x")
        for call in (
            lambda: files.read("a/b/c"),
            lambda: files.list(recursive=True),
            lambda: files.read("a/b"),
            lambda: files.read("nope/b"),
            lambda: files.write("a/b/c/d", ""),
            lambda: files.write("a", ""),
            lambda: files.delete("a"),
            lambda: files.delete("a", recursive=True),
        ):
            try:
                call()
            except KernelexecError:
                continue

    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names only
    everything()
    monkeypatch.setattr(beneath, "has_openat2", lambda: False)
    everything()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - as above


def test_a_path_is_where_the_deeper_root_says(tmp_path: Path) -> None:
    base = tmp_path.resolve()
    for name in ("work", "data/own/kept", "data/own/free"):
        (base / name).mkdir(parents=True)
    roots = [
        FileRoot(base / "work", "/workspace"),
        FileRoot(base / "data", "/context/data", writable=False),
        FileRoot(base / "data" / "own", "/context/own", protected=(base / "data" / "own" / "kept",)),
    ]
    files = FileOperations(Access(roots), read_before_delete=False)
    assert files.write("/workspace/a", "a").path == "a"
    assert files.write("/context/own/a", "a").path == "/context/own/a"
    assert files.write("/context/data/own/b", "b").path == "/context/own/b"
    assert files.write(str(base / "data" / "own" / "c"), "c").path == "/context/own/c"
    for path in ("/context/data/x", "/context/own/kept/x", str(base / "data" / "x"), "/context/own/kept"):
        for call in (lambda path=path: files.write(path, "x"), lambda path=path: files.delete(path, recursive=True)):
            with pytest.raises(FileRefused, match=r"can only be read|is not deleted"):
                call()
    for path in ("/context/own", "/context/data/own", "/context/own/kept", "."):
        with pytest.raises(FileRefused, match="is not deleted"):
            files.delete(path, recursive=True)
    assert sorted(path.name for path in (base / "data" / "own").iterdir()) == ["a", "b", "c", "free", "kept"]
    with pytest.raises(InvalidPath, match=r"allowed paths: /workspace \(the workspace\), /context/data \(to read\)"):
        files.read("/context/other")


def test_protected_files_stay_protected_after_a_rename(tmp_path: Path) -> None:
    work = tmp_path.resolve() / "work"
    (work / "a" / "kept").mkdir(parents=True)
    for name in ("kept/file", "single"):
        (work / "a" / name).write_text("as it was")
    roots = [FileRoot(work, str(work), protected=(work / "a" / "kept", work / "a" / "single"))]
    files = FileOperations(Access(roots), read_before_delete=False)
    (work / "a").rename(work / "b")
    for path in ("b/kept/file", "b/kept/new", "b/kept/new/inner", "b/single", "a/kept/new"):
        with pytest.raises(FileRefused, match="can only be read"):
            files.write(path, "x")
    assert [item.name for item in (work / "b" / "kept").iterdir()] == ["file"]
    with pytest.raises(FileRefused, match=r"it contains b/(kept|single), which stays"):
        files.delete("b", recursive=True)
    assert {path.path for path in files.delete_many("b/**").refused} == {"b/kept", "b/kept/file", "b/single"}
    assert files.write("b/free", "x").created
    assert (work / "b" / "kept" / "file").read_text() == "as it was"


def test_a_single_file_is_written_in_its_place(tmp_path: Path) -> None:
    base = tmp_path.resolve()
    (base / "work").mkdir()
    single = base / "single.txt"
    single.write_text("some old text")
    before = single.stat().st_ino
    roots = [FileRoot(base / "work", "/workspace"), FileRoot(single, "/context/single.txt", single=True)]
    files = FileOperations(Access(roots), read_before_delete=False)
    assert files.write("/context/single.txt", "new") == FileWritten("/context/single.txt", 3, created=False)
    assert files.write(single, " more", append=True).size_bytes == 8
    assert (files.read(single).text, single.stat().st_ino) == ("new more", before)
    assert files.list("/context/single.txt").paths == ("/context/single.txt",)
    for path in ("/context/single.txt/x", str(base / "beside.txt"), "/context"):
        with pytest.raises(InvalidPath):
            files.write(path, "x")
    with pytest.raises(FileRefused, match="is not deleted"):
        files.delete("/context/single.txt")
    assert sorted(path.name for path in base.iterdir()) == ["single.txt", "work"]
