"""Containers in which code becomes root by sudo: which settings follow, and what an unknown user can do then."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor, InvalidConfig, KernelStartFailed, Session
from kernelexec.config import Config, Container, Limits, load
from kernelexec.config.protected_paths import CAPABILITIES
from kernelexec.docker.accounts import with_group, with_user, write_account
from kernelexec.docker.client import Engine
from kernelexec.docker.create_options import Order
from tests.engine import MINIMAL, SUDO, needs_engine

#: What ``CAPABILITIES`` are as the machine's kernel writes them.
KEPT = 0x200004FB
USER = "43210:43210"
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can start kernels of other users")
BOUNDS = "grep -E '^(CapEff|CapBnd|NoNewPrivs):' /proc/self/status"


def host_of(container: Container) -> dict[str, Any]:
    return Order("image", (), {}, "1:1", "/", (), {}, container, Limits()).host()


def config_of(image: str, **options: Any) -> Config:
    return load("container", config={"container": {"image": image, **options}})


def bounds_of(said: str) -> dict[str, int]:
    return {name: int(value, 16) for name, _, value in (line.partition(":\t") for line in said.splitlines())}


def test_sudo_lifts_what_it_names_and_nothing_else() -> None:
    plain, sudo = Container(), Container(sudo=True)
    changed = {name: value for name, value in sudo.model_dump().items() if value != plain.model_dump()[name]}
    assert changed == {
        "sudo": True,
        "image": ("kernelexec/agent-sudo",),
        "no_new_privileges": False,
        "cap_add": CAPABILITIES,
        "read_only_root": False,
    }


def test_the_engine_is_told_of_just_that() -> None:
    plain, sudo = host_of(Container()), host_of(Container(sudo=True))
    assert {name: value for name, value in sudo.items() if value != plain[name]} == {
        "read_only": False,
        "cap_add": list(CAPABILITIES),
        "security_opt": None,
        "extra_hosts": {"kernel": "127.0.0.1"},
    }
    assert sudo["cap_drop"] == ["ALL"]
    assert sudo["network_mode"] == "none"


@pytest.mark.parametrize(
    ("options", "hostname", "hosts"),
    [
        ({}, "kernel", {"kernel": "127.0.0.1"}),
        ({"hostname": "box"}, "box", {"box": "127.0.0.1"}),
        ({"network": "bridge"}, None, None),
        ({"network": "host"}, None, None),
    ],
)
def test_its_own_name_is_known_to_a_machine_without_network(
    options: dict[str, Any], hostname: str | None, hosts: dict[str, str] | None
) -> None:
    order = Order("image", (), {}, "1:1", "/", (), {}, Container(sudo=True, **options), Limits())
    assert order.settings()["hostname"] == hostname
    assert order.host()["extra_hosts"] == hosts


def test_a_root_that_is_to_be_read_only_stays_so_and_an_image_of_another_owner_too() -> None:
    container = Container(sudo=True, read_only_root=True, image=("mine/agent", "kernelexec/web:2"), network="bridge")
    assert container.read_only_root
    assert container.image == ("mine/agent", "kernelexec/web-sudo:2")
    assert container.network == "bridge"


def test_what_was_written_down_is_read_as_the_same() -> None:
    for container in (Container(sudo=True), Container(sudo=True, read_only_root=True, image=("kernelexec/web",))):
        assert Container.model_validate(container.model_dump(mode="json")) == container


def test_without_sudo_again_the_wall_is_as_it_was() -> None:
    with_it = load("container", config={"container": {"sudo": True}})
    without = load("container", config={**with_it.model_dump(exclude_unset=True), "container": {"sudo": False}})
    assert without.container == Container()
    shared = with_it.container.model_dump(exclude_unset=True)
    assert Container.model_validate({**shared, "sudo": False}) == Container()


@pytest.mark.parametrize(
    "given",
    [
        {"config": {"container": {"sudo": True, "no_new_privileges": True}}},
        {
            "config": {"container": {"sudo": True}},
            "code_execution_config": {"docker_run_args": ["--security-opt", "no-new-privileges"]},
        },
    ],
)
def test_what_contradicts_it_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match="container: sudo=True and no_new_privileges=True contradict each other"):
        load("container", **given)


def test_only_true_and_false_say_whether() -> None:
    with pytest.raises(InvalidConfig, match=r"container\.sudo"):
        load(config={"container": {"sudo": "yes"}})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"root:x:0:0::/root:/bin/sh\n", b"root:x:0:0::/root:/bin/sh\nkernel:*:7:8::/ws:/bin/sh\n"),
        (b"root:x:0:0::/root:/bin/sh", b"root:x:0:0::/root:/bin/sh\nkernel:*:7:8::/ws:/bin/sh\n"),
        (b"kernel:x:1:1::/:/bin/sh\n", b"kernel:x:1:1::/:/bin/sh\nkernel-7:*:7:8::/ws:/bin/sh\n"),
        (b"some:x:7:9::/:/bin/sh\n", b"some:x:7:9::/:/bin/sh\n"),
        (b"\xff:x:70:7::/:\n\n", b"\xff:x:70:7::/:\n\nkernel:*:7:8::/ws:/bin/sh\n"),
        (b"", b"kernel:*:7:8::/ws:/bin/sh\n"),
    ],
)
def test_a_user_who_has_no_account_gets_one_and_others_keep_theirs(before: bytes, after: bytes) -> None:
    assert with_user(before, "7:8", "/ws") == after


def test_a_group_gets_a_line_if_it_has_none() -> None:
    assert with_group(b"root:x:0:\n", "7:8") == b"root:x:0:\nkernel:*:8:\n"
    assert with_group(b"other:x:8:\n", "7:8") == b"other:x:8:\n"


@pytest.mark.parametrize("home", ["/a:b", "/a\nroot::0:0::/:/bin/sh", "/\udcff"])
def test_no_path_can_add_an_account(home: str) -> None:
    assert with_user(b"", "7:8", home) == b"kernel:*:7:8::/:/bin/sh\n"


def test_accounts_that_are_mounted_can_be_read_by_all_and_changed_by_nobody(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        mounts = write_account(tmp_path, {"passwd": b"old", "group": b""})
        assert write_account(tmp_path, {"passwd": b"new", "group": b""}) == mounts
    finally:
        os.umask(before)
    assert mounts == [(f"{tmp_path}/{name}", f"/etc/{name}", True) for name in ("passwd", "group")]
    assert (tmp_path / "passwd").read_bytes() == b"new"
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o644}
    assert {path.name for path in tmp_path.iterdir()} == {"passwd", "group"}


@needs_engine
def test_an_image_that_is_missing_is_said_how_to_make(tmp_path: Path) -> None:
    config = config_of("kernelexec/minimal:not-built", sudo=True)
    how = r"`kernelexec image build minimal --sudo --tag kernelexec/minimal-sudo:not-built` makes it"
    with Executor(workspace=tmp_path, config=config) as executor, pytest.raises(KernelStartFailed, match=how):
        executor.session("a")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Of a user whom nobody knows."""
    config = config_of(SUDO, user=USER, sudo=True)
    with Executor(workspace=tmp_path_factory.mktemp("w"), config=config) as executor:
        yield executor.session("a")


