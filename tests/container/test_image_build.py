"""Images built by a real engine, behind this machine's authorities and without any network; and what is left: nothing."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelexec.docker.client import Engine
from kernelexec.docker.images.build import BuildOrder, BuiltImage, build_image, built_images
from kernelexec.docker.images.image_python import PROBE, probe_image
from kernelexec.docker.images.recipes import Recipe, recipe, wheels_in
from kernelexec.errors import ImageBuildFailed, ImageMissing
from tests.conftest import Command
from tests.support.engine import BASE, MINIMAL, containers, nameless, needs_engine, output_of, own_authorities, removed_after
from tests.support.paths import ROOT
from tests.support.takeovers import wait_until

pytestmark = [needs_engine, pytest.mark.timeout(600)]  # an engine that is busy builds slowly

PINS = ROOT / "images/pins.txt"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as opened:
        yield opened


@pytest.fixture
def tag() -> str:
    return f"kernelexec-test-{uuid.uuid4().hex[:12]}"


def plain(packages: str) -> set[str]:
    """The lines of a list of packages, each name in its one form."""
    return {re.sub(r"[-_.]+(?=.*==)", "-", line).lower() for line in packages.splitlines()}


def small(*steps: str) -> Recipe:
    """A recipe that needs seconds, in two stages as ours are."""
    lines = [f"ARG BASE_IMAGE={BASE}", "FROM ${BASE_IMAGE} AS first", *steps, "FROM first", "LABEL kernelexec.image=small"]
    return Recipe("kernelexec/small", {"Dockerfile": "\n".join(lines).encode()})


def build(engine: Engine, created: Recipe, tag: str, *, network: str | None = "none", cache: bool = True) -> BuiltImage:
    return build_image(engine, BuildOrder(created, tag=tag, network=network, cache=cache))


def kernelexec(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernelexec", "image", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.nightly
@pytest.mark.timeout(1200)  # two whole builds
def test_the_smallest_image_is_built_behind_this_machines_authorities_and_without_network(
    engine: Engine, tag: str, tmp_path: Path
) -> None:
    before = nameless(engine)
    for name, content in own_authorities().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with removed_after(engine, tag, f"{tag}:offline"):
        trust = [word for path in tmp_path.glob("extra-ca") for word in ("--extra-ca", str(path))]
        online = kernelexec("build", "minimal", "--base-image", BASE, *trust, "--tag", tag)
        assert online.returncode == 0, online.stderr
        assert online.stdout.startswith(f"{tag}\t")
        assert "Step 1/" in online.stderr
        assert kernelexec("template", "minimal", "--output", str(tmp_path / "mine")).returncode == 0
        python = output_of(engine, BASE, "python3", "-c", "import platform; print(platform.python_version())")
        lists = ["-r", "requirements.txt", "-c", "pins.txt", "--dest", "wheels"]
        options = ["--only-binary", ":all:", "--python-version", python]
        download = [sys.executable, "-m", "pip", "download", "--quiet", *options, *lists]
        subprocess.run(download, cwd=tmp_path / "mine", check=True, timeout=900)
        wheels = wheels_in(tmp_path / "mine/wheels")
        order = BuildOrder(recipe("minimal"), wheels, base_image=BASE, network="none", tag=f"{tag}:offline", cache=False)
        built = build_image(engine, order)
        assert built.current
        installed = [output_of(engine, image, "pip", "freeze") for image in (tag, f"{tag}:offline")]
        assert installed[0] == installed[1]
        assert plain(installed[0]) <= plain(PINS.read_text(encoding="utf-8"))
        assert kernelexec("check", f"{tag}:offline").returncode == 0
    assert nameless(engine) <= before


def test_a_base_without_ipykernel_is_recognized_and_the_message_says_what_to_add(in_process: Command, tmp_path: Path) -> None:
    ended = in_process(tmp_path, "image", "check", BASE, "--json")
    answer = json.loads(ended.stdout)
    assert ended.returncode == 1
    lacking = [finding["check"] for finding in answer["findings"] if finding["needed"] and not finding["ok"]]
    assert lacking == ["ipykernel", "jupyter_client"]
    assert answer["facts"]["python"].startswith("3.")
    assert any("pip install 'ipykernel>=" in finding["fix"] for finding in answer["findings"])


def test_an_image_of_ours_serves_any_user_with_its_root_read_only(engine: Engine, in_process: Command, tmp_path: Path) -> None:
    facts = probe_image(engine, MINIMAL, thorough=True)
    assert facts.any_user
    assert facts.failure is None
    assert facts.shells == ("bash", "sh")
    assert facts.kernelspecs["python3"]["spec"]["language"] == "python"
    assert in_process(tmp_path, "image", "check", MINIMAL).returncode == 0


def test_an_image_of_ours_is_compiled(engine: Engine) -> None:
    program = (
        "import importlib.util, pathlib, sysconfig\n"
        "sources = pathlib.Path(sysconfig.get_path('purelib')).rglob('*.py')\n"
        "print([str(path) for path in sources if not pathlib.Path(importlib.util.cache_from_source(path)).exists()])\n"
    )
    assert output_of(engine, MINIMAL, "python3", "-c", program) == "[]"


def test_probes_of_an_image_leave_no_container(engine: Engine) -> None:
    probe_image(engine, BASE)
    assert not [actual for actual in containers(engine, PROBE) if actual["ImageID"] == probe_image(engine, BASE).id]


def test_an_image_that_is_not_there_is_called_missing_with_the_way_to_get_it(
    engine: Engine, in_process: Command, tmp_path: Path
) -> None:
    with pytest.raises(ImageMissing, match="is not here"):
        probe_image(engine, "kernelexec/minimal:never-built")
    ended = in_process(tmp_path, "image", "check", "kernelexec/minimal:never-built")
    assert ended.returncode == 125
    assert "`kernelexec image build minimal --tag kernelexec/minimal:never-built` makes it." in ended.stderr


def test_an_image_without_python_or_shell_is_described_all_the_same(engine: Engine, tag: str) -> None:
    nothing = Recipe("", {"Dockerfile": b"FROM scratch\nCOPY a /a\n", "a": b"a"})
    shell = small("RUN rm -rf /usr/bin/python3*")
    with removed_after(engine, tag, f"{tag}:shell"):
        build(engine, nothing, tag)
        build(engine, shell, f"{tag}:shell")
        empty, without_python = probe_image(engine, tag), probe_image(engine, f"{tag}:shell")
    assert (empty.python, empty.shells) == (None, ())
    assert (without_python.python, without_python.shells) == (None, ("bash", "sh"))
    assert empty.architecture == without_python.architecture


def test_an_interpreter_that_only_root_may_run_is_reported_as_such(engine: Engine, tag: str) -> None:
    private = small(
        "RUN python3 -m venv --copies --without-pip /root/venv && chmod 0700 /root", "ENV PATH=/root/venv/bin:$PATH"
    )
    hidden = small("RUN chmod 0700 $(readlink -f /usr/bin/python3)")
    with removed_after(engine, tag, f"{tag}:hidden"):
        build(engine, hidden, f"{tag}:hidden")
        facts = probe_image(engine, f"{tag}:hidden")
        build(engine, private, tag)
        other = probe_image(engine, tag)
    assert facts.python is not None
    assert not facts.any_user
    assert other.executable == "/usr/bin/python3"


def test_a_failed_build_says_which_step_and_its_output_and_leaves_nothing(engine: Engine, tag: str) -> None:
    before, running = nameless(engine), {actual["Id"] for actual in containers(engine)}
    steps = ("RUN echo done > /a", f"RUN echo {tag} && echo it broke >&2 && exit 3")
    output: list[str] = []
    reason = rf"The image {tag} was not built: The command .*echo {tag} && .* returned a non-zero code: 3$"
    with pytest.raises(ImageBuildFailed, match=reason):
        build_image(engine, BuildOrder(small(*steps), tag=tag, network="none", cache=False), output.append)
    assert f"Step 4/7 : RUN echo {tag}" in "".join(output)
    assert "\nit broke\n" in "".join(output)
    assert nameless(engine) <= before
    assert not [actual for actual in containers(engine) if actual["Id"] not in running and tag in actual["Command"]]


def test_a_build_without_network_fails_with_the_way_out(engine: Engine, tag: str) -> None:
    download = small("RUN python3 -m pip download --retries 1 --no-deps -d /x six")
    with pytest.raises(ImageBuildFailed, match="The build has no network: try --network host"):
        build(engine, download, tag)


def test_a_base_that_is_not_there_is_named(engine: Engine, tag: str) -> None:
    order = BuildOrder(recipe("minimal"), base_image="kernelexec-test-missing:1", tag=tag)
    with pytest.raises(
        ImageBuildFailed, match=r"(?s)upon kernelexec-test-missing:1: .*The base image is not here.*--base-image"
    ):
        build_image(engine, order)


def test_ctrl_c_ends_a_build_and_leaves_nothing(engine: Engine, tag: str, tmp_path: Path) -> None:
    before = nameless(engine)
    (tmp_path / "Dockerfile").write_bytes(small(f"RUN echo {tag}", f"RUN echo {tag} && sleep 600").files["Dockerfile"])  # type: ignore[arg-type]
    command = [
        sys.executable,
        "-m",
        "kernelexec",
        "image",
        "build",
        str(tmp_path),
        "--tag",
        tag,
        "--no-cache",
        "--network",
        "none",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as building:
        assert building.stderr is not None
        for line in building.stderr:
            if "sleep 600" in line:
                break
        building.send_signal(signal.SIGINT)
        rest = building.stderr.read()
    assert building.returncode == 130
    assert "kernelexec: The build was ended." in rest
    assert "Traceback" not in rest
    wait_until(
        lambda: not [actual for actual in containers(engine) if tag in actual["Command"]]
    )  # the engine ends it by itself
    assert nameless(engine) <= before


def test_a_build_takes_the_place_of_the_one_before(engine: Engine, tag: str) -> None:
    with removed_after(engine, tag):
        first = build(engine, small(f"RUN echo {tag}"), tag)
        second = build(engine, small(f"RUN echo {tag} again"), tag)
        ours = {image.id: image for image in built_images(engine)}
        assert first.id not in ours
        assert (ours[second.id].names, ours[second.id].recipe, ours[second.id].current) == ((tag,), "small", False)


def test_proxies_are_known_to_the_steps_and_not_to_the_image(engine: Engine, tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:secret@127.0.0.1:9")
    with removed_after(engine, tag):
        build_image(
            engine, BuildOrder(small('RUN test "$HTTP_PROXY" = http://user:secret@127.0.0.1:9'), tag=tag, network="none")
        )
        kept = json.dumps([engine.api.inspect_image(tag), engine.api.history(tag)])
    assert "CreatedBy" in kept
    assert "user:secret@127.0.0.1:9 " not in kept.replace('test \\"$HTTP_PROXY\\" = http://user:secret@127.0.0.1:9', "")


def test_a_private_authority_is_trusted_by_the_image(engine: Engine) -> None:
    own = own_authorities()
    trusted = output_of(engine, MINIMAL, "cat", "/etc/ssl/certs/ca-certificates.crt")
    assert all(content.decode().strip() in trusted for content in own.values())
