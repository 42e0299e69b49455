"""Secrets on every way into a kernel, and on every way out of a session that is not its result: tools, commands, replays."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from fastmcp import Client

from kernelexec import AsyncExecutor, Executor, FilesTouched
from kernelexec.docker.client import Engine
from kernelexec.docker.labels import WORKSPACE
from kernelexec.events import Event
from kernelexec.mcp.server import make_server
from kernelexec.mcp.sessions import SessionService
from tests.conftest import EVERY_KIND, EVERY_WAY, Command, executor_of
from tests.support.command_line import LOCAL
from tests.support.engine import IMAGE, needs_engine
from tests.support.kernelspecs import settings, write_all
from tests.support.night import at_night
from tests.support.pace import BOUND
from tests.support.secret_values import AWKWARD, MARK, NAME, NAME_MARK, config, shown, written

#: What runs in containers and namespaces in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = ("test_every_kernel_is_masked",)
TELL = "import os\nprint(os.environ['API_KEY'], os.environ['NAME_LIKE'])"
TOLD = f"{MARK} {NAME_MARK}\n"

#: A server whose session runs a cell that shows secrets, until it is killed.
OWNER = """
import os, signal, sys, time
from kernelexec import Executor

secrets = {"API_KEY": {"env": "KX_AWKWARD"}, "NAME_LIKE": {"env": "KX_NAME"}}
options = {"image": sys.argv[2]}
config = {"container": options, "secrets": secrets, "preload": []}
executor = Executor("container", workspace=sys.argv[1], config=config).__enter__()
session = executor.session("a")
session.execute("import os, time\\ns = os.environ['API_KEY']")
code = "print(s, flush=True)\\nprint(s[:9], end='', flush=True)\\n"
code += "open('said', 'w').close()\\nwhile not os.path.exists('go'): time.sleep(0.05)\\nprint(s[9:])"
session.execute(code, wait=0.01)
while not (session.workspace / "said").exists(): time.sleep(0.01)
time.sleep(0.5)  # in which it may arrive
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("way", EVERY_WAY)
def test_every_kernel_is_masked(way: str, tmp_path: Path) -> None:
    with executor_of(way, tmp_path / "ws", secrets=config("local", tmp_path)["secrets"]) as executor:
        session = executor.session("a")
        assert session.execute(TELL).stdout == TOLD
        session.restart()
        assert session.execute(TELL).stdout == TOLD
        assert session.execute_command('echo "$API_KEY" "$NAME_LIKE"').stdout == TOLD


SCRIPTS = {
    "bash": 'echo "$API_KEY" "$NAME_LIKE"',
    "typescript": "console.log(Deno.env.get('API_KEY'), Deno.env.get('NAME_LIKE'))",
}


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("language", ["bash", *at_night("typescript")])
def test_kernels_of_other_languages_get_them_too(
    kind: str, language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_all(tmp_path / "jupyter")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    setting_values = config("local", tmp_path) | settings(kind)
    with Executor(kind, workspace=tmp_path / "ws", config=setting_values) as executor:
        session = executor.session("a")
        result = session.execute(SCRIPTS[language], language=language)
        assert result.stdout == TOLD
        assert shown(result.to_json()) == []
        if language == "bash":
            session.restart(language="bash")
            assert session.execute('printf %s "$NAME_LIKE" | wc -c', language="bash").stdout.strip() == str(len(NAME))
        if kind == "container":
            assert _seen_by_the_engine(tmp_path / "ws") == []
        assert written(Path(os.environ["KERNELEXEC_RUNTIME_DIR"])) == {}


@needs_engine
def test_a_user_of_the_engine_sees_no_value(tmp_path: Path) -> None:
    with Executor("container", workspace=tmp_path / "ws", config=config("container", tmp_path)) as executor:
        session = executor.session("a")
        session.execute(TELL)
        assert _seen_by_the_engine(tmp_path / "ws") == []
        private = written(Path(os.environ["KERNELEXEC_RUNTIME_DIR"]))
        assert {Path(path).name for path in private} == {"words"}  # what the kernel itself notes of the running cell


def _seen_by_the_engine(workspace: Path) -> list[str]:
    """What the engine knows of the containers of a workspace, their logs included, that holds a secret."""
    with Engine() as engine:
        actual = engine.list_containers(f"{WORKSPACE}={workspace}")
        assert actual
        reported = [json.dumps(engine.api.inspect_container(container.id)) for container in actual]
        return shown(*reported, *(bytes(engine.api.logs(container.id)) for container in actual))


def test_no_other_process_of_this_machine_has_one_to_begin_with(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KX_PLAIN", NAME)  # by its name and its value it is no secret
        setting_values = {"secrets": {"NAME_LIKE": {"env": "KX_PLAIN"}}}
        with Executor("local", workspace=tmp_path, config=setting_values) as executor:
            code = "import os\nprint(os.environ['NAME_LIKE'], os.getpid())\n'KX_PLAIN' in os.environ"
            result = executor.session("a").execute(code)
            assert result.text.split()[:2] == ["[secret", "NAME_LIKE]"]
            assert result.text.split()[-1] == "False"
            children = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "pid="], capture_output=True, check=True)
            pids = [result.text.split()[2], *children.stdout.decode().split()]
            begun = [path.read_bytes() for pid in pids if (path := Path("/proc", pid, "environ")).exists()]
            assert len(begun) >= 2
            assert shown(*begun) == []


