"""Our kernels under other programs' managers: nbclient, papermill, a plain KernelManager."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from jupyter_client.manager import KernelManager
from papermill.execute import execute_notebook

from kernelexec.errors import KernelStartFailed
from kernelexec.provisioning.jupyter import install_spec
from tests.support.engine import needs_engine
from tests.support.equal_outputs import comparable_outputs
from tests.support.jupyter_directories import IMAGE, SPECS, containers, jupyter_place, kernel_of, text_of
from tests.support.pace import BOUND, slow, until
from tests.support.remains import marked_processes, runtime_directories
from tests.support.stock_kernel import run_by_nbclient

pytestmark = needs_engine

#: What runs in containers and namespaces in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = ("test_interrupting_keeps_the_state",)
CELLS = [
    "import sys\nprint('a'); print('b', file=sys.stderr)",
    "x = 40\nx + 2",
    "from IPython.display import display, HTML\nhandle = display(HTML('<b>1</b>'), display_id='d')\nhandle.update(HTML('2'))",
    "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2]);",
    "def f():\n    return 1 / 0\nf()",
    "x",
]


@pytest.fixture(scope="module", autouse=True)
def location(own_remains: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with jupyter_place(tmp_path_factory.mktemp("jupyter")) as location:
        yield location


@pytest.fixture(params=SPECS.values(), ids=list(SPECS))
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    """A kernelspec of ours; after the test nothing of its kernels is left."""
    yield str(request.param)
    until(lambda: (containers(), runtime_directories(), marked_processes()) == ([], set(), {}))


def executed(kernel: str | None, directory: Path) -> Any:
    """The notebook in a kernel of that name; in a stock one, if there is none."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    options: dict[str, Any] = {"allow_errors": True, "coalesce_streams": False, "timeout": 120}
    if kernel is None:
        run_by_nbclient(notebook, directory, **options)
    else:
        nbclient.NotebookClient(notebook, kernel_name=kernel, **options).execute(cwd=str(directory))
    return notebook


def without_pictures(outputs: list[Any]) -> list[Any]:
    """Pictures are compared by what they are: their bytes say which version of a library drew them."""
    for output in outputs:
        for kind in [kind for kind in output.get("data", {}) if kind.startswith("image/")]:
            output.data[kind] = output.data[kind][:8]
    return outputs


