"""What a kernel's container is: as the engine describes it, and as code in it finds it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor, InvalidConfig, InvalidWorkDir, KernelStartFailed, Session
from kernelexec.config import Container
from kernelexec.docker.client import Engine
from kernelexec.docker.create_options import Order
from kernelexec.provisioning.runtime.owned_directory import OwnerRecord
from tests.conftest import KINDS
from tests.support.engine import needs_engine
from tests.support.night import at_night, named_cases

pytestmark = needs_engine

IMAGE = KINDS["container"]["container"]
MIB = 1024 * 1024
LOOK = """
import os, socket, json
status = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)
print(json.dumps({
    'interfaces': [name for _, name in socket.if_nameindex()],
    **{name: status[name].strip() for name in ('CapEff', 'CapPrm', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp')},
    'uid': os.getuid(), 'gid': os.getgid(), 'groups': os.getgroups(),
    'environment': dict(os.environ),
    'cwd': os.getcwd(),
}))
"""
#: Ways to write where only reading is possible; each says what came of it.
WRITES = """
import os
def tried(path):
    try:
        with open(path, 'w') as file:
            file.write('x')
    except OSError as exc:
        return type(exc).__name__, exc.errno
    return 'written', 0
"""


def opened(workspace: Path, **options: Any) -> Executor:
    return Executor(isolation="container", workspace=workspace, config={"container": {**dict(IMAGE), **options}})  # type: ignore[call-overload]


def described(session: Session) -> dict[str, Any]:
    """The one container that has that session's workspace."""
    with Engine() as engine:
        own = engine.list_containers(f"kernelexec.workspace={session.workspace.parent}")
        actual = [engine.api.inspect_container(item.id) for item in own]
    (only,) = [answer for answer in actual if any(mount["Source"] == str(session.workspace) for mount in answer["Mounts"])]
    return dict(only)


def inside(session: Session) -> dict[str, Any]:
    return dict(json.loads(session.execute(LOOK).text))


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    options = {"memory_bytes": 512 * MIB, "cpus": 0.5, "pids": 100, "tmpfs": {"/tmp": 32 * MIB, "/dev/shm": 16 * MIB}}
    config = {"container": {**dict(IMAGE), **options}, "limits": {"nofile": 512}}  # type: ignore[call-overload]
    with Executor(isolation="container", workspace=tmp_path_factory.mktemp("w"), config=config) as item:
        yield item


@pytest.fixture(scope="module")
def session(executor: Executor) -> Session:
    """One for all tests that only look."""
    return executor.session("looked-at")


def test_the_engine_describes_a_container_that_is_locked_down(session: Session) -> None:
    answer = described(session)
    host, config = answer["HostConfig"], answer["Config"]
    assert host["NetworkMode"] == "none"
    assert host["ReadonlyRootfs"] is True
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert host["Memory"] == host["MemorySwap"] == 512 * MIB
    assert host["NanoCpus"] == 500_000_000
    assert host["PidsLimit"] == 100
    assert host["Init"] is False  # its first process is an init of ours
    assert host["IpcMode"] == "private"
    assert host["ShmSize"] == 16 * MIB
    assert host["Tmpfs"] == {"/tmp": f"rw,noexec,nosuid,nodev,size={32 * MIB},mode=1777"}
    limits = {limit["Name"]: (limit["Soft"], limit["Hard"]) for limit in host["Ulimits"]}
    assert limits == {"core": (0, 0), "nofile": (512, 512)}
    assert host["LogConfig"] == {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}}
    assert config["User"] == f"{os.getuid()}:{os.getgid()}"
    assert (host["Privileged"], host["PidMode"], host["UTSMode"], host["UsernsMode"]) == (False, "", "", "")
    assert not host["Devices"]
    assert not host["PortBindings"]
    assert not host["AutoRemove"]
    assert host["RestartPolicy"]["Name"] in ("", "no")


def test_a_container_has_three_mounts_and_says_whose_it_is(executor: Executor, session: Session) -> None:
    answer = described(session)
    labels = answer["Config"]["Labels"]
    assert labels["kernelexec.session"] == "looked-at"
    assert labels["kernelexec.workspace"] == str(session.workspace.parent)
    assert json.loads(labels["kernelexec.owner"])["pid"] == os.getpid()
    runtime, root = labels["kernelexec.runtime"], labels["kernelexec.root"]
    assert Path(runtime).is_relative_to(root)
    assert Path(runtime).stat().st_mode & 0o777 == 0o700
    mounts = {mount["Destination"]: (mount["Source"], mount["RW"], mount["Propagation"]) for mount in answer["Mounts"]}
    launcher, _, _ = mounts.pop("/opt/kernelexec/launcher")
    assert launcher.endswith("/kernelexec/launcher")
    assert mounts == {
        str(session.workspace): (str(session.workspace), True, "rprivate"),
        runtime: (runtime, True, "rprivate"),
    }


def test_code_finds_no_network_no_capability_and_none_of_the_servers_variables(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVERS_OWN", "1")
    session.restart()
    actual = inside(session)
    assert actual["interfaces"] == ["lo"]
    assert {actual[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (actual["NoNewPrivs"], actual["Seccomp"]) == ("1", "2")
    assert (actual["uid"], actual["gid"], actual["groups"]) == (os.getuid(), os.getgid(), [os.getgid()])
    assert actual["cwd"] == actual["environment"]["HOME"] == str(session.workspace)
    assert "SERVERS_OWN" not in actual["environment"]
    with Engine() as engine:
        of_image = engine.api.inspect_image(dict(IMAGE)["image"])["Config"]["Env"]  # type: ignore[call-overload]
    shared = {f"{name}={value}" for name, value in actual["environment"].items() if os.environ.get(name) == value}
    assert shared - set(of_image) <= {"LANG=C.UTF-8", "LC_CTYPE=C.UTF-8", "TERM=xterm"}


def test_a_file_that_code_makes_belongs_to_the_caller(session: Session) -> None:
    assert session.execute("open('made', 'w').close()").files == ("made",)
    actual = (session.workspace / "made").stat()
    assert (actual.st_uid, actual.st_gid) == (os.getuid(), os.getgid())


def test_only_the_workspace_and_temporary_places_can_be_written(session: Session) -> None:
    session.execute(WRITES)
    for path in (
        "/x",
        "/etc/x",
        "/usr/x",
        "/root/x",
        "/var/x",
        "/opt/kernelexec/launcher/x",
        "/opt/kernelexec/launcher/app.py",
    ):
        assert session.execute(f"tried({path!r})").text == "('OSError', 30)", path
    for path in ("/tmp/x", "/dev/shm/x", f"{session.workspace}/x"):
        assert session.execute(f"tried({path!r})").text == "('written', 0)", path
    for path in ("/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/sys/x", "/proc/sys/vm/drop_caches"):
        assert "Error" in session.execute(f"tried({path!r})").text, path


def test_each_bound_holds_inside(session: Session) -> None:
    full = session.execute("open('/tmp/full', 'wb').write(b'x' * (40 << 20))")
    assert full.error is not None
    assert "No space left" in full.error.evalue
    session.execute("import os; os.remove('/tmp/full')")
    many = session.execute("held = [open('/dev/null') for _ in range(600)]")
    assert many.error is not None
    assert "Too many open files" in many.error.evalue
    assert session.execute("1 + 1").text == "2"
    assert session.execute_command("install -m 755 /dev/null /tmp/run.sh && /tmp/run.sh").exit_code == 126


RELAXED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the machine's network": ({"network": "host"}, {"NetworkMode": "host"}),
    "a root that can be written": ({"read_only_root": False}, {"ReadonlyRootfs": False, "Init": True}),
    "a capability": ({"cap_add": ["CHOWN"]}, {"CapAdd": ["CHOWN"], "CapDrop": ["ALL"]}),
    "no limit of memory": ({"memory_bytes": None}, {"Memory": 0, "MemorySwap": 0}),
    "no limit of processors": ({"cpus": None}, {"NanoCpus": 0}),
    "no limit of processes": ({"pids": None}, {"PidsLimit": None}),
}
_LOCKED = {
    "NetworkMode": "none",
    "ReadonlyRootfs": True,
    "CapDrop": ["ALL"],
    "CapAdd": None,
    "SecurityOpt": ["no-new-privileges:true"],
    "NanoCpus": 1_000_000_000,
    "PidsLimit": 256,
    "Init": False,
    "IpcMode": "private",
    "Privileged": False,
}


@pytest.mark.parametrize(("options", "changed"), named_cases(RELAXED, {"the machine's network", "a capability"}))
def test_a_relaxation_changes_what_it_names_and_nothing_else(
    tmp_path: Path, options: dict[str, Any], changed: dict[str, Any]
) -> None:
    with opened(tmp_path, **options) as executor:
        session = executor.session("a")
        host, actual = described(session)["HostConfig"], inside(session)
    expected = {**_LOCKED, **changed}
    assert {name: host[name] or (None if expected[name] is None else host[name]) for name in expected} == expected
    assert (actual["interfaces"] == ["lo"]) is (expected["NetworkMode"] == "none")
    assert actual["NoNewPrivs"] == ("0" if "SecurityOpt" in changed else "1")
    assert int(actual["CapBnd"], 16) == (1 if "CapAdd" in changed else 0)
    assert actual["Seccomp"] == "2"


def test_the_engines_own_network_is_had_by_its_name() -> None:
    order = Order("image", (), {}, "1:1", "/", (), {}, Container(network="bridge"))
    assert order.host()["network_mode"] == "bridge"


@pytest.mark.parametrize("layout", ["classic", *at_night("host")])
def test_mounts_have_their_places_and_modes_in_both_layouts(tmp_path: Path, layout: str) -> None:
    for name in ("read", "written"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "old").write_text("old")
    (tmp_path / "one.txt").write_text("one")
    mounts = [
        {"source": tmp_path / "read"},
        {"source": tmp_path / "written", "read_only": False},
        {"source": tmp_path / "one.txt"},
    ]
    with opened(tmp_path / "ws", layout=layout, mounts=mounts) as executor:
        session = executor.session("a")
        directory = "/context" if layout == "classic" else str(tmp_path)
        session.execute(WRITES)
        assert (
            session.execute(f"print(open('{directory}/one.txt').read(), open('{directory}/read/old').read())").text
            == "one old\n"
        )
        for path in ("read/new", "read/old", "one.txt"):
            assert session.execute(f"tried('{directory}/{path}')").text == "('OSError', 30)"
        assert session.execute(f"tried('{directory}/written/new')").text == "('written', 0)"
    assert [path.name for path in (tmp_path / "read").iterdir()] == ["old"]
    assert (tmp_path / "read/old").read_text() == "old"
    assert (tmp_path / "one.txt").read_text() == "one"
    assert (tmp_path / "written/new").stat().st_uid == os.getuid()


def test_mounts_are_visible_inside_and_around_a_tmpfs(tmp_path: Path) -> None:
    (tmp_path / "in/scratch").mkdir(parents=True)
    (tmp_path / "in/old").write_text("old")
    mounts, tmpfs = [{"source": tmp_path / "in", "target": "/data/in"}], {"/data": MIB, "/data/in/scratch": MIB}
    with opened(tmp_path, layout="classic", mounts=mounts, tmpfs=tmpfs) as executor:
        session = executor.session("a")
        session.execute(WRITES)
        assert session.execute("print(open('/data/in/old').read())").text == "old\n"
        for directory in ("/data/new", "/data/in/scratch/new", "/workspace/new"):
            assert session.execute(f"tried('{directory}')").text == "('written', 0)"
        assert session.execute("tried('/data/in/new')").text == "('OSError', 30)"
        assert (session.workspace / "new").read_text() == "x"
    assert list((tmp_path / "in/scratch").iterdir()) == []


@pytest.mark.parametrize("layout", ["host", *at_night("classic")])
def test_a_work_dir_is_taken_by_either_path_and_reported_as_the_kernel_sees_it(tmp_path: Path, layout: str) -> None:
    with opened(tmp_path, layout=layout) as executor:
        session = executor.session("a")
        there = "/workspace" if layout == "classic" else str(session.workspace)
        assert session.execute_command("mkdir sub && pwd").text == f"{there}\n"
        for setting_values in ("sub", session.workspace / "sub", f"{there}/sub"):
            result = session.execute_command("pwd; touch sub-file", work_dir=setting_values)
            assert result.text == f"{there}/sub\n"
            assert result.work_dir == f"{there}/sub"
        assert (session.workspace / "sub/sub-file").exists()
        for wrong in (f"{there}/..", "/etc", f"{there}/missing"):
            with pytest.raises(InvalidWorkDir):
                session.execute_command("pwd", work_dir=wrong)
        session.execute("kept = 1")
        saved = session.snapshot()
        session.execute("kept = 2")
        assert session.restore(saved).names == ("kept",)
        assert session.execute("kept").text == "1"


@pytest.mark.nightly
def test_another_sessions_workspace_can_be_read_only(tmp_path: Path) -> None:
    with opened(tmp_path / "ws") as first:
        other = first.session("other")
        other.execute("open('result', 'w').write('42')")
        with opened(tmp_path / "ws", mounts=[{"source": other.workspace}]) as second:
            reader = second.session("reader")
            reader.execute(WRITES)
            assert reader.execute(f"print(open('{other.workspace}/result').read())").text == "42\n"
            assert reader.execute(f"tried('{other.workspace}/result')").text == "('OSError', 30)"


@pytest.mark.parametrize("source", ["/", "/var/run/docker.sock", "/etc", "missing"])
def test_a_mount_that_is_not_given_is_refused_before_anything_starts(tmp_path: Path, source: str) -> None:
    with pytest.raises(InvalidConfig), opened(tmp_path, mounts=[{"source": tmp_path / source}]) as executor:
        executor.session("a")
    with Engine() as engine:
        owned = [actual.labels for actual in engine.list_containers("kernelexec.session=a")]
    assert not any(labels["kernelexec.workspace"] == str(tmp_path) for labels in owned)
    assert not (tmp_path / "a").exists() or not list((tmp_path / "a").iterdir())


@pytest.fixture
def name() -> Iterator[str]:
    """A name for containers; a container that has it at the end is removed."""
    chosen = f"kernelexec-test-{uuid.uuid4().hex[:8]}"
    yield chosen
    with Engine() as engine:
        engine.remove(chosen)


def made(name: str, **labels: str) -> str:
    settings = {"image": dict(IMAGE)["image"], "command": ["sleep", "600"], "labels": labels}  # type: ignore[call-overload]
    with Engine() as engine:
        container = engine.create(name, settings, {"network_mode": "none", "init": True})
        engine.start(container)
    return container


def test_the_mark_of_a_run_follows_a_fixed_name_too(tmp_path: Path, name: str) -> None:
    with opened(tmp_path, name=name, instance="two") as executor:
        executor.session("a")
        with Engine() as engine:
            assert engine.inspect_container(f"{name}-two").running


def test_a_strangers_container_keeps_its_name(tmp_path: Path, name: str) -> None:
    foreign = made(name)
    with opened(tmp_path, name=name) as executor, pytest.raises(KernelStartFailed, match="exists and was not created"):
        executor.session("a")
    with Engine() as engine:
        assert engine.inspect_container(name).id == foreign
        assert engine.inspect_container(name).running


def test_a_container_whose_owner_has_died_makes_room(tmp_path: Path, name: str) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    owner = {**asdict(OwnerRecord.of_this_process(locked=True)), "pid": dead.pid, "started": 1}
    stale = made(name, **{"kernelexec.owner": json.dumps(owner)})
    with opened(tmp_path, name=name) as executor:
        assert executor.session("a").execute("1 + 1").text == "2"
        with Engine() as engine:
            assert engine.inspect_container(name).id != stale


def test_a_name_belongs_to_one_living_session(tmp_path: Path, name: str) -> None:
    with opened(tmp_path, name=name) as executor:
        session = executor.session("a")
        session.execute("kept = 1")
        with pytest.raises(KernelStartFailed, match="belongs to a living session"):
            executor.session("b")
        assert session.execute("kept").state == "kept"
        session.restart()
        assert session.execute("1 + 1").text == "2"


def test_gpus_that_the_engine_does_not_have_are_refused_with_the_reason(tmp_path: Path) -> None:
    with (
        Executor("docker", gpus="all", workspace=tmp_path, config=KINDS["container"]) as executor,
        pytest.raises(KernelStartFailed, match=r"gpus='all': the engine's machine has no runtime for GPUs.*leave gpus out"),
    ):
        executor.session("a")
