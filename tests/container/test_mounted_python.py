"""Images that have no Python for kernels: one is mounted there, and commands see the image as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor, KernelStartFailed, Session
from kernelexec.docker.client import Engine
from kernelexec.docker.images import image_python
from kernelexec.docker.labels import RUNTIME_INSIDE
from kernelexec.provisioning.container import mounts
from tests.support.engine import BASE, IMAGE, MINIMAL, needs_engine
from tests.support.language_image import static_image

pytestmark = needs_engine


def options(image: str, **more: Any) -> dict[str, Any]:
    return {"container": {"image": image, **more}}


@pytest.fixture(autouse=True, scope="module")
def _provider() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mounts, "RUNTIME_IMAGE", MINIMAL)
        yield


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    """In an image that has no Python and no C library, but a shell."""
    config = options(static_image(BASE))
    with Executor("container", workspace=tmp_path_factory.mktemp("workspaces"), config=config) as opened:
        yield opened


def test_code_and_commands_run_where_there_is_no_python(session: Session) -> None:
    first = session.execute("x = 20\nx + 1")
    assert (first.text, first.state, first.kernel_epoch) == ("21", "kept", 1)
    assert "has no Python: the kernel runs on a Python that is mounted there (3." in first.notes[0]
    assert session.execute("x * 2").notes == ()
    assert session.execute("print(x)", language="python").stdout == "20\n"
    session.execute_command("export A=1; mkdir sub; cd sub")
    command = session.execute_command("echo $A; pwd; readlink /proc/$$/exe; exit 3")
    assert (command.stdout, command.exit_code) == (f"1\n{session.workspace}/sub\n/bin/busybox\n", 3)
    assert session.execute("!echo out; exit 4").exit_code == 4
    assert session.execute("echo hi", language="bash").stdout == "hi\n"


def test_the_mounted_python_is_complete_and_starts_itself(session: Session) -> None:
    code = """
import ctypes, json, locale, multiprocessing, os, sqlite3, ssl, subprocess, sys, zmq
program = "import ssl, sys; print(sys.base_prefix == sys.argv[1])"
said = subprocess.run([sys.executable, "-c", program, sys.base_prefix], capture_output=True)
with open("/proc/self/maps") as maps:
    foreign = [line for line in maps if ".so" in line and "/opt/kernelexec/rt" not in line]
