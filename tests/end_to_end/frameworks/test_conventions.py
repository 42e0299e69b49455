"""The conventions of AG2's and AutoGen's own executors, which our adapters follow if they get their arguments."""

from __future__ import annotations

import asyncio
import gc
import math
import sys
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

from kernelexec import Executor
from kernelexec.adapters.ag2 import Ag2CodeExecutor
from kernelexec.adapters.autogen import AutogenCodeExecutor, AutogenCodeResult
from kernelexec.adapters.tools import function_tools
from tests.support.pace import slow, until

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("import_ag2")]
PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
PICTURE = "from PIL import Image\ndisplay(Image.new('RGB', (9, 9)))"
HTML = "from IPython.display import HTML\nHTML('<b>page</b>')"
#: Seconds in which a short block surely ends.
ENOUGH = math.ceil(slow(2))


def blocks(*codes: str, language: str = "python") -> list[Any]:
    return [CodeBlock(code=code, language=language) for code in codes]


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a directory of the test's own: sessions without a directory have theirs below the current one."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def test_a_display_is_not_saved_where_a_cell_put_a_link(tmp_path: Path) -> None:
    (tmp_path / "work" / "shown").mkdir(parents=True)
    (elsewhere := tmp_path / "elsewhere").mkdir()
    config = {"work_dir": str(tmp_path / "work")}
    with Ag2CodeExecutor(isolation="local", output_dir=tmp_path / "work" / "shown", config=config) as executor:
        first = executor.execute_code_blocks(blocks(HTML))
        swap = f"import os; os.rename('shown', 'before'); os.symlink({str(elsewhere)!r}, 'shown')\n{HTML}"
        second = executor.execute_code_blocks(blocks(swap))
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert len(list((tmp_path / "work" / "before").iterdir())) == 1
    assert list(elsewhere.iterdir()) == []


def test_a_command_line_executor_saves_each_block_and_reports_no_notes(tmp_path: Path) -> None:
    with Ag2CodeExecutor(isolation="local", work_dir=tmp_path / "w", timeout=10) as executor:
        assert (executor.timeout, executor.work_dir) == (10, tmp_path / "w")
        code = "import sys\nprint('hello')"
        result = executor.execute_code_blocks(blocks(code, "print(2)"))
        assert (result.exit_code, result.output) == (0, "hello\n2\n")
        assert result.code_file is not None
        assert Path(result.code_file).read_text() == code
        shell = executor.execute_code_blocks(blocks("echo hi", language="sh"))
        assert (shell.output, Path(str(shell.code_file)).suffix) == ("hi\n", ".sh")
        assert result.output_files == shell.output_files == []
    left = {path.name for path in (tmp_path / "w").iterdir()}
    assert all(name.startswith("tmp_code_") for name in left), left


NAMED = {
    "# a.py\nprint('ran')": ("python", "a.py", "ran"),
    "# filename: b.py\nprint('ran')": ("python", "b.py", "ran"),
    "// c.js\nconsole.log('ran')": ("javascript", "c.js", "Code saved"),
    "/* d.css */\nh1 {}": ("css", "d.css", "Code saved"),
    "<!-- e.html -->\n<p>": ("html", "e.html", "Code saved"),
    "# compute the mean\nprint('ran')": ("python", None, "ran"),
}


@pytest.mark.parametrize(("code", "expected"), NAMED.items())
def test_a_comment_names_the_file_of_a_block(tmp_path: Path, code: str, expected: tuple[str, str | None, str]) -> None:
    language, name, output = expected
    with Ag2CodeExecutor(isolation="local", work_dir=tmp_path) as executor:
        result = executor.execute_code_blocks(blocks(code, language=language))
        assert result.exit_code == 0
        assert output in result.output
        assert Path(str(result.code_file)).name.startswith(name or "tmp_code_")


