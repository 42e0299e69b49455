"""The recipes of images, and all about building them that needs no engine."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest

from kernelexec.config.container import NAMES, sudo_variant
from kernelexec.docker.images.image_info import at_least, ipykernel_min
from kernelexec.docker.images.recipes import (
    how_to_get,
    pack_files,
    recipe,
    wheels_in,
    write_template,
)
from kernelexec.errors import InvalidRequest
from tests.support.paths import ROOT

IMAGES = ROOT / "images"
SCRIPTS = sorted(IMAGES.glob("setup/*.sh"))
INSTRUCTION = re.compile(r"(ARG|FROM|USER|COPY|RUN|LABEL|ENV|WORKDIR|CMD|EXPOSE|STOPSIGNAL|ENTRYPOINT|HEALTHCHECK) \S.*")


def instructions(name: str) -> list[str]:
    """The instructions of an image's Dockerfile, each as one line, with its name in the place of the argument."""
    content = recipe(name).files["Dockerfile"]
    text = (content if isinstance(content, bytes) else content.read_bytes()).decode()
    image = re.search(r"^ARG IMAGE=(.*)$", text, re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).replace("${IMAGE}", image[1] if image else "").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("name", NAMES)
def test_every_line_of_a_dockerfile_is_an_instruction(name: str) -> None:
    assert all(INSTRUCTION.fullmatch(line) for line in instructions(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_says_which_image_it_makes_and_what_for(name: str) -> None:
    assert f"LABEL kernelexec.image={name}" in instructions(name)
    assert recipe(name).tag == f"kernelexec/{name}"
    assert recipe(name).purpose


@pytest.mark.parametrize("name", NAMES)
def test_an_image_is_built_upon_a_base_that_can_be_chosen_and_names_no_registry(name: str) -> None:
    argument, first = instructions(name)[:2]
    assert re.fullmatch(r"ARG BASE_IMAGE=python:3\.\d+-slim", argument)
    assert first == "FROM ${BASE_IMAGE} AS system"


@pytest.mark.parametrize("name", NAMES)
def test_an_image_has_an_ordinary_user_known_by_number(name: str) -> None:
    users = [line for line in instructions(name) if line.startswith("USER")]
    assert users[-1] == "USER 1000:1000"


@pytest.mark.parametrize("name", NAMES)
def test_every_file_that_a_dockerfile_copies_is_in_the_context(name: str) -> None:
    files = recipe(name).files
    for line in instructions(name):
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert any(file == source or file.startswith(source) for file in files), source


@pytest.mark.parametrize("path", [*SCRIPTS, *IMAGES.glob("Dockerfile*")], ids=lambda path: str(path.relative_to(IMAGES)))
def test_no_step_is_for_one_architecture_or_fetches_by_address(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"x86|amd64|i386|aarch64|arm64|uname|https?://|ADD |wget|curl -", text)


def find_lines_without_version(lines: list[str]) -> list[str]:
    """Return the lines of a list of packages that name no exact version; comments and empty lines aside."""
    requirements = [line.split("#")[0].strip() for line in lines]
    return [line for line in requirements if line and not re.fullmatch(r"[a-z0-9][a-z0-9._-]*==[0-9][\w.+!-]*", line)]


def test_every_package_is_pinned_to_one_version() -> None:
    pins = (IMAGES / "pins.txt").read_text(encoding="utf-8").splitlines()
    assert find_lines_without_version(pins) == []
    names = [line.split("==")[0] for line in pins if "==" in line]
    assert len(names) == len(set(names)) > 50


@pytest.mark.parametrize("name", NAMES)
def test_every_package_of_an_image_has_a_pin(name: str) -> None:
    pins = {line.split("==")[0] for line in (IMAGES / "pins.txt").read_text(encoding="utf-8").splitlines()}
    wanted = (IMAGES / "requirements" / f"{name}.txt").read_text(encoding="utf-8").splitlines()[1:]
    assert set(wanted) <= pins
    assert wanted == sorted(wanted)
    assert "ipykernel" in wanted


@pytest.mark.parametrize(
    ("line", "loose"), [("numpy", True), ("numpy>=2", True), ("numpy==2.*", True), ("numpy==2.4.6", False), ("# a", False)]
)
def test_a_pin_is_one_exact_version(line: str, loose: bool) -> None:  # noqa: FBT001 - a parameter
    assert bool(find_lines_without_version([line])) is loose


def test_the_pinned_ipykernel_is_one_that_the_check_lets_pass() -> None:
    pins = (IMAGES / "pins.txt").read_text(encoding="utf-8")
    actual = re.search(r"^ipykernel==(\S+)", pins, re.MULTILINE)
    assert actual
    assert at_least(actual[1], ipykernel_min())


def test_an_unknown_image_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidRequest, match=r"did you mean 'agent'"):
        recipe("agnet")


def test_a_directory_without_a_dockerfile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="holds no Dockerfile"):
        recipe(str(tmp_path / "mine"))


def test_a_template_builds_what_its_image_is_built_from(tmp_path: Path) -> None:
    written = write_template("minimal", tmp_path / "mine")
    mine = recipe(str(tmp_path / "mine"))
    assert tmp_path / "mine/Dockerfile" in written
    assert mine.digest == recipe("minimal").digest
    assert (mine.tag, mine.purpose) == ("kernelexec/mine", recipe("minimal").purpose)


def test_a_template_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "pins.txt").write_text("mine")
    with pytest.raises(InvalidRequest, match=r"pins\.txt is there already"):
        write_template("minimal", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["pins.txt"]


def test_the_same_files_make_the_same_context(tmp_path: Path) -> None:
    wheel = tmp_path / "a-1-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    files = {**recipe("minimal").files, **wheels_in(tmp_path)}
    with pack_files(files) as first, pack_files(dict(reversed(files.items()))) as second:
        assert first.read() == second.read()
        first.seek(0)
        with tarfile.open(fileobj=first) as tar:
            assert set(tar.getnames()) == {*recipe("minimal").files, "wheels/a-1-py3-none-any.whl"}
            assert {member.uid for member in tar} == {0}


def test_an_empty_directory_of_wheels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"holds no wheel .*`pip download --dest .*` fetches them"):
        wheels_in(tmp_path)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("kernelexec/agent", "`kernelexec image build agent` makes it."),
        ("kernelexec/agent:latest", "`kernelexec image build agent` makes it."),
        ("kernelexec/agent:2", "`kernelexec image build agent --tag kernelexec/agent:2` makes it."),
        ("kernelexec/data-science-sudo", "`kernelexec image build data-science --sudo` makes it."),
        (
            "kernelexec/agnet",
            "None of that name can be built (did you mean 'agent'?): `kernelexec image list` shows which can.",
        ),
        (
            "python:3.13",
            "`docker pull python:3.13` gets it, if a registry has it; `kernelexec image build agent` makes one of ours.",
        ),
    ],
)
def test_missing_images_are_reported_with_the_way_to_get_them(image: str, message: str) -> None:
    assert how_to_get(image) == message


@pytest.mark.parametrize(
    ("image", "with_it"),
    [
        ("kernelexec/agent", "kernelexec/agent-sudo"),
        ("kernelexec/agent:2", "kernelexec/agent-sudo:2"),
        ("kernelexec/agent-sudo", "kernelexec/agent-sudo"),
        ("mine/agent:2", "mine/agent:2"),
        ("kernelexec/other", "kernelexec/other"),
    ],
)
def test_sudo_takes_another_image_of_ours_and_keeps_one_that_was_named(image: str, with_it: str) -> None:
    assert sudo_variant(image) == with_it
