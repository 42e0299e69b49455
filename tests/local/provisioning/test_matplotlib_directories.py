"""matplotlib in a confined kernel: it reads its user's configuration and font list, and writes to a directory of the kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor
from tests.support.engine import needs_bubblewrap
from tests.support.night import at_night, named_cases
from tests.support.preloading import make_font_list, preloaded_session

MODULES = ("matplotlib.pyplot", "matplotlib.texmanager")
STARTED: dict[str, Any] = {"fork_server": False}
DRAWS = """
import matplotlib.pyplot as plt
from matplotlib.texmanager import TexManager
from pathlib import Path
print(plt.rcParams['lines.linewidth'], Path(TexManager.make_tex('$x$', 10)).is_file())
"""
FIRST_USE = "import matplotlib.pyplot as plt\nimport matplotlib\nopen(matplotlib.get_cachedir() + '/own', 'w').close()"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (home := tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.mark.parametrize("is_forked", named_cases({"forked": True, "started": False}, {"forked"}))
def test_the_configuration_is_read_and_the_cache_of_tex_is_the_kernels(is_forked: bool, home: Path, tmp_path: Path) -> None:  # noqa: FBT001
    (settings := home / ".config" / "matplotlib").mkdir(parents=True)
    (settings / "matplotlibrc").write_text("lines.linewidth: 7")
    (cache := home / ".cache" / "matplotlib" / "tex.cache").mkdir(parents=True)
    make_font_list()
    config = {"preload": MODULES} if is_forked else STARTED
    with Executor("local", workspace=tmp_path / "workspaces", config=config) as executor:
        session = preloaded_session(executor, *MODULES) if is_forked else executor.session("a")
        result = session.execute(DRAWS)
        assert (result.stdout, result.stderr, result.error) == ("7.0 True\n", "", None)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("named", ["MPLCONFIGDIR", *at_night("XDG_CACHE_HOME")])
def test_a_named_directory_is_read(named: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path / "named"
    (directory := base if named == "MPLCONFIGDIR" else base / "matplotlib").mkdir(parents=True)
    (directory / "beside").write_text("8")
    monkeypatch.setenv(named, str(base))
    code = "import matplotlib\nfrom pathlib import Path\nprint((Path(matplotlib.get_cachedir()) / 'beside').read_text())"
    with Executor("local", workspace=tmp_path / "workspaces", config=STARTED) as executor:
        assert executor.session("a").execute(code).stdout == "8\n"
    assert [path.name for path in directory.iterdir()] == ["beside"]
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("isolation", ["local", pytest.param("bubblewrap", marks=[needs_bubblewrap, pytest.mark.nightly])])
def test_the_first_use_shows_no_warning(isolation: Any, home: Path, tmp_path: Path) -> None:
    with Executor(isolation, workspace=tmp_path / "workspaces", config=STARTED) as executor:
        result = executor.session("a").execute(FIRST_USE)
        assert (result.text, result.error) == ("", None)
    assert list(home.iterdir()) == []


def test_a_writable_directory_is_used_as_it_is(home: Path, tmp_path: Path) -> None:
    config = {**STARTED, "confinement": {"writable": [str(home)]}}
    with Executor("local", workspace=tmp_path / "workspaces", config=config) as executor:
        assert executor.session("a").execute(FIRST_USE).ok
    assert (home / ".cache" / "matplotlib" / "own").exists()