def test_policies_are_those_of_the_framework(tmp_path: Path) -> None:
    executor = Ag2CodeExecutor(isolation="local", work_dir=tmp_path, execution_policies={"python": False, "javascript": True})
    assert executor.execution_policies == {"html": False, "css": False, "javascript": True, "python": False}
    with executor:
        result = executor.execute_code_blocks(blocks("print('ran')"))
        assert "ran" not in result.output
        assert Path(str(result.code_file)).exists()


@pytest.mark.parametrize("adapter", [Ag2CodeExecutor, AutogenCodeExecutor])
def test_invalid_arguments_are_refused_at_construction(tmp_path: Path, adapter: Any) -> None:
    with pytest.raises(FileNotFoundError):
        adapter(isolation="local", work_dir=tmp_path / "no" / "such")
    with pytest.raises(ValueError, match=r"Timeout must be greater than or equal to 1\."):
        adapter(isolation="local", timeout=0)
    with pytest.raises(ValueError, match=r"Kernel no-such-kernel is not installed\."):
        adapter(isolation="local", kernel_name="no-such-kernel")
    with pytest.raises(ValueError, match="Module name must be a valid Python identifier"):
        adapter(isolation="local", functions_module="not-a-name")
    if adapter is Ag2CodeExecutor:
        with pytest.raises(ValueError, match=r"Output directory .* does not exist\."):
            adapter(isolation="local", output_dir=tmp_path / "none")


def test_names_that_the_frameworks_tests_read_have_the_arguments() -> None:
    executor = Ag2CodeExecutor(isolation="local", timeout=10, output_dir=".")
    assert (executor._timeout, executor._kernel_name, executor._output_dir) == (10, "python3", Path())


def test_displays_are_files_of_the_output_directory_and_texts_name_them(tmp_path: Path) -> None:
    with Ag2CodeExecutor(isolation="local", output_dir=tmp_path) as executor:
        result = executor.execute_code_blocks(blocks(PLOT, HTML))
        picture, page = map(Path, result.output_files)
        assert (picture.parent, page.parent) == (tmp_path, tmp_path)
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert page.read_text() == "<b>page</b>"
        assert f"Image data saved to {picture}" in result.output
        assert f"HTML data saved to {page}" in result.output
        assert "[kernelexec" not in result.output


def test_a_timeout_says_so_and_keeps_the_state() -> None:
    with Ag2CodeExecutor(isolation="local", timeout=ENOUGH) as executor:
        result = executor.execute_code_blocks(blocks("x = 123\nimport time\ntime.sleep(600)"))
        assert result.exit_code == 124
        assert "Timeout" in result.output
        assert executor.execute_code_blocks(blocks("print(x)")).output == "123\n"


def test_commands_in_cells_are_jupyters() -> None:
    with Ag2CodeExecutor(isolation="local") as executor:
        assert executor.execute_code_blocks(blocks('!echo "hello world!"', language="bash")).output == "hello world!\n"
        assert executor.execute_code_blocks(blocks("! grep -q a /dev/null && echo none", language="bash")).output == "none\n"
        failed = executor.execute_code_blocks(blocks("!pip install kernelexec-no-such-package"))
        assert failed.exit_code == 0
        assert "ERROR: " in failed.output
        assert executor.execute_code_blocks(blocks("!pip install numpy")).output.strip() == ""
        assert executor.execute_code_blocks(blocks("%%bash\nexit 4")).exit_code == 4
        assert executor.execute_code_blocks(blocks("1 / 0")).exit_code == 1


def test_a_restart_before_the_first_block_warns_and_a_later_one_is_no_surprise() -> None:
    with Ag2CodeExecutor(isolation="local") as executor:
        executor.execute_code_blocks(blocks("x = 1"))
        executor.restart()
        assert executor.execute_code_blocks(blocks("print('x' in globals())")).output == "False\n"
    with pytest.warns(UserWarning, match="No action is taken"):
        executor.restart()


