"""Whether unix sockets cross: what signs say, what a trial says, and what becomes of a session then."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from kernelexec import Executor, KernelStartFailed
from kernelexec.config import Config, load
from kernelexec.docker.client import Engine
from kernelexec.docker.create_options import Order
from kernelexec.docker.engine_reports import Whereabouts, _listener
from kernelexec.docker.labels import ROOT
from kernelexec.errors import EngineRefused, EngineUnavailable
from kernelexec.provisioning import platform as systems
from kernelexec.provisioning.container import mounts, socket_probe
from kernelexec.provisioning.container.containers import DirectoryNotShared, create_container
from kernelexec.provisioning.container.socket_probe import guess, probe, probe_sockets
from kernelexec.provisioning.launch.kernelspec import KernelReadyTimeout
from tests.support.engine import BASE, IMAGE, MINIMAL, needs_engine
from tests.support.language_image import static_image
from tests.support.night import named_cases

pytestmark = needs_engine

OPTIONS: dict[str, object] = {"container": {"image": IMAGE}}
HERE = Whereabouts("unix:///s", "Some Linux", os.uname().nodename, os.uname().release, os.getpid())
NOBODY = 0


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_probe, "_reachable", {})
    monkeypatch.setattr(socket_probe, "_distrusted", set())


def signs(monkeypatch: pytest.MonkeyPatch, actual: socket_probe.Reachability | None) -> list[Path]:
    """Have them say that; where they were looked for."""
    asked: list[Path] = []

    def by_signs(_: Whereabouts, root: Path) -> socket_probe.Reachability | None:
        asked.append(root)
        return actual

    monkeypatch.setattr(socket_probe, "guess", by_signs)
    return asked


def config(workspace: Path) -> Config:
    return load("container", workspace=workspace, config=OPTIONS)


def where(**message: object) -> Whereabouts:
    fields = {name: getattr(HERE, name) for name in Whereabouts.__dataclass_fields__}
    return Whereabouts(**{**fields, **message})


def test_an_engine_that_sees_the_same_directory_shares_sockets(short_path: Path) -> None:
    assert guess(HERE, short_path) == "sockets"


@pytest.mark.parametrize(
    ("message", "sign"),
    [
        ({"system": "Docker Desktop"}, "files"),
        ({"listener": NOBODY}, None),
        ({"address": "ssh://somewhere"}, None),
        ({"address": "tcp://somewhere:2375"}, None),
        ({"address": "tcp://localhost:2375", "listener": NOBODY}, None),
    ],
)
def test_a_sign_is_believed_where_it_is_plain(short_path: Path, message: dict[str, object], sign: str | None) -> None:
    assert guess(where(**message), short_path) == sign


def test_another_machine_than_linux_has_its_engine_in_a_virtual_one(monkeypatch: pytest.MonkeyPatch, short_path: Path) -> None:
    monkeypatch.setattr(systems, "PLATFORM", systems.Platform.of("darwin"))
    assert guess(HERE, short_path) == "files"


@pytest.mark.parametrize(
    ("message", "inside", "sign"),
    [({}, False, "sockets"), ({}, True, None), ({"node": "another"}, False, None), ({"release": "another"}, False, None)],
)
def test_without_rights_in_the_engine_the_machine_decides(
    monkeypatch: pytest.MonkeyPatch, short_path: Path, message: dict[str, object], inside: object, sign: str | None
) -> None:
    stat = Path.stat

    def refused(path: Path, **options: bool) -> os.stat_result:
        if path.parts[1] == "proc":
            raise PermissionError
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refused)
    monkeypatch.setattr(socket_probe, "in_container", lambda: inside)
    assert guess(where(**message), short_path) == sign


@pytest.mark.parametrize(
    ("address", "remote"),
    [
        ("unix:///var/run/docker.sock", False),
        ("npipe:////./pipe/docker_engine", False),
        ("tcp://127.0.0.1:2375", True),
        ("tcp://localhost:2376", True),
        ("tcp://docker:2375", True),
        ("https://10.0.0.1", True),
        ("ssh://user@somewhere", True),
    ],
)
def test_an_engine_is_remote_if_its_address_says_so(address: str, remote: object) -> None:
    assert where(address=address).remote is remote


def test_this_machines_own_engine_says_where_it_is() -> None:
    with Engine() as engine:
        actual = Whereabouts.of(engine)
    assert (actual.release, actual.remote) == (platform.release(), False)
    assert actual.listener == _listener(actual.address)


def left(root: Path) -> list[object]:
    with Engine() as engine:
        return [*engine.list_containers(f"{ROOT}={root}"), *root.iterdir()]


def test_a_trial_finds_sockets(short_path: Path) -> None:
    with Engine() as engine:
        assert probe(engine, config(short_path), short_path, "python3") == "sockets"
    assert left(short_path) == []


PROGRAMS = {
    "files": "import sys; open(sys.argv[1] + '/file', 'w').close(); raise OSError('no socket here')",
    "nothing": "",
}


@pytest.mark.parametrize("actual", PROGRAMS)
def test_a_trial_finds_what_else_crosses(monkeypatch: pytest.MonkeyPatch, short_path: Path, actual: str) -> None:
    monkeypatch.setattr(socket_probe, "_PROGRAM", PROGRAMS[actual])
    with Engine() as engine:
        assert probe(engine, config(short_path), short_path, "python3") == actual
    assert left(short_path) == []


def test_a_socket_that_is_seen_but_not_connected_does_not_cross(monkeypatch: pytest.MonkeyPatch, short_path: Path) -> None:
    monkeypatch.setattr(socket_probe, "_PROBE_SECONDS", 1.0)
    monkeypatch.setattr(socket_probe, "_is_answering", lambda _: False)
    with Engine() as engine:
        assert probe(engine, config(short_path), short_path, "python3") == "files"
    assert left(short_path) == []


def test_an_engine_is_tried_once(monkeypatch: pytest.MonkeyPatch, short_path: Path) -> None:
    asked = signs(monkeypatch, None)
    trials = iter(["sockets"])
    monkeypatch.setattr(socket_probe, "probe", lambda *_: next(trials))
    assert [probe_sockets(config(short_path), short_path, "python3") for _ in range(3)] == [True] * 3
    assert len(asked) == 1


def test_after_a_doubt_signs_are_not_believed(monkeypatch: pytest.MonkeyPatch, short_path: Path) -> None:
    asked = signs(monkeypatch, "sockets")
    monkeypatch.setattr(socket_probe, "probe", lambda *_: "files")
    assert probe_sockets(config(short_path), short_path, "python3")
    socket_probe.forget()
    assert not probe_sockets(config(short_path), short_path, "python3")
    assert len(asked) == 1


def test_a_directory_that_the_engine_does_not_see_is_refused_with_the_ways_out(short_path: Path) -> None:
    order = Order(IMAGE, ("true",), {}, "1000", "/", ((f"{short_path}/gone", "/mnt", False),), {}, config(short_path).container)
    with Engine() as engine, pytest.raises(DirectoryNotShared, match=rf"does not see {short_path}/gone of this machine"):
        create_container(engine, order, "kernelexec-gone")


def test_a_trial_in_a_directory_that_the_engine_does_not_see_finds_nothing(
    monkeypatch: pytest.MonkeyPatch, short_path: Path
) -> None:
    def refused(*_: object) -> str:
        raise DirectoryNotShared(short_path)

    monkeypatch.setattr(socket_probe, "create_container", refused)
    with Engine() as engine:
        assert probe(engine, config(short_path), short_path, "python3") == "nothing"
    assert left(short_path) == []


def test_an_engine_here_may_see_the_workspace_if_not_the_private_directory(
    monkeypatch: pytest.MonkeyPatch, short_path: Path
) -> None:
    signs(monkeypatch, "nothing")
    assert not probe_sockets(config(short_path), short_path, "python3")


def test_an_engine_elsewhere_that_sees_nothing_of_this_machine_is_refused(
    monkeypatch: pytest.MonkeyPatch, short_path: Path
) -> None:
    signs(monkeypatch, "nothing")
    monkeypatch.setattr(Whereabouts, "of", lambda _: where(address="tcp://docker:2375"))
    with pytest.raises(KernelStartFailed, match=rf"does not see {short_path} of this machine.*run kernelexec on the engine's"):
        probe_sockets(config(short_path), short_path, "python3")


@pytest.mark.parametrize("actual", ["files", "sockets"])
def test_sockets_of_another_machine_are_not_used(
    monkeypatch: pytest.MonkeyPatch, short_path: Path, actual: socket_probe.Reachability
) -> None:
    signs(monkeypatch, actual)
    monkeypatch.setattr(Whereabouts, "of", lambda _: where(address="ssh://somewhere"))
    assert not probe_sockets(config(short_path), short_path, "python3")


def test_an_engine_elsewhere_is_only_asked_for_files(monkeypatch: pytest.MonkeyPatch, short_path: Path) -> None:
    monkeypatch.setattr(Whereabouts, "of", lambda _: where(address="tcp://docker:2375"))
    monkeypatch.setattr(socket_probe, "_PROGRAM", "")  # it would find nothing
    assert not probe_sockets(config(short_path), short_path, "python3")
    assert left(short_path) == []


@pytest.mark.parametrize(
    ("actual", "is_relayed"),
    named_cases({"sockets": ("sockets", False), "files": ("files", True), "nothing": (None, False)}, {"files", "nothing"}),
)
def test_a_session_is_reached_in_the_way_that_was_found(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    actual: socket_probe.Reachability | None,
    is_relayed: bool,  # noqa: FBT001 - of the cases
) -> None:
    signs(monkeypatch, actual)
    with Executor("container", workspace=tmp_path, config=OPTIONS) as executor:
        session = executor.session("a")
        assert session.execute("6 * 7").text == "42"
        assert session.connection_file is not None
        relay = Path(session.connection_file).with_name("relay")
        assert session.execute(f"import os; os.path.exists({str(relay)!r})").value is is_relayed


def test_a_kernel_whose_sockets_never_appear_is_reached_by_a_relay_next_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    signs(monkeypatch, "sockets")
    monkeypatch.setattr(socket_probe, "probe", lambda *_: "files")
    silent = tmp_path / "silent"
    silent.write_text(
        '#!/bin/sh\ncase "$KERNELEXEC_LAUNCH $*" in *signature_scheme* | *--relay*) exec python3 "$@";; esac\nexec sleep 600\n'
    )
    silent.chmod(0o755)
    mounts = [{"source": str(silent), "target": "/opt/silent"}]
    options = {"container": {"image": IMAGE, "python": "/opt/silent", "mounts": mounts}}
    config = options | {"budgets": {"start": 2.0}}
    with (
        Executor("container", workspace=tmp_path / "w", config=config) as executor,
        pytest.raises(KernelReadyTimeout, match=r"did not serve within 2\.0 s"),
    ):
        executor.session("a")
    with Executor("container", workspace=tmp_path / "w", config=options) as executor:
        assert executor.session("a").execute("6 * 7").text == "42"


@pytest.mark.nightly
def test_a_trial_in_an_image_without_python_has_one_mounted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    signs(monkeypatch, None)
    monkeypatch.setattr(mounts, "_chosen", {})
    monkeypatch.setattr(mounts, "RUNTIME_IMAGE", MINIMAL)
    options = {"container": {"image": static_image(BASE)}}
    with Executor("container", workspace=tmp_path, config=options) as executor:
        assert executor.session("a").execute("6 * 7").text == "42"
    assert list(socket_probe._reachable.values()) == [True]


def test_a_trial_without_python_says_so(short_path: Path) -> None:
    with Engine() as engine, pytest.raises(EngineRefused, match=r"cannot run nothing-here: .*nothing-here"):
        probe(engine, config(short_path), short_path, "nothing-here")
    assert left(short_path) == []


def test_an_engine_that_says_nothing_of_itself_is_a_kernel_that_does_not_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def away(_: object) -> Whereabouts:
        raise EngineUnavailable("The container engine does not describe itself.")

    with Executor("container", workspace=tmp_path, config=OPTIONS) as executor:
        monkeypatch.setattr(Whereabouts, "of", away)
        with pytest.raises(KernelStartFailed, match="does not describe itself"):
            executor.session("a")
