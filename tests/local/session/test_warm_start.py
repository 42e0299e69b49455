"""How a session comes by a kernel where the first try fails by what passes, as a file system that goes away meanwhile."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import anyio
import pytest

from kernelexec import AsyncExecutor, Closed, Executor, KernelStartFailed
from tests.support.engine import needs_bubblewrap
from tests.support.night import at_night

#: Bubblewrap's error while a container's file system is unmounted: one start in 300 beside containers that come and go.
_SAID = 'bwrap: Can\'t bind mount /oldroot/ on /newroot/: Unable to apply mount flags: remount "/newroot/x": Invalid argument'


def failing(location: Path, times: int, message: str) -> Path:
    """A directory of programs with a bubblewrap that fails so often, and then does what it should; the tries are counted."""
    (programs := location / "programs").mkdir()
    script = f"""#!/bin/sh
echo >> {location}/tries
[ "$(wc -l < {location}/tries)" -gt {times} ] && exec {shutil.which("bwrap")} "$@"
cat {location}/said >&2
exit 1
"""
    (location / "said").write_text(message + "\n")
    (programs / "bwrap").write_text(script)
    (programs / "bwrap").chmod(0o755)
    return programs


@needs_bubblewrap
@pytest.mark.parametrize(
    ("times", "message", "tries"), [(2, _SAID, 3), (3, _SAID, None), (1, "bwrap: Unknown option --new", None)], ids=str
)
def test_passing_start_failures_are_tried_again(
    times: int, message: str, tries: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{failing(tmp_path, times, message)}{os.pathsep}{os.environ['PATH']}")
    with Executor("bubblewrap", workspace=tmp_path / "w") as executor:
        if tries is None:
            with pytest.raises(KernelStartFailed, match=message.split(":")[1].strip()):
                executor.session("a")
            assert executor.sessions() == ()
        else:
            assert executor.session("a").execute("6 * 7").text.strip() == "42"
    assert len((tmp_path / "tries").read_text().splitlines()) == (tries or times)


async def closed_after(executor: AsyncExecutor, delay: float) -> None:
    await anyio.sleep(delay)
    if (session := executor.open_session("a")) is not None:
        await session.close()


@pytest.mark.parametrize("fork", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["forked", "started"])
@pytest.mark.parametrize("first", [0, *at_night(1, 2)])
def test_a_session_that_is_closed_while_it_opens_says_so(first: int, fork: bool, tmp_path: Path) -> None:  # noqa: FBT001
    async def opened() -> int:
        refused = 0
        async with AsyncExecutor("local", workspace=tmp_path / "w", config={"fork_server": fork}) as executor:
            for number in range(first, 40, 3):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(closed_after, executor, number * (0.002 if fork else 0.005))
                    try:
                        await executor.session("a")
                    except Closed:
                        refused += 1
                await closed_after(executor, 0.0)
            assert executor.sessions() == ()
        return refused

    assert anyio.run(opened) > 0
