"""Directories that a kernel wrote in can be removed, whatever it made of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kernelexec.workspace.rmtree import remove_tree

DEEP = """
import os, sys
os.chdir(sys.argv[1])
for _ in range(2100):  # two characters each: more than a path may have
    open("file", "w").close()
    os.symlink("/", "link")
    os.mkdir("d")
    os.chdir("d")
"""


def test_a_tree_deeper_than_any_path_is_removed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    subprocess.run([sys.executable, "-c", DEEP, str(tree)], check=True)
    remove_tree(tree)
    assert not tree.exists()


def test_modes_are_no_hindrance_to_their_owner(tmp_path: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from kernelexec.workspace.rmtree import remove_tree
if os.getuid() == 0:
    os.setuid(65534)
tree = Path(sys.argv[1]) / "tree"
(tree / "closed" / "in").mkdir(parents=True)
(tree / "fixed" / "in").mkdir(parents=True)
(tree / "fixed" / "file").touch(mode=0)
for path, mode in ((tree / "closed" / "in", 0), (tree / "closed", 0), (tree / "fixed", 0o500)):
    path.chmod(mode)
remove_tree(tree)
assert not tree.exists(), list(tree.rglob("*"))
"""
    directory = Path(f"/tmp/kxt-modes-{os.getpid()}")
    directory.mkdir()
    directory.chmod(0o777)
    try:
        subprocess.run([sys.executable, "-c", script, str(directory)], check=True)
    finally:
        subprocess.run(["rm", "-rf", str(directory)], check=True)
