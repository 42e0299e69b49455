"""``kernelexec files``: the operations of a session on a directory of a person's, as a process of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kernelexec.results import FileList, FilesDeleted, FileText, FileWritten
from tests.conftest import Command
from tests.support.command_line import names, refused


def test_a_file_is_written_read_listed_and_deleted(tmp_path: Path, in_process: Command) -> None:
    done = in_process(tmp_path, "files", "write", "a/b.txt", "text")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "kernelexec: a/b.txt was created: 4 bytes\n")
    done = in_process(tmp_path, "files", "write", "a/b.txt", "--append", stdin=b" more \xff")
    assert (done.returncode, done.stderr) == (0, "kernelexec: a/b.txt was written: 11 bytes\n")
    assert (tmp_path / "a" / "b.txt").read_bytes() == b"text more \xff"
    assert in_process(tmp_path, "files", "read", "a/b.txt", "--limit", "4").stdout == "text"
    assert in_process(tmp_path, "files", "list", "--recursive").stdout.splitlines()[1] == "file\t11\ta/b.txt"
    done = in_process(tmp_path, "files", "delete", "a", "--recursive")
    assert (done.returncode, done.stdout) == (0, "a\n")
    assert names(tmp_path) == []


def test_how_to_read_on_is_reported_beside_the_text(tmp_path: Path, in_process: Command) -> None:
    (tmp_path / "long").write_text("x" * 100)
    done = in_process(tmp_path, "files", "read", "long", "--offset", "10", "--limit", "50")
    assert (done.stdout, done.stderr) == ("x" * 50, "kernelexec: long has 100 bytes: continue with --offset 60\n")


def test_answers_are_json_where_a_program_asks(tmp_path: Path, in_process: Command) -> None:
    (tmp_path / "w").mkdir()
    where = ("--work-dir", "w", "--json")
    written = json.loads(in_process(tmp_path, "files", "write", "a", "x", *where).stdout)
    assert FileWritten.from_dict(written) == FileWritten("a", 1, created=True)
    assert FileText.from_dict(json.loads(in_process(tmp_path, "files", "read", "a", *where).stdout)).text == "x"
    assert FileList.from_dict(json.loads(in_process(tmp_path, "files", "list", *where).stdout)).paths == ("a",)
    deleted = json.loads(in_process(tmp_path, "files", "delete", "--include", "*", *where).stdout)
    assert FilesDeleted.from_dict(deleted).deleted == ("a",)


def test_a_batch_that_leaves_something_says_so_by_its_exit_status(tmp_path: Path, in_process: Command) -> None:
    for name in ("a.tmp", "keep.tmp", ".git/x.tmp", ".env"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    done = in_process(tmp_path, "files", "delete", "--include", "*.tmp", "--include", ".env", "--exclude", "keep.*")
    assert (done.returncode, done.stdout) == (1, "a.tmp\n")
    assert done.stderr == (
        "kernelexec: .env is not deleted: a project may live by its .env. Do it by a command if it has to be.\n"
    )
    assert names(tmp_path) == [".env", ".git", "keep.tmp"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("read", "nothing"), "nothing does not exist"),
        (("read", "/etc/passwd"), "'/etc/passwd' is outside of the allowed paths"),
        (("read", "link"), "link is left alone: a symbolic link is there"),
        (("read", "pipe"), "pipe is left alone: it is not a regular file"),
        (("write", "link/x", "x"), "a symbolic link is there or on the way"),
        (("write", "../x", "x"), "name it without '..'"),
        (("delete", "."), ". is not deleted"),
        (("delete", ".git", "--recursive"), "a project may live by its .git"),
        (("delete",), "Use either a path"),
        (("delete", "x", "--include", "y"), "Use either a path"),
        (("list", "--work-dir", "nothing"), "work_dir 'nothing' does not exist"),
        (("list", "--pattern", "/x"), "a pattern is relative"),
        (("lits",), "No such command 'lits'"),
    ],
)
def test_refused_file_operations_print_a_line_and_change_nothing(
    tmp_path: Path, args: tuple[str, ...], message: str, in_process: Command
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "link").symlink_to("/etc")
    os.mkfifo(tmp_path / "pipe")
    assert message in refused(in_process(tmp_path, "files", *args))
    assert names(tmp_path) == [".git", "link", "pipe"]


def test_a_name_that_is_no_text_is_listed_and_can_be_given(tmp_path: Path, in_process: Command) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff")).write_text("x")
    assert in_process(tmp_path, "files", "list").stdout == "file\t1\tbad\\udcff\n"
    assert in_process(tmp_path, "files", "read", "bad\udcff").stdout == "x"