def test_a_virtual_environment_serves_programs(tmp_path: Path) -> None:
    directory = tmp_path / "venv" / "bin"
    directory.mkdir(parents=True)
    (directory / "python").symlink_to(sys.executable)
    (tmp_path / "venv" / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\n")
    (directory / "tool").write_text("#!/bin/sh\necho from the environment\n")
    (directory / "tool").chmod(0o755)
    context = SimpleNamespace(bin_path=str(directory), env_exe=str(directory / "python"))
    with Ag2CodeExecutor(isolation="local", work_dir=tmp_path, virtual_env_context=context) as executor:
        assert executor.execute_code_blocks(blocks("tool", language="bash")).output == "from the environment\n"


def test_results_are_those_of_a_jupyter_executor(tmp_path: Path) -> None:
    async def work() -> None:
        async with AutogenCodeExecutor("local", output_dir=tmp_path / "new") as executor:
            await executor.start()

            async def done(*codes: str) -> AutogenCodeResult:
                return await executor.execute_code_blocks(blocks(*codes), CancellationToken())

            assert await done("print('hello')", "print(200)") == AutogenCodeResult(0, "hello\n\n200\n")
            failed = await done("print(undefined)")
            lines = failed.output.splitlines()
            assert failed == AutogenCodeResult(1, failed.output)
            assert (lines[2], lines[-1]) == ("Cell In[3], line 1", "NameError: name 'undefined' is not defined")
            picture = await done(PICTURE)
            assert picture.output == "<PIL.Image.Image image mode=RGB size=9x9>"
            assert [path.parent for path in picture.output_files] == [tmp_path / "new"]
            page = await done(HTML)
            assert page.output == "<IPython.core.display.HTML object>"
            assert page.output_files[0].read_text() == "<b>page</b>"
            await executor.restart()
            assert await done("print('again')") == AutogenCodeResult(0, "again\n")
        async with AutogenCodeExecutor("local", output_dir=tmp_path, timeout=1) as late:
            with pytest.raises(TimeoutError):
                await late.execute_code_blocks(blocks("import time; time.sleep(600)"), CancellationToken())

    run(work)


@pytest.mark.filterwarnings("error")
def test_results_are_those_of_a_command_line_executor(tmp_path: Path) -> None:
    async def work() -> None:
        executor = AutogenCodeExecutor("local", work_dir=tmp_path, timeout=2 * ENOUGH, cleanup_temp_files=True)
        result = await executor.execute_code_blocks(blocks("print('first')"), CancellationToken())  # opens it
        assert (result.exit_code, result.output) == (0, "first\n")
        assert result.code_file is not None
        assert list(tmp_path.glob("tmp_code_*")) == []  # noqa: ASYNC240 - nothing else runs
        late = await executor.execute_code_blocks(blocks("import time; time.sleep(600)"), CancellationToken())
        assert (late.exit_code, "Timeout" in late.output) == (124, True)
        token = CancellationToken()
        code = "import time\nopen('begun', 'w').close()\ntime.sleep(600)\nopen('written', 'w').close()"
        call = asyncio.ensure_future(executor.execute_code_blocks(blocks(code), token))
        await asyncio.to_thread(until, (tmp_path / "begun").exists)
        (tmp_path / "begun").unlink()
        token.cancel()
        cancelled = await call
        assert (cancelled.exit_code, "Cancelled" in cancelled.output) == (125, True)
        before = executor.execute_code_blocks(blocks(code), token)
        assert (await before).exit_code == 125
        refused = await executor.execute_code_blocks(blocks("# filename: /tmp/out.py\n1"), CancellationToken())
        assert (refused.exit_code, "Filename is not in the workspace" in refused.output) == (1, True)
        await executor.stop()
        assert list(tmp_path.iterdir()) == [tmp_path / "here"]  # noqa: ASYNC240 - as above

    run(work)


def test_the_configuration_is_serialized_whole(tmp_path: Path) -> None:
    created = AutogenCodeExecutor(
        "local",
        work_dir=tmp_path,
        timeout=7,
        functions_module="tools",
        cleanup_temp_files=True,
        config={"capacity": {"queue": 3}},
    )
    again = AutogenCodeExecutor.load_component(created.dump_component())
    assert again.dump_component() == created.dump_component()
    assert (again.work_dir, again.timeout, again.functions_module) == (tmp_path, 7, "tools")
    assert again.cleanup_temp_files


def test_without_a_directory_it_works_in_a_temporary_one_that_it_removes() -> None:
    async def work() -> None:
        executor = AutogenCodeExecutor("local")
        with pytest.raises(RuntimeError, match="must be started before"):
            await executor.execute_code_blocks(blocks("1"), CancellationToken())
        directory = executor.work_dir
        assert directory.is_dir()
        await executor.start()
        await executor.execute_code_blocks(blocks("open('file', 'w').close()"), CancellationToken())
        assert (directory / "file").exists()
        await executor.stop()
        assert not directory.exists()
        assert list(Path.cwd().iterdir()) == []

    run(work)


def test_the_current_directory_is_deprecated_as_in_autogen() -> None:
    with pytest.warns(DeprecationWarning, match="current directory as work_dir is deprecated"):
        AutogenCodeExecutor("local", work_dir=".")
    with pytest.warns(DeprecationWarning, match="current directory as output_dir is deprecated"):
        assert AutogenCodeExecutor("local", output_dir=".").output_dir == Path()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert str(Ag2CodeExecutor(isolation="local", work_dir=".").work_dir) == "."


def test_one_executor_serves_several_event_loops(tmp_path: Path) -> None:
    executor = AutogenCodeExecutor("local", workspace=tmp_path)

    async def work() -> None:
        async with executor:
            result = await executor.execute_code_blocks(blocks("print('out')"), CancellationToken())
            assert "out" in result.output

    for _ in range(2):
        asyncio.run(work())
    gc.collect()


def test_another_event_loop_may_call_and_cancel(tmp_path: Path) -> None:
    async def elsewhere(executor: AutogenCodeExecutor) -> None:
        result = await executor.execute_code_blocks(blocks("print('out')"), CancellationToken())
        assert result.output == "out\n"
        token = CancellationToken()
        call = asyncio.ensure_future(executor.execute_code_blocks(blocks("touch begun; sleep 600", language="bash"), token))
        begun = executor.session.workspace / "begun"
        await asyncio.to_thread(until, begun.exists)
        begun.unlink()
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    async def work() -> None:
        async with AutogenCodeExecutor("local", workspace=tmp_path) as executor:
            await asyncio.to_thread(lambda: asyncio.run(elsewhere(executor)))
            await elsewhere(executor)

    run(work)


def test_notes_about_the_kernels_place_are_in_no_text_for_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells can write a directory from which kernels import, so their confinement has a hole."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Ag2CodeExecutor(isolation="local", work_dir=tmp_path) as executor:
        assert executor.execute_code_blocks(blocks("print('out')")).output == "out\n"
        assert any("not confined" in note for note in executor.session.start_notes)
        executor.session.restart()
        assert "Ran in a new kernel" in executor.execute_code_blocks(blocks("print('out')")).output

    async def work() -> None:
        async with AutogenCodeExecutor("local", work_dir=tmp_path) as executor:
            result = await executor.execute_code_blocks(blocks("print('out')"), CancellationToken())
            assert result.output == "out\n"

    run(work)
    with Executor("local", config={"work_dir": tmp_path}, workspace=tmp_path.parent / "w") as opened:
        [execute] = [tool for tool in function_tools(opened.session("tools")) if tool.name == "execute_code"]
        answer = execute.call(code="print('out')")
        assert "out" in answer
        assert "not confined" not in answer