@needs_engine
@needs_root
def test_a_user_whom_the_image_does_not_know_becomes_root(session: Session) -> None:
    assert session.execute_command("sudo -n id -u").text == "0\n"
    assert session.execute_command("id -u; id -g; sudo -n true && echo done").text == "43210\n43210\ndone\n"
    result = session.execute_command("sudo -n touch /etc/x && stat -c %u /etc/x")
    assert (result.text, result.exit_code) == ("0\n", 0)


@needs_engine
@needs_root
def test_root_can_do_what_installing_a_package_takes(session: Session) -> None:
    command = (
        "sudo -n useradd --system made-here && id -un made-here && sudo -n chown made-here /usr/local && stat -c %U /usr/local"
    )
    assert session.execute_command(command).text == "made-here\nmade-here\n"


@needs_engine
@needs_root
def test_the_user_has_no_capability_and_root_has_those_that_are_said(session: Session) -> None:
    assert bounds_of(session.execute_command(BOUNDS).text) == {"CapEff": 0, "CapBnd": KEPT, "NoNewPrivs": 0}
    found = bounds_of(session.execute_command(f"sudo -n {BOUNDS}").text)
    assert found == {"CapEff": KEPT, "CapBnd": KEPT, "NoNewPrivs": 0}


@needs_engine
@needs_root
def test_what_root_runs_ends_with_its_command_however_deaf_it_is(session: Session) -> None:
    deaf = "sh -c 'trap \"\" HUP INT TERM; sleep 600; sleep 600'"
    result = session.execute_command(f"sudo -n {deaf}", timeout=1)
    assert (result.status, result.state) == ("error", "kept")
    assert "sleep" not in session.execute_command("cat /proc/[0-9]*/comm").text


