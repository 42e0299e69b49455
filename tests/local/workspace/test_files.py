"""Files as an agent lists, reads and writes them: pieces that join, writing at once, bounds that say what they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelexec.errors import FileRefused
from kernelexec.workspace.agent_files.access import DEPTH_MAX
from kernelexec.workspace.agent_files.operations import FileOperations
from tests.unit.workspace.test_files import NOBODY, files, work

__all__ = ["files", "work"]


def test_a_write_that_fails_leaves_the_old_file_and_no_other(files: FileOperations, work: Path) -> None:
    (work / "file").write_text("old")
    script = """
import resource, signal, sys
from pathlib import Path
from kernelexec.errors import FileRefused
from kernelexec.workspace.agent_files.access import Access
from kernelexec.workspace.agent_files.operations import FileOperations
from kernelexec.workspace.agent_files.access import FileRoot
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
work = Path(sys.argv[1])
try:
    FileOperations(Access([FileRoot(work, str(work))])).write("file", "x" * 5000)
except FileRefused as exc:
    print(exc)
"""
    answer = subprocess.run([sys.executable, "-c", script, str(work)], capture_output=True, text=True, check=True).stdout
    assert answer == "file is left alone: File too large.\n"
    assert [path.name for path in work.iterdir()] == ["file"]
    assert (work / "file").read_text() == "old"


def test_a_directory_that_is_deeper_than_any_path_is_listed_to_a_depth(files: FileOperations, work: Path) -> None:
    script = "import os, sys\nos.chdir(sys.argv[1])\nfor _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\n"
    subprocess.run([sys.executable, "-c", script, str(work)], check=True)
    actual = files.list(recursive=True)
    assert not actual.complete
    assert len(actual) == DEPTH_MAX + 1
    with pytest.raises(FileRefused, match=f"cannot be looked into: it is nested in more than {DEPTH_MAX} directories"):
        files.delete("d", recursive=True)
    subprocess.run(["rm", "-rf", str(work / "d")], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="root becomes another user for it")
def test_a_directory_that_may_not_be_read_is_not_called_empty(work: Path) -> None:
    (work / "closed" / "in").mkdir(parents=True)
    script = f"""
import os
from pathlib import Path
from kernelexec.errors import FileRefused
from kernelexec.workspace.agent_files.access import Access
from kernelexec.workspace.agent_files.operations import FileOperations
from kernelexec.workspace.agent_files.access import FileRoot
files = FileOperations(Access([FileRoot(Path("/tmp"), "/tmp"), FileRoot(Path({str(work)!r}), {str(work)!r})]))
os.setuid({NOBODY})
print(files.list({str(work)!r}, recursive=True).complete)
for call in (files.list, files.delete):
    try:
        call({str(work / "closed")!r})
    except FileRefused as exc:
        print(exc)
"""
    for path in (work, *work.parents[:-2]):
        path.chmod(0o755)
    (work / "closed").chmod(0o700)
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()
    assert answer[0] == "False"
    assert [line.rpartition(": ")[2] for line in answer[1:]] == ["Permission denied."] * 2
