"""A module that the kernel lacks and another interpreter in sight has: the diagnosis names that interpreter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kernelexec import Executor
from tests.support.night import named_cases

MODULES: dict[str, Callable[[Path], Path]] = {
    "a package": lambda directory: directory / "elsewhere" / "__init__.py",
    "a file": lambda directory: directory / "elsewhere.py",
    "compiled code": lambda directory: directory / "elsewhere.cpython-311-x86_64-linux-gnu.so",
}


def install(prefix: Path, name: Callable[[Path], Path]) -> Path:
    """Make an environment with an interpreter and a module named ``elsewhere``."""
    module = name(prefix / "lib" / "python3.11" / "site-packages")
    python = prefix / "bin" / "python3"
    for path in (module, python):
        path.parent.mkdir(parents=True)
        path.touch()
    return python


@pytest.mark.parametrize("name", named_cases(MODULES, {"compiled code"}))
def test_an_interpreter_of_the_search_path_is_named(
    name: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = install(tmp_path / "other", name)
    monkeypatch.setenv("PATH", str(python.parent), prepend=":")
    with Executor("local", workspace=tmp_path / "workspaces") as executor:
        result = executor.session().execute("import elsewhere")
        assert result.diagnosis is not None
        assert f"{str(python)!r} has it, but is not the kernel's Python: `sys.executable` is." in result.diagnosis.hints
        other = executor.session().execute("import elsewhere_too")
        assert other.diagnosis is not None
        assert len(other.diagnosis.hints) == len(result.diagnosis.hints) - 1


def test_a_virtual_environment_of_the_workspace_is_named(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session("agent")
        python = install(session.workspace / "venv", MODULES["a package"])
        result = session.execute("try:\n    import elsewhere\nexcept ImportError as exc:\n    raise")
        assert result.diagnosis is not None
        assert result.diagnosis.hints[-1].startswith(f"{str(python)!r} has it")