running = os.path.realpath("/proc/self/exe") == os.path.realpath(sys.executable)
print(said.stdout.decode().strip(), foreign, locale.getpreferredencoding().upper(), running)
"""
    assert session.execute(code).stdout == "True [] UTF-8 True\n"


@pytest.mark.nightly
def test_commands_learn_nothing_of_it(session: Session) -> None:
    seen = session.execute_command("env").stdout
    assert "/opt/kernelexec/rt" not in seen
    assert "LD_LIBRARY_PATH" not in seen
    assert "PYTHONHOME" not in seen


@pytest.mark.nightly
def test_the_mounted_python_is_read_only(session: Session) -> None:
    result = session.execute("open('/opt/kernelexec/rt/pyvenv.cfg', 'a')")
    assert result.error is not None
    assert result.error.ename in ("OSError", "PermissionError")


@pytest.mark.nightly
def test_a_cell_that_hangs_there_is_interrupted_and_keeps_its_state(session: Session) -> None:
    session.execute("x = 1")
    for code, language in (("while True: pass", "python"), ("sleep 600", "bash")):
        result = session.execute(code, language=language, timeout=1)
        assert (result.interrupted, result.state) == ("timeout", "kept")
    assert session.execute("x").text == "1"


@pytest.mark.nightly
def test_an_image_with_python_and_without_ipykernel_gets_one_too(tmp_path: Path) -> None:
    with Executor("container", workspace=tmp_path, config=options(BASE)) as executor:
        session = executor.session()
        assert "has no ipykernel" in session.execute("1").notes[0]
        assert session.environment().prefix == "/opt/kernelexec/rt"
        assert session.execute_command("command -v python3").stdout == "/usr/bin/python3\n"


@pytest.mark.nightly
def test_an_image_that_serves_is_neither_asked_nor_given_anything(tmp_path: Path) -> None:
    config = options(IMAGE)
    with Executor("container", workspace=tmp_path, config=config) as executor:
        session = executor.session()
        assert session.execute("1").notes == ()
        assert "kernelexec" not in session.environment().prefix
        assert mounts.chosen_python(executor.config.container) is None


@pytest.mark.nightly
def test_an_interpreter_that_was_mistyped_is_not_replaced(tmp_path: Path) -> None:
    config = options(MINIMAL, python="python3.99")
    reported = rf"The image {MINIMAL} has no 'python3\.99' that runs.*: python3 there is Python 3\.\d+\.\d+ \(/.+\)\. Name an"
    with Executor("container", workspace=tmp_path, config=config) as executor, pytest.raises(KernelStartFailed, match=reported):
        executor.session()


@pytest.mark.nightly
def test_an_interpreter_that_is_named_where_there_is_none_is_not_replaced(tmp_path: Path) -> None:
    config = options(static_image(BASE), python="python3.99")
    reported = r"has no 'python3\.99' that runs.*: it has no Python at all\. Name an interpreter that it has, or leave"
    with Executor("container", workspace=tmp_path, config=config) as executor, pytest.raises(KernelStartFailed, match=reported):
        executor.session()


@pytest.mark.nightly
def test_a_missing_runtime_image_is_reported_with_the_way_to_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "RUNTIME_IMAGE", "kernelexec/none-of-that-name")
    monkeypatch.setattr(mounts, "_chosen", {})
    config = options(BASE)
    reported = rf"has no ipykernel.*none-of-that-name is not here.*kernelexec image check {BASE}"
    with Executor("container", workspace=tmp_path, config=config) as executor, pytest.raises(KernelStartFailed, match=reported):
        executor.session()


@pytest.mark.nightly
def test_one_volume_serves_all_and_stays(executor: Executor) -> None:
    with Engine() as engine:
        wanted = engine.api.inspect_image(MINIMAL)["Id"]
        actual = engine.api.volumes(filters={"label": f"{image_python.LABEL}={wanted}"})["Volumes"]
        names = {volume["Name"] for volume in actual}
        first = image_python._fill(engine, wanted)
        assert image_python._fill(engine, wanted) == first
        after = engine.api.volumes(filters={"label": f"{image_python.LABEL}={wanted}"})["Volumes"]
    assert first.volume in names
    assert {volume["Name"] for volume in after} == names


@pytest.mark.nightly
def test_a_volume_that_was_not_finished_is_filled_again(executor: Executor) -> None:
    with Engine() as engine:
        wanted = str(engine.api.inspect_image(MINIMAL)["Id"])
        volume = "kernelexec-test-unfinished"
        engine.api.create_volume(volume)
        try:
            command = ("sh", "-c", "mkdir -p $0/base/bin $0/bin && echo > $0/ld", RUNTIME_INSIDE)
            for program in (command, ("python3", "-c", image_python._FILLING.read_text())):
                assert run(engine, wanted, program, volume) == 0
        finally:
            engine.api.remove_volume(volume)


def run(engine: Engine, image: str, command: tuple[str, ...], volume: str) -> int:
    host = image_python.restricted_host_config() | {"binds": [f"{volume}:{RUNTIME_INSIDE}"]}
    container = engine.create(None, image_python.settings_of(image, command, "0:0"), host)
    try:
        engine.start(container)
        return int(engine.api.wait(container, timeout=120)["StatusCode"])
    finally:
        engine.remove(container)


@pytest.mark.nightly
def test_an_interpreter_that_lies_in_a_mount_is_taken_and_one_that_is_nowhere_is_not_replaced(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\nexport BY_NAME=1\nexec python3 "$@"\n')
    program.chmod(0o755)
    config = options(MINIMAL, python="/opt/mine", mounts=[{"source": str(program), "target": "/opt/mine"}])
    with Executor("container", workspace=tmp_path / "ws", config=config) as executor:
        result = executor.session("a").execute("import os; os.environ['BY_NAME']")
        assert (result.text, result.notes) == ("'1'", ())
    config = options(MINIMAL, python="/opt/nowhere")
    with (
        Executor("container", workspace=tmp_path / "ws", config=config) as executor,
        pytest.raises(KernelStartFailed, match="/opt/nowhere"),
    ):
        executor.session("b")
