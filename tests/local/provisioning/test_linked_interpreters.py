"""Interpreters whose path goes through links of files and directories, as version managers make them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor
from kernelexec.provisioning.host.interpreters import find_import, links_of
from tests.support.engine import needs_bubblewrap
from tests.support.virtual_environments import made_venv


def linked_interpreter(directory: Path) -> Path:
    """A virtual environment whose interpreter is a link through a directory that is a link to another link."""
    (directory / "versions" / "own").mkdir(parents=True)
    (directory / "versions" / "own" / "python").symlink_to(Path(sys.executable).resolve())
    (directory / "versions" / "newest").symlink_to("own")
    venv = made_venv(directory / "venv")
    packages = next(venv.glob("lib/python*/site-packages"))
    (packages / "all.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    python = venv / "bin" / "python"
    python.unlink()
    python.symlink_to("../../versions/newest/python")
    return python


@pytest.mark.parametrize("isolation", ["local", pytest.param("bubblewrap", marks=needs_bubblewrap)])
def test_a_kernel_starts_and_its_children_find_it(tmp_path: Path, isolation: Any) -> None:
    python = linked_interpreter(tmp_path / "home")
    with Executor(isolation, workspace=tmp_path / "w", config={"python": str(python)}) as executor:
        session = executor.session("own")
        code = "import subprocess, sys; subprocess.check_output([sys.executable, '-c', 'print(6 * 7)'])"
        assert session.execute(code).text == "b'42\\n'"


def test_each_link_is_one_that_a_cell_could_replace(tmp_path: Path) -> None:
    python = linked_interpreter(tmp_path)
    assert [(link.relative_to(tmp_path), str(target)) for link, target in links_of(str(python))][:3] == [
        (Path("venv/bin/python"), "../../versions/newest/python"),
        (Path("versions/newest"), "own"),
        (Path("versions/own/python"), str(Path(sys.executable).resolve())),
    ]
    assert find_import(str(python), {}, [str(tmp_path / "versions" / "newest")]) is not None
    assert find_import(str(python), {}, [str(tmp_path / "elsewhere")]) is None
    (tmp_path / "round").symlink_to("round")
    assert len(list(links_of(str(tmp_path / "round")))) == 40