def test_tools_answer_without_secrets(tmp_path: Path) -> None:
    setting_values = config("local", tmp_path, output={"stream_bytes": 4000})

    async def call(client: Client[Any], tool: str, **arguments: Any) -> str:
        actual = await client.call_tool(tool, arguments, raise_on_error=False)
        answer = repr(actual) + json.dumps(actual.structured_content) + json.dumps(actual.meta)
        answer += "".join(getattr(block, "text", "") for block in actual.content)
        assert shown(answer) == []
        return answer

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            executor = await stack.enter_async_context(AsyncExecutor("local", workspace=tmp_path / "ws", config=setting_values))
            client = await stack.enter_async_context(Client(make_server(SessionService(executor, interval=0.1))))
            assert MARK in await call(
                client, "execute_code", code=f"{TELL}\ns, n = map(os.environ.get, ['API_KEY', 'NAME_LIKE'])"
            )
            assert NAME_MARK in await call(client, "execute_code", code=f"# {NAME}\n{{}}[{AWKWARD!r}]")
            assert NAME_MARK in await call(client, "execute_command", command=f"echo {NAME} $API_KEY; cat {NAME}")
            assert NAME_MARK in await call(client, "execute_command", command="true", work_dir=NAME)
            assert NAME_MARK in await call(client, "execute_command", command=f"sudo rm -rf / {NAME}")
            assert MARK in await call(client, "list_variables")
            await call(client, "execute_code", code="print((s + n) * 2000)")
            code = f"print(s, flush=True)\nimport time  # {NAME}\ntime.sleep(600)"
            reported: list[str] = []

            async def hear(_progress: float, _total: float | None, message: str | None) -> None:
                reported.append(message or "")

            arguments = {"code": f"{NAME!r}\n{code}", "timeout": 600, "wait": BOUND}
            running = asyncio.create_task(client.call_tool("execute_code", arguments, progress_handler=hear))
            while not any(MARK in line for line in reported):  # noqa: ASYNC110 - reports come as they like
                await asyncio.sleep(0.01)
            assert NAME_MARK in await call(client, "list_sessions")
            assert "interrupted" in await call(client, "interrupt_kernel")
            assert shown(repr(await running), *reported) == []

    anyio.run(serve)


#: Makes a file and a directory that are called as a secret is.
NAMED = "import os\nn = os.environ['NAME_LIKE']\nopen(n + '.txt', 'w').write(n)\nos.makedirs('d' + n)"


def test_a_file_called_as_a_secret_is_reported_by_the_secret_s_name(tmp_path: Path) -> None:
    events: list[Event] = []
    setting_values = config("local", tmp_path, log_dir=tmp_path / "logs")
    with Executor("local", workspace=tmp_path / "ws", config=setting_values, hooks=[events.append]) as executor:
        session = executor.session("a")
        assert session.execute(NAMED).ok
        assert session.files.write(f"{NAME}.py", "").path == f"{NAME}.py"
        assert {f"{NAME}.txt", f"{NAME}.py", f"d{NAME}"} < set(session.files.list().paths)
        assert session.files.read(f"{NAME}.txt").text == NAME
        refusals = []
        for refused in (
            lambda: session.files.read(f"{NAME}/none"),
            lambda: session.files.write(f"../{NAME}", ""),
            lambda: session.files.list(pattern=f"/{NAME}"),
            lambda: session.files.list(f"d{NAME}/none"),
        ):
            with pytest.raises(ValueError, match=re.escape(NAME_MARK)) as caught:
                refused()
            refusals.append(str(caught.value))
        assert session.files.delete_many(["*.txt"], [NAME]).deleted == (f"{NAME}.txt",)
        journal = session.journal
    assert journal is not None
    touched = [event for event in events if isinstance(event, FilesTouched)]
    assert (touched[0].paths, touched[-1].paths) == ((f"{NAME_MARK}.py",), (f"{NAME_MARK}.txt",))
    assert NAME_MARK in touched[2].refused[0]
    assert shown(*refusals, *map(repr, events)) == []
    assert written(journal, tmp_path / "logs") == {}


