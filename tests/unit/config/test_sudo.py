"""Containers in which code becomes root by sudo: which settings follow, and what an unknown user can do then."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from kernelexec import InvalidConfig
from kernelexec.config import Container, Limits, load
from kernelexec.config.dialects.autogen_config import load as load_dialect
from kernelexec.config.protected_paths import CAPABILITIES
from kernelexec.docker.accounts import with_group, with_user, write_account
from kernelexec.docker.create_options import Order


def host_of(container: Container) -> dict[str, Any]:
    return Order("image", (), {}, "1:1", "/", (), {}, container, Limits()).host()


def test_sudo_lifts_what_it_names_and_nothing_else() -> None:
    plain, sudo = Container(), Container(sudo=True)
    changed = {name: value for name, value in sudo.model_dump().items() if value != plain.model_dump()[name]}
    assert changed == {
        "sudo": True,
        "image": ("kernelexec/agent-sudo",),
        "cap_add": CAPABILITIES,
        "read_only_root": False,
    }


def test_the_engine_gets_just_that() -> None:
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
        ({"network": "bridge"}, None, None),
        ({"network": "host"}, None, None),
    ],
)
def test_hostname_resolves_in_a_container_without_network(
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


def test_serialized_containers_are_read_back_equal() -> None:
    for container in (Container(sudo=True), Container(sudo=True, read_only_root=True, image=("kernelexec/web",))):
        assert Container.model_validate(container.model_dump(mode="json")) == container


def test_without_sudo_again_the_wall_is_as_it_was() -> None:
    with_it = load("container", config={"container": {"sudo": True}})
    without = load("container", config={**with_it.model_dump(exclude_unset=True), "container": {"sudo": False}})
    assert without.container == Container()
    shared = with_it.container.model_dump(exclude_unset=True)
    assert Container.model_validate({**shared, "sudo": False}) == Container()


def test_an_argument_against_new_privileges_switches_it_off() -> None:
    arguments = {"docker_run_args": ["--security-opt", "no-new-privileges"]}
    loaded = load_dialect("container", config={"container": {"sudo": True}}, code_execution_config=arguments)
    assert host_of(loaded.container) == host_of(Container())


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
def test_a_user_without_an_account_gets_one_and_others_keep_theirs(before: bytes, after: bytes) -> None:
    assert with_user(before, "7:8", "/ws") == after


def test_a_group_gets_a_line_if_it_has_none() -> None:
    assert with_group(b"root:x:0:\n", "7:8") == b"root:x:0:\nkernel:*:8:\n"
    assert with_group(b"other:x:8:\n", "7:8") == b"other:x:8:\n"


@pytest.mark.parametrize("home", ["/a:b", "/a\nroot::0:0::/:/bin/sh", "/\udcff"])
def test_no_path_can_add_an_account(home: str) -> None:
    assert with_user(b"", "7:8", home) == b"kernel:*:7:8::/:/bin/sh\n"


def test_mounted_accounts_can_be_read_by_all_users_and_changed_by_none(tmp_path: Path) -> None:
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