@needs_engine
@needs_root
def test_a_restarted_kernel_has_it_too_and_nothing_of_what_root_did_before(session: Session) -> None:
    assert session.execute_command("sudo -n touch /etc/before").exit_code == 0
    session.restart()
    assert session.execute_command("sudo -n id -u; ls /etc/before").text.startswith("0\n")
    assert session.execute_command("test -e /etc/before").exit_code == 1


@needs_engine
@needs_root
def test_a_root_that_can_only_be_read_has_an_account_that_can_only_be_read(tmp_path: Path) -> None:
    config = config_of(SUDO, user=USER, sudo=True, read_only_root=True)
    with Executor(workspace=tmp_path, config=config) as executor:
        session = executor.session("a")
        assert session.execute_command("sudo -n id -u").text == "0\n"
        assert session.execute_command("sudo -n touch /etc/x").exit_code == 1
        assert session.execute_command("sudo -n sh -c 'echo x >> /etc/passwd'").exit_code != 0
        with Engine() as engine:
            (made,) = [one for one in engine.labelled("kernelexec.session=a") if str(tmp_path) in json.dumps(dict(one.labels))]
            mounts = {one["Destination"]: one for one in engine.api.inspect_container(made.id)["Mounts"]}
        private = Path(made.labels["kernelexec.root"])
        for file in ("/etc/passwd", "/etc/group"):
            assert Path(mounts[file]["Source"]).is_relative_to(private)
            assert not Path(mounts[file]["Source"]).is_relative_to(made.labels["kernelexec.runtime"])
            assert mounts[file]["RW"] is False
    assert not private.exists()


@needs_engine
def test_whoever_is_root_already_needs_no_account(tmp_path: Path) -> None:
    with Executor(workspace=tmp_path, config=config_of(SUDO, user="0:0", sudo=True)) as executor:
        session = executor.session("a")
        assert session.execute_command("sudo -n id -u; grep -c kernel- /etc/passwd").text == "0\n0\n"


@needs_engine
@needs_root
def test_an_image_without_accounts_runs_kernels_all_the_same(tmp_path: Path) -> None:
    with Engine() as engine:
        image = f"kernelexec-test/no-accounts:{os.getpid()}"
        made = engine.create(None, {"image": MINIMAL, "command": ["rm", "/etc/passwd", "/etc/group"], "user": "0"}, {})
        try:
            engine.start(made)
            assert engine.api.wait(made)["StatusCode"] == 0
            engine.api.commit(made, *image.split(":"))
        finally:
            engine.remove(made)
        try:
            with Executor(workspace=tmp_path, config=config_of(image, user=USER, sudo=True)) as executor:
                assert executor.session("a").execute("1 + 1").text == "2\n"
        finally:
            engine.api.remove_image(image)


@needs_engine
@needs_root
def test_without_the_option_the_same_image_gives_nobody_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without_rules = load("container", config={"container": {"image": SUDO, "user": USER}, "rules": {"dangers": False}})
    with Executor(workspace=tmp_path, config=without_rules) as executor:
        session = executor.session("a")
        assert session.execute_command("sudo -n id -u").exit_code == 1
        assert session.execute_command("touch /etc/x").exit_code == 1
        assert bounds_of(session.execute_command(BOUNDS).text) == {"CapEff": 0, "CapBnd": 0, "NoNewPrivs": 1}
        assert session.execute_command("id -un").exit_code == 1
    assert "with sudo" not in capsys.readouterr().err
