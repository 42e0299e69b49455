"""Requests to build, and the engine's reports on them: no engine is used here."""

from __future__ import annotations

import json
import re
import ssl
import sys
from pathlib import Path

import pytest

from kernelexec.docker.images.build import BuildLog, BuildOrder
from kernelexec.docker.images.recipes import Recipe, authorities, download_command, own_authorities, python_of, recipe
from kernelexec.errors import InvalidRequest


def certificate() -> str:
    """Some certificate that this machine trusts, in PEM form."""
    return ssl.DER_cert_to_PEM_cert(ssl.create_default_context().get_ca_certs(binary_form=True)[0])


def test_authorities_are_taken_one_a_file_and_without_what_else_a_file_holds(tmp_path: Path) -> None:
    key = "-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n"
    (tmp_path / "mine.pem").write_text(key + certificate() + certificate())
    (tmp_path / "mine.der").write_bytes(ssl.PEM_cert_to_DER_cert(certificate()))
    actual = authorities([tmp_path / "mine.pem", tmp_path / "mine.der", tmp_path])
    assert [re.fullmatch(r"extra-ca/[0-9a-f]{16}\.crt", name) is not None for name in actual] == [True]
    assert all(b"secret" not in content for content in actual.values())


def test_what_is_no_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "not.crt").write_text("hello")
    with pytest.raises(InvalidRequest, match="holds no certificate"):
        authorities([tmp_path / "not.crt"])
    with pytest.raises(InvalidRequest, match="There is no file or directory"):
        authorities([tmp_path / "missing"])


def test_this_machines_own_authorities_are_those_that_were_added_to_it_or_else_all(tmp_path: Path) -> None:
    everything = own_authorities([tmp_path / "missing"])
    (tmp_path / "added.crt").write_text(certificate())
    assert len(own_authorities([tmp_path])) == 1
    assert len(everything) >= 1


PROXIES = {"https_proxy": "http://127.0.0.1:3128", "NO_PROXY": "localhost", "HTTP_PROXY": ""}
WHEELS = {"wheels/a-1-py3-none-any.whl": b""}
TRUST = {"extra-ca/a.crt": b""}


@pytest.mark.parametrize(
    ("order", "environment", "network"),
    [
        (BuildOrder(recipe("minimal")), {}, None),
        (BuildOrder(recipe("minimal")), PROXIES, "host"),
        (BuildOrder(recipe("minimal"), authorities=TRUST), {}, "host"),
        (BuildOrder(recipe("minimal"), wheels=WHEELS), PROXIES, "none"),
        (BuildOrder(recipe("minimal"), wheels=WHEELS, sudo=True), {}, None),
        (BuildOrder(recipe("agent"), wheels=WHEELS), {}, None),
        (BuildOrder(recipe("agent"), wheels=WHEELS, network="none"), {}, "none"),
        (BuildOrder(recipe("minimal"), authorities=TRUST, network="default"), PROXIES, "default"),
    ],
)
def test_a_build_has_the_network_that_it_needs(order: BuildOrder, environment: dict[str, str], network: str | None) -> None:
    assert order.network_for(environment) == network


def test_the_engine_gets_proxies_and_choices_as_arguments_and_no_others() -> None:
    order = BuildOrder(recipe("agent"), base_image="mine:1", sudo=True, platform="linux/arm64", cache=False)
    value = order.parameters(PROXIES | {"SECRET": "s"})
    assert json.loads(value["buildargs"]) == {
        "NO_PROXY": "localhost",
        "https_proxy": "http://127.0.0.1:3128",
        "SUDO": "yes",
        "BASE_IMAGE": "mine:1",
    }
    assert (value["t"], value["platform"], value["nocache"]) == ("kernelexec/agent-sudo", "linux/arm64", "1")


def test_wheels_are_asked_for_by_every_name_that_fits() -> None:
    command = download_command(Path("lists"), Path("out"), python="3.11.2", platform="linux/arm64")
    assert command[command.index("--python-version") + 1] == "3.11.2"
    assert {"manylinux_2_17_aarch64", "manylinux2014_aarch64", "manylinux_2_36_aarch64"} <= set(command)
    assert not [word for word in command if "x86_64" in word]


@pytest.mark.parametrize(
    ("python", "platform"), [("3", None), ("py3", None), ("3.11", "windows/amd64"), ("3.11", "linux/s390x")]
)
def test_wheels_for_what_has_none_are_refused(python: str, platform: str | None) -> None:
    with pytest.raises(InvalidRequest):
        download_command(Path("lists"), Path("out"), python=python, platform=platform)


def test_wheels_are_for_the_python_of_the_base_that_the_recipe_names() -> None:
    assert python_of(recipe("minimal")) == "3.13"
    here = "{}.{}".format(*sys.version_info[:2])
    assert python_of(Recipe("mine", {"Dockerfile": b"FROM debian"})) == here


def fold(*messages: dict[str, object]) -> tuple[BuildLog, list[str]]:
    log = BuildLog()
    return log, [line for message in messages for line in log.add(message)]


def log_entries(*lines: str) -> list[dict[str, object]]:
    return [{"stream": line} for line in lines]


def test_of_a_build_the_steps_are_shown_and_what_it_made_is_known() -> None:
    log, shown = fold(
        *log_entries("Step 1/3 : FROM base", "\n", " ---> 111111111111\n", "Step 2/3 : COPY a  b\n", " ---> Using cache\n"),
        *log_entries(" ---> 222222222222\nStep 3/3 : RUN x", "\n ---> Running in 999999999999\n", "out\n"),
        *log_entries("Removing intermediate container 999999999999\n", " ---> 333333333333\n"),
        {"aux": {"ID": "sha256:3"}},
    )
    assert shown == ["[1/3] FROM base", "[2/3] COPY a b", "[3/3] RUN x"]
    assert log.created_images == ["333333333333"]
    assert log.error == ""


def test_a_failed_step_is_reported_with_its_last_output() -> None:
    lines = [f"line {number}\n" for number in range(100)]
    log, _ = fold(
        *log_entries("Step 1/2 : RUN a\n", "earlier\n", "Step 2/2 : RUN b\n", *lines), {"error": "returned a non-zero code: 1"}
    )
    failure = log.failure()
    assert failure.startswith(" at step 2/2 RUN b: returned a non-zero code: 1\n")
    assert failure.endswith("  line 99")
    assert "earlier" not in failure
    assert "line 50" not in failure


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] ...", "--host-ca"),
        ("E: Temporary failure in name resolution", "--network host"),
        ("ERROR: No matching distribution found for ipykernel", "for this Python"),
        ("no space left on device: No space left on device", "Free some space"),
    ],
)
def test_a_failure_that_is_known_comes_with_the_way_out(line: str, hint: str) -> None:
    log, _ = fold(*log_entries("Step 1/1 : RUN a\n", f"\x1b[31m{line}\x1b[0m\n"), {"error": "code 1"})
    assert line in log.failure()
    assert hint in log.failure()


def test_a_build_that_says_without_end_costs_little() -> None:
    log, _ = fold(*log_entries("Step 1/1 : RUN a\n", *["x" * 10_000] * 100, "\n", *["y\n"] * 10_000))
    assert len(log.failure()) < 20 * 501
