"""What containers are never given of this machine, and what is kept from being written though it lies in what they have."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

import kernelexec
from kernelexec.config import MIB, Container, Mount
from kernelexec.errors import InvalidConfig, InvalidWorkDir
from kernelexec.provisioning.container.mounts import build_mounts, explain_refusal, give_workspace

NEVER = {
    "everything": "/",
    "processes": "/proc",
    "a process": "/proc/1/root",
    "the machine's settings": "/sys/kernel",
    "devices": "/dev",
    "the boot loader": "/boot",
    "the engine's socket": "/var/run/docker.sock",
    "where that is": "/run",
    "its other name": "/run/docker.sock",
    "the engine's state": "/var/lib/docker/volumes",
    "another engine": "/run/containerd/containerd.sock",
    "the machine's settings of programs": "/etc",
    "passwords": "/etc/shadow",
    "certificates": "/etc/ssl/certs",
    "a program": "/usr/bin/env",
    "the machine's keys": "/etc/ssh",
    "programs": "/usr",
    "state of programs": "/var",
    "what all programs share": "/tmp",
    "runtime directories": "/run/user",
    "an engine of DOCKER_HOST": "/srv/engine/engine.sock",
    "where that one is": "/srv/engine",
    "the private directory of this executor": "/run/user/1000/kx-abcdefgh",
    "a kernel's in it": "/run/user/1000/kx-abcdefgh/a/1",
    "where it is": "/run/user/1000",
    "a home": "/home/user",
    "all homes": "/home",
}
WRITTEN_NEVER = {
    "a program": "/usr/local/bin/env",
    "own code": "/opt/venv/lib",
    "an interpreter": "/opt/venv",
}
GIVEN = [
    "/home/user/project",
    "/srv/data",
    "/srv/engine-data",
    "/tmp/work",
    "/usr/src/app",
    "/opt/data",
    "/var/data",
    "/etcetera",
]


def refused(path: str, *, read_only: bool) -> str | None:
    return explain_refusal(
        Path(path),
        read_only=read_only,
        sockets=["/var/run/docker.sock", "/srv/engine/engine.sock"],
        roots=[Path("/run/user/1000/kx-abcdefgh")],
        home=Path("/home/user"),
        code=[Path("/opt/venv")],
    )


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("path", NEVER.values(), ids=NEVER)
def test_dangerous_mounts_are_refused(path: str, read_only: bool) -> None:  # noqa: FBT001 - a parameter
    assert refused(path, read_only=read_only)


@pytest.mark.parametrize("path", WRITTEN_NEVER.values(), ids=WRITTEN_NEVER)
def test_directories_of_programs_are_mounted_read_only_or_not_at_all(path: str) -> None:
    assert refused(path, read_only=False)
    assert refused(path, read_only=True) is None


@pytest.mark.parametrize("path", GIVEN)
def test_ordinary_directories_are_given(path: str) -> None:
    assert refused(path, read_only=False) is None


def had(
    tmp_path: Path, *mounts: Mount, layout: str = "host", workspace: str = "ws", tmpfs: Sequence[str] = ()
) -> list[tuple[str, str, bool]]:
    location = tmp_path / workspace
    location.mkdir(exist_ok=True)
    options = Container.model_validate({"mounts": mounts, "layout": layout, "tmpfs": dict.fromkeys(tmpfs, MIB)})
    return build_mounts(options, workspace=location, root=tmp_path / "root", records=[tmp_path / "ws" / ".journals"])


def test_a_mount_that_is_missing_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"missing cannot be read: No such file or directory\. Create it, or leave it out"):
        had(tmp_path, Mount(source=tmp_path / "missing"))


def test_a_link_to_what_is_never_given_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/shadow")
    with pytest.raises(ValueError, match=r"/etc/shadow"):
        had(tmp_path, Mount(source=tmp_path / "link"))


def test_a_socket_is_not_given(tmp_path: Path, short_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(short_path / "s"))
        with pytest.raises(ValueError, match=r"socket|neither a directory nor a regular file"):
            had(tmp_path, Mount(source=short_path / "s"))


def test_the_engine_of_docker_host_is_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engine").mkdir()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine/engine.sock")
    with pytest.raises(InvalidConfig, match="access to the container engine is access to this machine"):
        had(tmp_path, Mount(source=tmp_path / "engine"))


def test_the_package_is_never_given_for_writing(tmp_path: Path) -> None:
    package = Path(kernelexec.__file__).parent
    with pytest.raises(InvalidConfig, match="this program runs from there"):
        had(tmp_path, Mount(source=package, read_only=False))
    assert (str(package), str(package), True) in had(tmp_path, Mount(source=package))


def test_the_package_in_a_directory_that_can_be_written_can_be_read_only() -> None:
    project = Path(kernelexec.__file__).parent.parent
    options = Container()
    actual = build_mounts(options, workspace=project, root=Path("/nowhere"), records=[project / "tests"])
    assert actual[0] == (str(project), str(project), False)
    assert {(str(project / name), str(project / name), True) for name in ("kernelexec", "tests")} <= set(actual[1:])


def test_each_parent_of_a_kept_directory_is_a_mount_that_cannot_be_moved(tmp_path: Path) -> None:
    kept, project = tmp_path / "project/a/b/.journals", tmp_path / "project"
    (kept / "c").mkdir(parents=True)
    actual = build_mounts(Container(), workspace=project, root=tmp_path / "root", records=[kept])
    location = str(project)
    ways = [(f"{location}{way}", f"{location}{way}", False) for way in ("", "/a", "/a/b")]
    assert actual == [*ways, (str(kept), str(kept), True)]
    classic = build_mounts(Container(layout="classic"), workspace=project, root=tmp_path / "root", records=[kept])
    assert [target for _, target, _ in classic] == [
        "/workspace", "/workspace/a", "/workspace/a/b", "/workspace/a/b/.journals"
    ]  # fmt: skip


def test_a_mount_of_the_callers_own_on_the_way_to_what_is_kept_stays_as_it_is(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "a/b/.journals").mkdir(parents=True)
    options = Container(mounts=(Mount(source=project / "a"),))
    actual = build_mounts(options, workspace=project, root=tmp_path / "root", records=[project / "a/b/.journals"])
    assert [target for _, target, _ in actual].count(str(project / "a")) == 1
    assert (str(project / "a"), str(project / "a"), True) in actual


def test_records_are_given_for_reading_only(tmp_path: Path) -> None:
    records = tmp_path / "ws" / ".journals"
    records.mkdir(parents=True)
    with pytest.raises(InvalidConfig, match=r"must be mounted read-only: it holds the records of executed code"):
        had(tmp_path, Mount(source=records, read_only=False))
    assert (str(records), str(records), True) in had(tmp_path, Mount(source=records))


@pytest.mark.parametrize(
    "target", ["/", "relative", "/a/../etc", "/proc", "/proc/x", "/sys", "/dev/shm", "/tmp", "/opt", "/opt/kernelexec"]
)
def test_a_target_that_would_hide_what_containers_have_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(ValueError, match=r"cannot be a mount's target|target"):
        had(tmp_path, Mount(source=tmp_path / "data", target=target))


def test_two_mounts_of_one_name_are_refused_in_the_classic_layout_only(tmp_path: Path) -> None:
    for name in ("a/data", "b/data"):
        (tmp_path / name).mkdir(parents=True)
    mounts = (Mount(source=tmp_path / "a/data"), Mount(source=tmp_path / "b/data"))
    with pytest.raises(InvalidConfig, match=r"have the same target /context/data in the container.*`target`"):
        had(tmp_path, *mounts, layout="classic")
    named = (mounts[0], Mount(source=tmp_path / "b/data", target="/context/other"))
    assert [target for _, target, _ in had(tmp_path, *named, layout="classic")] == [
        "/workspace",
        "/context/data",
        "/context/other",
    ]
    assert [target for _, target, _ in had(tmp_path, *mounts)][1:] == [str(tmp_path / "a/data"), str(tmp_path / "b/data")]


@pytest.mark.parametrize("path", ["/data", "/data/", "//data"])
def test_a_directory_in_memory_does_not_hide_a_mount(tmp_path: Path, path: str) -> None:
    (tmp_path / "data").mkdir()
    mount = Mount(source=tmp_path / "data", target="//data/")
    with pytest.raises(InvalidConfig, match=rf"^tmpfs: /data is also the target of the mount {tmp_path}/data"):
        had(tmp_path, mount, tmpfs=[path])


@pytest.mark.parametrize("within", ["", "/.journals"])
def test_a_directory_in_memory_does_not_hide_a_workspace_or_what_is_kept_of_it(tmp_path: Path, within: str) -> None:
    (tmp_path / "ws/.journals").mkdir(parents=True)
    with pytest.raises(InvalidConfig, match=r"is also the target of the mount .*: choose another path"):
        had(tmp_path, tmpfs=[f"{tmp_path}/ws{within}"])


def test_a_directory_in_memory_may_be_around_a_mount_and_within_one(tmp_path: Path) -> None:
    (tmp_path / "read/there").mkdir(parents=True)
    (tmp_path / "written").mkdir()
    mounts = [
        Mount(source=tmp_path / "read", target="/a/read"),
        Mount(source=tmp_path / "written", target="/a/written", read_only=False),
    ]
    tmpfs = ["/a", "/a/read/there", "/a/read/there/below", "/a/written/new", "/workspace/new"]
    assert len(had(tmp_path, *mounts, layout="classic", tmpfs=tmpfs)) == 3


@pytest.mark.parametrize("path", ["/read/missing", "/read/file", "/file/below", "/written/file"])
def test_a_directory_in_memory_that_could_not_be_made_is_refused(tmp_path: Path, path: str) -> None:
    for name in ("read", "written"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    mounts = [
        Mount(source=tmp_path / "read", target="/read"),
        Mount(source=tmp_path / "read/file", target="/file"),
        Mount(source=tmp_path / "written", target="/written", read_only=False),
    ]
    with pytest.raises(InvalidConfig, match=rf"^tmpfs: {path} cannot be created: .* is no directory\. Create it"):
        had(tmp_path, *mounts, tmpfs=[path])


def test_two_mounts_at_one_place_by_two_names_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with pytest.raises(InvalidConfig, match="have the same target /data in the container"):
        had(tmp_path, Mount(source=tmp_path / "a", target="/data"), Mount(source=tmp_path / "b", target="//data"))


def test_a_workspace_that_its_user_cannot_write_is_refused(tmp_path: Path) -> None:
    before = tmp_path.stat()
    tmp_path.chmod(0o755)
    with pytest.raises(InvalidWorkDir, match=r"run as 4321:4321; it belongs to .*`chown 4321:4321`"):
        give_workspace(tmp_path, (4321, 4321), is_own_workspace=False)
    tmp_path.chmod(0o775)
    give_workspace(tmp_path, (4321, before.st_gid), is_own_workspace=False)
    tmp_path.chmod(0o777)
    give_workspace(tmp_path, (4321, 4321), is_own_workspace=False)
    assert tmp_path.stat().st_uid == before.st_uid
