"""What is known of an image, and whether kernels can run in it: read from what it says, without an engine."""

from __future__ import annotations

import json

import pytest

from kernelexec.cli.image import check_image
from kernelexec.docker.images.image_info import ImageFacts, at_least, ipykernel_min

FULL = ImageFacts("sha256:1", "amd64", "3.11.2", "/usr/bin/python3", "7.4.0", "8.10.0", ("bash", "sh"), "24.1.0", "2.39.5")


def test_facts_of_an_image_are_read() -> None:
    spec = {"argv": ["python", "-m", "x", "-f", "{connection_file}"], "language": "python", "env": {"A": "b", "C": 1}}
    answer = {
        "python": "3.12.1",
        "executable": "/p",
        "ipykernel": "7.4.0",
        "kernelspecs": {"python3": {"directory": "/k", "spec": spec}},
    }
    text = (
        f"motd\nprogram=bash /bin/bash\nprogram=git git version 2.39.5\nprogram=node v24.1.0\nkernelexec={json.dumps(answer)}\n"
    )
    facts = ImageFacts.read(text, id="sha256:1", architecture="arm64")
    assert (facts.python, facts.ipykernel, facts.jupyter_client) == ("3.12.1", "7.4.0", None)
    assert (facts.shells, facts.git, facts.node) == (("bash",), "2.39.5", "24.1.0")
    assert facts.kernelspecs["python3"]["resource_dir"] == "/k"
    assert facts.kernelspecs["python3"]["spec"]["argv"][-1] == "{connection_file}"
    assert facts.kernelspecs["python3"]["spec"]["env"] == {"A": "b"}


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "nonsense",
        "[" * 100_000,
        "[]",
        '{"python": 3}',
        '{"python": "\\u001b[31m"}',
        '{"kernelspecs": {"a": {"spec": {"argv": [1]}}, "b": 1, "c": {"spec": []}}}',
        '{"kernelspecs": [1]}',
    ],
)
def test_an_image_that_says_nonsense_has_nothing(answer: str) -> None:
    facts = ImageFacts.read(f"kernelexec={answer}\n", id="sha256:1", architecture="amd64")
    assert (facts.python, facts.ipykernel, dict(facts.kernelspecs)) == (None, None, {})


def test_an_image_with_all_that_is_needed_serves() -> None:
    assert all(finding.ok for finding in check_image("mine", FULL))


def test_an_image_without_ipykernel_comes_with_the_way_to_add_it() -> None:
    lacking = [finding for finding in check_image("mine:1", ImageFacts("sha256:1", "amd64", "3.11.2", "/p")) if not finding.ok]
    assert [finding.check for finding in lacking if finding.needed] == ["ipykernel", "jupyter_client"]
    assert "`kernelexec image build minimal --base-image mine:1 --tag NAME`" in lacking[0].remedy
    assert f"pip install 'ipykernel>={ipykernel_min()}'" in lacking[0].remedy


@pytest.mark.parametrize(
    ("version", "enough"), [(None, False), ("6.31.0", False), ("7.2.9", False), ("7.3", True), ("10.0", True)]
)
def test_an_old_ipykernel_is_not_enough(version: str | None, enough: bool) -> None:  # noqa: FBT001 - a parameter
    assert at_least(version, "7.3") is enough