def test_tools_of_files_answer_without_secrets(tmp_path: Path) -> None:
    async def serve() -> None:
        async with AsyncExitStack() as stack:
            executor = AsyncExecutor("local", workspace=tmp_path / "ws", config=config("local", tmp_path))
            await stack.enter_async_context(executor)
            client = await stack.enter_async_context(Client(make_server(SessionService(executor, interval=0.1))))

            async def call(tool: str, **arguments: Any) -> str:
                actual = await client.call_tool(tool, arguments, raise_on_error=False)
                answer = repr(actual) + json.dumps(actual.structured_content) + json.dumps(actual.meta)
                assert shown(answer) == []
                return answer

            await call("execute_code", code=NAMED)
            assert f"{NAME_MARK}.txt" in await call("list_files")
            assert f"{NAME_MARK}.txt, from byte 0" in await call("read_file", path=f"{NAME}.txt")
            assert f"{NAME_MARK}.py was created" in await call("write_file", path=f"{NAME}.py", content=NAME)
            assert f"d{NAME_MARK}/none does not exist" in await call("read_file", path=f"d{NAME}/none")
            await call("execute_code", code="open(n, 'w').close()")
            deleted = await call("delete_files", include=["*"], exclude=[f"d{NAME}"])
            assert f"'deleted': ['{NAME_MARK}.py', '{NAME_MARK}.txt']" in deleted
            assert f"'reason': '{NAME_MARK} has not been read: " in deleted
            assert f"d{NAME_MARK}" in await call("delete_files", path=f"d{NAME}", recursive=True)
            assert f"{NAME_MARK} has not been read: " in await call("delete_files", path=NAME)

    anyio.run(serve)


def test_the_command_line_takes_references_and_shows_no_value(tmp_path: Path, in_process: Command) -> None:
    (tmp_path / "name").write_text(f"{NAME}\n")
    options = ["--secret", "API_KEY=env:KX_AWKWARD", "--secret", f"NAME_LIKE=file:{tmp_path / 'name'}", *LOCAL]
    done = in_process(tmp_path, "exec", f"{TELL}\n1/0", "--json", *options, KX_AWKWARD=AWKWARD)
    assert done.returncode == 1
    assert shown(done.stdout, done.stderr) == []
    assert TOLD.strip() in json.loads(done.stdout)["outputs"][0]["text"]
    (tmp_path / "cells.py").write_text(f"{TELL}\n# %%\nos.environ['API_KEY']")
    done = in_process(tmp_path, "run", "cells.py", "--output", "out.ipynb", *options, KX_AWKWARD=AWKWARD)
    assert done.returncode == 0
    assert shown(done.stdout, done.stderr) == []
    assert MARK in (tmp_path / "out.ipynb").read_text()
    assert written(tmp_path / "out.ipynb") == {}


VALUES = [NAME, f"KEY={NAME}", f"KEY=env:{NAME}-", f"KEY=plain:{NAME}", "=env:X"]


@pytest.mark.parametrize("option", VALUES)
def test_a_value_on_the_command_line_is_refused_and_not_repeated(option: str, tmp_path: Path, in_process: Command) -> None:
    done = in_process(tmp_path, "exec", "1", "--secret", option, *LOCAL)
    assert done.returncode == 125
    assert "secret" in done.stderr
    assert NAME not in done.stdout + done.stderr


@pytest.mark.parametrize("recorded", ["notebook", "journal"])
def test_replay_reports_do_not_show_secrets(recorded: str, tmp_path: Path) -> None:
    setting_values = config("local", tmp_path)
    with Executor("local", workspace=tmp_path / "ws", config=setting_values) as executor:
        first = executor.session("first")
        first.execute(TELL)
        first.execute(f"x = {NAME!r}  # a literal")
        source = first.journal if recorded == "journal" else first.notebook
        first.close()
        second = executor.session("second", notebook=source)
        assert second.replay is not None
        assert [cell.outcome for cell in second.replay.cells] == ["repeated", "unsafe"]
        assert second.replay.cells[1].reason == "its text held a secret, which is not recorded"
        (tmp_path / "plain.py").write_text(f"{TELL}\n# %%\ny = {NAME!r}\nassert y == os.environ['NAME_LIKE']\n# %%\n{{}}[y]")
        third = executor.session("third", notebook=tmp_path / "plain.py")
        assert third.replay is not None
        assert [cell.outcome for cell in third.replay.cells] == ["repeated", "repeated", "failed"]
        assert NAME_MARK in third.replay.cells[1].head
        assert shown(str(third.replay), repr(third.replay)) == []
        third.save_notebook()
        assert written(tmp_path / "ws") == {}


@needs_engine
def test_a_session_that_is_taken_over_shows_no_secret_either(tmp_path: Path) -> None:
    values = {"KX_AWKWARD": AWKWARD, "KX_NAME": NAME}
    environ = {**os.environ, **values, "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run([sys.executable, "-c", OWNER, str(tmp_path / "ws"), IMAGE], env=environ, check=False, timeout=BOUND)
    assert done.returncode == -signal.SIGKILL

    async def run() -> None:
        setting_values = config("container", tmp_path) | {"container": {"image": IMAGE}}
        async with AsyncExecutor("container", workspace=tmp_path / "ws", config=setting_values) as executor:
            session = await executor.session("a")
            (running,) = session.executions()
            (session.workspace / "go").touch()
            result = (await session.wait_for(running)).result
            assert result is not None
            assert result.state == "kept"
            assert result.stdout == f"{MARK}\n{MARK}\n"
            assert (await session.execute("print(s)")).stdout == f"{MARK}\n"
            assert shown(result.to_json()) == []

    asyncio.run(run())
    assert written(tmp_path / "ws") == {}
