"""The options that say where code runs: one set for all commands, refused where they make no sense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelexec.cli.options import IsolationOptions
from kernelexec.config import MIB
from kernelexec.errors import InvalidConfig
from tests.conftest import Command
from tests.end_to_end.cli.test_doctor import CONTAINER
from tests.support.command_line import LOCAL, refused
from tests.support.engine import MINIMAL, SUDO

COMMANDS = ("run", "exec", "repl", "mcp")
OPTIONS = (
    "--isolation", "--image", "--sudo", "--network", "--memory", "--cpus", "--context", "--instance-id", "--log-dir",
    "--python", "--timeout", "--allowed-commands", "--blocked-commands",
)  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KERNELEXEC_USE_DOCKER", "AUTOGEN_USE_DOCKER"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_runs_code_has_them(command: str, tmp_path: Path, in_process: Command) -> None:
    shown = in_process(tmp_path, command, "--help", COLUMNS="200").stdout
    assert all(option in shown for option in OPTIONS)
    assert not any(option in shown for option in ("--execution-mode", "--docker-image", "--enable-sudo", "--mode"))


def test_they_become_the_settings_of_the_container(tmp_path: Path) -> None:
    (tmp_path / "a:rw").mkdir()
    location = IsolationOptions(
        isolation="container", image="an/image", network="bridge", memory="1.5g", cpus=0.5, instance_id="two",
        context=[f"{tmp_path}:rw", f"{tmp_path / 'a:rw'}:ro", str(tmp_path)], log_dir="logs", python="/opt/python",
    )  # fmt: skip
    config = location.load_config(notebook=False)
    container = config.container
    assert (config.isolation, config.notebook, config.log_dir) == ("container", False, Path("logs"))
    assert (container.image, container.network, container.cpus, container.instance) == (("an/image",), "bridge", 0.5, "two")
    assert (container.memory_bytes, container.python, config.python) == (1536 * MIB, "/opt/python", "/opt/python")
    assert [(context.path, context.permission) for context in config.context_paths] == [
        (tmp_path, "write"), (tmp_path / "a:rw", "read"), (tmp_path, "read")
    ]  # fmt: skip


def test_lists_of_commands_become_rules(tmp_path: Path, in_process: Command) -> None:
    rules = (
        IsolationOptions(isolation="local", allowed_commands=["echo.*", "ls"], blocked_commands=["echo x"]).load_config().rules
    )
    assert [pattern.pattern for pattern in (*rules.allowed_commands, *rules.blocked_commands)] == ["echo.*", "ls", "echo x"]
    assert IsolationOptions(isolation="local").load_config().rules.dangers
    done = in_process(tmp_path, "exec", "!touch a", *LOCAL, "--allowed-commands", "echo.*", "--allowed-commands", "ls")
    assert done.returncode == 126
    assert "rule 'allowed-commands'" in done.stderr
    assert not list(tmp_path.rglob("a"))
    done = in_process(tmp_path, "exec", "!echo 1", *LOCAL, "--allowed-commands", "echo.*")
    assert (done.returncode, done.stdout) == (0, "1\n")


def test_sudo_has_two_names_and_is_off_by_default() -> None:
    assert not IsolationOptions(isolation="container").load_config().container.sudo
    for location in (
        IsolationOptions(isolation="container", sudo=True),
        IsolationOptions(isolation="container", enable_sudo=True),
    ):
        assert location.load_config().container.sudo
        assert location.load_config().container.image == ("kernelexec/agent-sudo",)


def test_the_defaults_are_containers_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELEXEC_FORCE_CONTAINER", "1")
    assert IsolationOptions().load_config().model_dump(exclude_unset=True) == {"isolation": "container"}


@pytest.mark.parametrize(
    ("message", "isolation"), [("docker", "container"), ("container", "container"), ("local", "local"), ("host", "local")]
)
def test_the_other_names_of_places_are_known(message: str, isolation: str) -> None:
    assert IsolationOptions(execution_mode=message).load_config().isolation == isolation
    assert IsolationOptions(isolation=message).load_config().isolation == isolation


def test_two_names_of_one_thing_must_agree() -> None:
    assert IsolationOptions(isolation="local", execution_mode="local").load_config().isolation == "local"
    with pytest.raises(InvalidConfig, match="--isolation and --execution-mode"):
        IsolationOptions(isolation="local", execution_mode="docker").load_config()
    with pytest.raises(InvalidConfig, match="--image and --docker-image"):
        IsolationOptions(image="a", docker_image="b").load_config()


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("--image", "x"), "--image: only for containers"),
        (("--docker-image", "x", "--memory", "1g"), "--image --memory: only for containers"),
        (("--network", "bridge"), "--network: only for containers"),
        (("--sudo",), "--sudo: only for containers"),
        (("--enable-sudo",), "--sudo: only for containers"),
        (("--cpus", "1"), "choose --isolation container"),
    ],
)
def test_options_of_containers_are_refused_on_this_machine(
    args: tuple[str, ...], reason: str, tmp_path: Path, in_process: Command
) -> None:
    assert reason in refused(in_process(tmp_path, "exec", "1", *LOCAL, *args))


def test_a_context_path_is_seen_on_this_machine_too(tmp_path: Path, in_process: Command) -> None:
    for name in ("data", "shared"):
        (tmp_path / name).mkdir()
    code = "open('../shared/made', 'w').write('x')\nopen('../data/made', 'w')"
    (tmp_path / "ws").mkdir()
    done = in_process(tmp_path, "exec", code, *LOCAL, "--work-dir", "ws", "--context", "data", "--context", "shared:rw")
    assert "Permission denied: '../data/made'" in done.stdout + done.stderr
    assert (tmp_path / "shared" / "made").read_text() == "x"


def test_a_kernel_on_this_machine_has_the_reported_network() -> None:
    for isolation in ("local", "bubblewrap"):
        assert IsolationOptions(isolation=isolation, network="none").load_config().has_local_network is False
        assert IsolationOptions(isolation=isolation, network="host").load_config().has_local_network is True
    assert IsolationOptions(isolation="local").load_config().has_local_network is True
    assert IsolationOptions(isolation="bubblewrap").load_config().has_local_network is False


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("--memory", "lots"), "--memory='lots': must be a size"),
        (("--memory", "1"), "container.memory_bytes"),
        (("--cpus", "0"), "container.cpus"),
        (("--network", "internet"), "container.network"),
        (("--context", "/no/such"), "--context /no/such: must be an existing file or directory"),
        (("--context", ":rw"), "--context :rw: must be an existing file or directory"),
        (("--image", ""), "'--image': must not be empty"),
        (("--isolation", "jail"), "isolation='jail' is unknown"),
    ],
)
def test_invalid_values_of_options_are_refused(
    args: tuple[str, ...], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: Command
) -> None:
    monkeypatch.setenv("KERNELEXEC_FORCE_CONTAINER", "1")
    assert reason in refused(in_process(tmp_path, "exec", "1", *args))


@pytest.mark.nightly  # in the gate the option is a setting, and the tests of sudo in containers show that of the setting
def test_a_command_runs_as_root_where_that_was_asked_for(tmp_path: Path, in_process: Command) -> None:
    (tmp_path / "ws").mkdir()
    args = ("--isolation", "container", "--image", MINIMAL, "--sudo", "--work-dir", "ws", "--log-dir", "logs")
    done = in_process(tmp_path, "exec", "!sudo -n touch /etc/x && sudo -n id -u", *args)
    assert (done.stdout, done.returncode) == ("0\n", 0), done.stderr
    assert f"kernelexec: code runs in containers of {SUDO}, with sudo, network: none." in done.stderr
    assert ", with sudo, mounts " in (tmp_path / "logs" / "exec" / "docker_container.log").read_text()


def test_a_cell_runs_in_the_container_that_was_asked_for(tmp_path: Path, in_process: Command) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("seen")
    code = f"open('made', 'w').write(open('{tmp_path}/data/file').read()); open('{tmp_path}/data/new', 'w')"
    args = ("--memory", "400m", "--context", "data", "--work-dir", "ws", "--log-dir", "logs", "--instance-id", "two", "--json")
    done = in_process(tmp_path, "exec", code, *CONTAINER, *args)
    result = json.loads(done.stdout)
    assert (result["isolation"], done.returncode) == ("container", 1)
    assert "Read-only file system" in json.dumps(result["outputs"])
    assert (tmp_path / "ws" / "made").read_text() == "seen"
    log = (tmp_path / "logs" / "exec" / "docker_container.log").read_text()
    assert f"{tmp_path}/data -> {tmp_path}/data (ro)" in log
    assert "-two (" in log
    assert "Read-only file system" in log
    [line] = done.stderr.splitlines()
    assert line.startswith("kernelexec: code runs in containers of ")


def test_variables_are_set_or_passed_on(tmp_path: Path, in_process: Command) -> None:
    code = "import os; print(os.environ['A'], os.environ['B'])\n!echo $A"
    words = ("exec", code, "-e", "A=1 2=3", "--env", "B", *LOCAL, "--quiet")
    done = in_process(tmp_path, *words, B="b")
    assert (done.returncode, done.stdout) == (0, "1 2=3 b\n1 2=3\n"), done.stderr
    assert "must be a valid environment variable" in refused(in_process(tmp_path, "exec", "1", "-e", "=1", *LOCAL))


@pytest.mark.parametrize(
    "words",
    [
        ("exec", "1", *LOCAL, "--context", "~no-such-user/a"),
        ("files", "list", "--work-dir", "~no-such-user/a"),
        ("mcp", *LOCAL, "--packages-from", "~no-such-user/a"),
        ("mcp", *LOCAL, "--http", "--tokens", "~no-such-user/a"),
        ("mcp", *LOCAL, "--http", "--auth", "~no-such-user/a.py:make"),
        ("mcp-token", "a", "--tokens", "~no-such-user/a"),
    ],
    ids=lambda words: f"{words[0]} {words[-2]}",
)
def test_the_home_of_no_user_is_a_missing_path(tmp_path: Path, words: tuple[str, ...], in_process: Command) -> None:
    assert "~no-such-user/a" in refused(in_process(tmp_path, *words))
    assert not list(tmp_path.glob("~*"))
