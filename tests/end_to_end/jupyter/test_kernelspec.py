"""The commands that put our kernels among those that Jupyter's applications offer."""

from __future__ import annotations

from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpecManager

from tests.conftest import Command
from tests.support.command_line import names, refused
from tests.support.kernelspecs import write


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / "own"))
    (tmp_path / "own").mkdir()
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "place" / "share" / "jupyter"))


def install(in_process: Command, cwd: Path, *words: str) -> str:
    done = in_process(cwd, "kernelspec", "install", "--prefix", str(cwd / "place"), *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.rstrip("\n")


def test_an_installed_kernelspec_is_found_by_jupyter_with_its_options(tmp_path: Path, in_process: Command) -> None:
    words = ["--name", "boxed", "--display-name", "Boxed", "--image", "an/image", "--memory", "1.5g", "--cpus", "2"]
    directory = install(in_process, tmp_path, *words, "--network", "bridge", "--share-home")
    assert directory == str(tmp_path / "place/share/jupyter/kernels/boxed")
    actual = KernelSpecManager().get_kernel_spec("boxed")
    assert (actual.display_name, actual.language, actual.interrupt_mode) == ("Boxed", "python", "message")
    container = {"image": "an/image", "cpus": 2.0, "network": "bridge", "memory_bytes": 3 * 2**29}
    config = {"container": container, "share_home": True}
    assert actual.metadata["kernel_provisioner"] == {"provisioner_name": "kernelexec-container", "config": config}


def test_the_users_own_directory_and_that_of_the_environment_are_known(tmp_path: Path, in_process: Command) -> None:
    done = in_process(tmp_path, "kernelspec", "install", "--user")
    assert done.stdout == f"{tmp_path}/own/kernels/kernelexec\n"


REFUSED = {
    "another's name": (["--name", "theirs"], "belongs to another program: choose another name by --name"),
    "no name": (["--name", "Ab c"], "'Ab c' cannot be a kernelspec's name"),
    "no size": (["--memory", "much"], "--memory='much': must be a size, as in 512m, 1.5g or 1048576."),
    "endless memory": (["--memory", "inf"], "--memory='inf': must be a size"),
    "little memory": (["--memory", "1m"], "container.memory_bytes"),
    "no network": (["--network", "mine"], "container.network"),
    "no kernelspec's isolation": (["--isolation", "bubblewrap"], "must be 'container' or 'local' for a kernelspec"),
    "no isolation": (["--isolation", "loca"], "did you mean 'local'?"),
    "two places": (["--user"], "--user, --sys-prefix and --prefix contradict each other"),
    "an image here": (["--isolation", "local", "--image", "x"], "are for containers"),
}


@pytest.mark.parametrize(("value", "taken"), [("1.5GiB", 3 * 2**29), ("1t", 2**40)])
def test_memory_is_read_as_where_code_is_run(value: str, taken: int, tmp_path: Path, in_process: Command) -> None:
    install(in_process, tmp_path, "--memory", value)
    config = KernelSpecManager().get_kernel_spec("kernelexec").metadata["kernel_provisioner"]["config"]
    assert config["container"] == {"memory_bytes": taken}


@pytest.mark.parametrize(("words", "reason"), REFUSED.values(), ids=REFUSED)
def test_invalid_kernelspecs_are_refused_and_not_written(
    words: list[str], reason: str, tmp_path: Path, in_process: Command
) -> None:
    write(tmp_path / "place/share/jupyter", "theirs", ["theirs"], "python")
    done = in_process(tmp_path, "kernelspec", "install", "--prefix", str(tmp_path / "place"), *words)
    assert reason in refused(done)
    assert names(tmp_path / "place/share/jupyter/kernels") == ["theirs"]


def test_a_kernelspec_of_ours_is_replaced_by_one_of_its_name(tmp_path: Path, in_process: Command) -> None:
    install(in_process, tmp_path, "--image", "one")
    install(in_process, tmp_path, "--image", "two")
    config = KernelSpecManager().get_kernel_spec("kernelexec").metadata["kernel_provisioner"]["config"]
    assert config["container"] == {"image": "two"}


def test_a_kernelspec_that_cannot_be_read_is_none_of_ours(tmp_path: Path, in_process: Command) -> None:
    for name, text in {"text": "{", "list": "[]", "odd": '{"metadata": {"kernel_provisioner": 3}}'}.items():
        directory = tmp_path / "place/share/jupyter/kernels" / name
        directory.mkdir(parents=True)
        (directory / "kernel.json").write_text(text)
        done = in_process(tmp_path, "kernelspec", "install", "--prefix", str(tmp_path / "place"), "--name", name)
        assert "belongs to another program" in refused(done)
