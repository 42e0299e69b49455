"""Requests to build: no engine is used here."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

import pytest

from kernelexec.docker.images.build import BuildOrder
from kernelexec.docker.images.recipes import Recipe, authorities, recipe
from kernelexec.errors import InvalidRequest


def certificate() -> str:
    """Some certificate that this machine trusts, in PEM form."""
    return ssl.DER_cert_to_PEM_cert(ssl.create_default_context().get_ca_certs(binary_form=True)[0])


def test_authorities_are_taken_one_a_file_and_without_what_else_a_file_holds(tmp_path: Path) -> None:
    key = "-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n"
    (tmp_path / "mine.crt").write_text(key + certificate() + certificate())
    (tmp_path / "notes.txt").write_text("hello")
    assert authorities([tmp_path / "mine.crt"]) == authorities([tmp_path])
    actual = authorities([tmp_path / "mine.crt", tmp_path])
    assert [re.fullmatch(r"extra-ca/[0-9a-f]{16}\.crt", name) is not None for name in actual] == [True]
    assert [content.decode() for content in actual.values()] == [certificate()]


def test_files_without_a_certificate_are_refused(tmp_path: Path) -> None:
    (tmp_path / "not.crt").write_text("hello")
    with pytest.raises(InvalidRequest, match="holds no certificate"):
        authorities([tmp_path / "not.crt"])
    with pytest.raises(InvalidRequest, match="missing holds no certificate"):
        authorities([tmp_path / "missing"])


PROXIES = {"https_proxy": "http://127.0.0.1:3128", "NO_PROXY": "localhost", "HTTP_PROXY": ""}
WHEELS = {"wheels/a-1-py3-none-any.whl": b""}
TRUST = {"extra-ca/a.crt": b""}
TEMPLATE = Recipe("mine", {"Dockerfile": b"", "extra-ca/README.md": b"", **TRUST})


@pytest.mark.parametrize(
    ("order", "environment", "network"),
    [
        (BuildOrder(recipe("minimal")), {}, None),
        (BuildOrder(recipe("minimal")), PROXIES, "host"),
        (BuildOrder(recipe("minimal"), TRUST), {}, "host"),
        (BuildOrder(TEMPLATE), {}, "host"),
        (BuildOrder(recipe("minimal"), WHEELS), {}, None),
        (BuildOrder(recipe("minimal"), WHEELS, network="none"), PROXIES, "none"),
        (BuildOrder(recipe("minimal"), TRUST, network="default"), PROXIES, "default"),
    ],
)
def test_a_build_has_the_network_that_it_needs(order: BuildOrder, environment: dict[str, str], network: str | None) -> None:
    assert order.options(environment)["network_mode"] == network


def test_the_engine_gets_proxies_and_choices_as_arguments_and_no_others() -> None:
    order = BuildOrder(recipe("agent"), base_image="mine:1", sudo=True, platform="linux/arm64", cache=False)
    value = order.options(PROXIES | {"SECRET": "s"})
    assert value["buildargs"] == {
        "NO_PROXY": "localhost",
        "https_proxy": "http://127.0.0.1:3128",
        "SUDO": "yes",
        "BASE_IMAGE": "mine:1",
    }
    assert (value["tag"], value["platform"], value["nocache"]) == ("kernelexec/agent-sudo", "linux/arm64", True)