def test_nbclient_gets_the_outputs_of_a_stock_kernel(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    theirs, ours = executed(None, tmp_path), executed(name, tmp_path)
    for their_cell, our_cell in zip(theirs.cells, ours.cells, strict=True):
        expected = sorted(without_pictures(comparable_outputs(their_cell.outputs)), key=lambda output: str(output.get("name")))
        actual = sorted(without_pictures(comparable_outputs(our_cell.outputs)), key=lambda output: str(output.get("name")))
        assert actual == expected, their_cell.source
        assert our_cell.execution_count == their_cell.execution_count
    assert "image/png" in ours.cells[3].outputs[0].data
    assert "\x1b[" in ours.cells[4].outputs[0].traceback[0]


def test_papermill_runs_a_notebook_with_a_parameter(name: str, tmp_path: Path) -> None:
    cells = [nbformat.v4.new_code_cell("n = 1", metadata={"tags": ["parameters"]}), nbformat.v4.new_code_cell("print(n * 2)")]
    metadata = {"kernelspec": {"name": name, "display_name": name, "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), tmp_path / "in.ipynb")
    done = execute_notebook(
        tmp_path / "in.ipynb", tmp_path / "out.ipynb", parameters={"n": 21}, cwd=tmp_path, progress_bar=False
    )
    assert [output.text for cell in done.cells for output in cell.get("outputs", [])] == ["42\n"]
    assert nbformat.read(tmp_path / "out.ipynb", as_version=4).metadata.papermill.exception is None


def test_a_kernel_works_in_the_notebooks_directory_and_knows_nothing_of_the_servers_environment(
    tmp_path: Path, location: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_SERVER", "1")
    monkeypatch.setenv("NAMED", "2")
    file = location / "share/jupyter/kernels/boxed/kernel.json"
    stored = json.loads(file.read_text())
    write = {**stored, "env": {"GIVEN": "<${NAMED}>", "KERNELEXEC_LAUNCH": "{}"}}
    file.write_text(json.dumps(write))
    try:
        with kernel_of("boxed", tmp_path, env={**os.environ, "JPY_SESSION_NAME": "a.ipynb"}) as (_, client):
            code = "import os; print([os.environ.get(n) for n in ('OF_THE_SERVER', 'NAMED', 'GIVEN', 'JPY_SESSION_NAME')])"
            assert text_of(client, code) == "[None, None, '<2>', 'a.ipynb']\n"
            assert text_of(client, "open('made', 'w').write(os.getcwd()); print(os.listdir('/sys/class/net'))") == "['lo']\n"
    finally:
        file.write_text(json.dumps(stored))
    assert (tmp_path / "made").read_text() == str(tmp_path)
    assert (tmp_path / "made").stat().st_uid == os.getuid()


def test_a_restart_gives_a_new_kernel_to_the_clients_that_are_there(name: str, tmp_path: Path) -> None:
    with kernel_of(name, tmp_path) as (manager, client):
        text_of(client, "x = 1")
        file, before = manager.connection_file, sockets(manager)
        manager.restart_kernel()
        client.wait_for_ready(timeout=BOUND)
        assert text_of(client, "x") == "NameError"
        assert manager.connection_file == file
        assert before.isdisjoint(sockets(manager))
        assert [path.name for path in Path(manager.ip).parent.iterdir() if path.is_dir()] == ["2"]
    assert not Path(file).exists()


def sockets(manager: KernelManager) -> set[tuple[int, int]]:
    """The inodes of what a manager connects to, and when they were made: numbers are used again."""
    actual = [Path(f"{manager.ip}-{port}").lstat() for port in manager.ports]
    assert all(stat.S_ISSOCK(status.st_mode) for status in actual)
    return {(status.st_ino, status.st_mtime_ns) for status in actual}


def test_a_kernel_cannot_lead_the_manager_to_another_socket(tmp_path: Path) -> None:
    with kernel_of("boxed", tmp_path) as (manager, client):
        before = sockets(manager)
        code = "import glob, os, ipykernel; place = os.path.dirname(ipykernel.get_connection_file())\n"
        code += "for path in glob.glob(f'{place}/s-*'): os.remove(path); os.symlink('/var/run/docker.sock', path)\nprint(place)"
        text_of(client, code)
        assert sockets(manager) == before
        other = manager.client()
        other.start_channels()
        try:
            other.wait_for_ready(timeout=BOUND)
            assert text_of(other, "print(1)") == "1\n"
        finally:
            other.stop_channels()


def test_interrupting_keeps_the_state(name: str, tmp_path: Path) -> None:
    with kernel_of(name, tmp_path) as (manager, client):
        # many short sleeps: a signal that comes between Python's last look for one and a long sleep is seen after it only
        code = "import time; x = 7\nprint('up', flush=True)\nfor _ in range(6000): time.sleep(0.1)"
        request = client.execute(code, stop_on_error=False)
        while client.get_iopub_msg(timeout=BOUND)["msg_type"] != "stream":
            pass
        manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=BOUND)
        assert (reply["parent_header"]["msg_id"], reply["content"]["ename"]) == (request, "KeyboardInterrupt")
        assert text_of(client, "print(x)") == "7\n"


def test_input_is_asked_of_clients_that_allow_it(name: str, tmp_path: Path) -> None:
    with kernel_of(name, tmp_path) as (_, client):
        assert text_of(client, "print('hello', input())", typed="you") == "hello you\n"
        assert text_of(client, "input()") == "StdinNotImplementedError"


def test_requests_queued_behind_a_failing_cell_are_aborted(name: str, tmp_path: Path) -> None:
    with kernel_of(name, tmp_path) as (_, client):
        fails = (
            f"import os, time\nwhile not os.path.exists('sent'): time.sleep(0.01)\ntime.sleep({slow(1)})  # they arrive\n1/0"
        )
        requests = [client.execute(code) for code in (fails, "x = 1", "y = 2")]
        (tmp_path / "sent").touch()
        replies = [client.get_shell_msg(timeout=BOUND) for _ in requests]
        assert [reply["content"]["status"] for reply in replies] == ["error", "aborted", "aborted"]
        assert text_of(client, "print('x' in globals())").endswith("False\n")


def test_two_kernels_live_beside_each_other_and_one_death_is_seen(name: str, tmp_path: Path) -> None:
    with kernel_of(name, tmp_path) as (_, item), kernel_of(name, tmp_path) as (manager, two):
        text_of(item, "x = 1")
        assert text_of(two, "x") == "NameError"
        two.execute("import os; os._exit(3)")
        until(lambda: not manager.is_alive())
        assert text_of(item, "print(x)") == "1\n"


FAILURES = {
    "no image": ({"image": "kernelexec/none-such", "pull": False}, "`kernelexec image list` shows which can"),
    "no interpreter": ({"image": IMAGE, "python": "/none"}, "/none"),
    "no ipykernel": ({"image": IMAGE, "python": "/usr/bin/python3"}, "has no ipykernel: install it there"),
}


@pytest.mark.parametrize(("container", "reason"), FAILURES.values(), ids=FAILURES)
def test_a_kernel_that_cannot_start_is_reported_with_its_reason(
    container: dict[str, Any], reason: str, location: Path, tmp_path: Path
) -> None:
    install_spec("broken", "Broken", container=container, prefix=location)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")])
    with pytest.raises(KernelStartFailed) as caught:
        nbclient.NotebookClient(notebook, kernel_name="broken").execute(cwd=str(tmp_path))
    assert reason in str(caught.value)
    until(lambda: (containers(), runtime_directories()) == ([], set()))


def test_an_engine_that_is_away_is_reported(tmp_path: Path) -> None:
    code = "from jupyter_client.manager import KernelManager\nKernelManager(kernel_name='boxed').start_kernel()"
    env = os.environ | {"DOCKER_HOST": "unix:///no/such.sock"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert "KernelNotStarted: The container engine does not answer: there is no socket at" in done.stderr
    until(lambda: runtime_directories() == set())


@pytest.mark.parametrize("cwd", ["home", "above"])
def test_a_notebook_in_the_users_own_directory_is_refused(cwd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "above" / "home"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    with pytest.raises(KernelStartFailed, match=r"would see all of .* put the notebook into a directory of its own"):
        KernelManager(kernel_name="boxed").start_kernel(cwd=str(home if cwd == "home" else home.parent))


def test_the_users_own_directory_is_shared_where_the_kernelspec_says_so(
    location: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "there").touch()
    install_spec("sharing", "Sharing", container={"image": IMAGE}, share_home=True, prefix=location)
    with kernel_of("sharing", tmp_path) as (_, client):
        assert text_of(client, "import os; print(os.path.exists('there'))") == "True\n"
