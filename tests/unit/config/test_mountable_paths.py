"""Paths that containers may get: users' directories, and none of the system's by whatever name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelexec.config.protected_paths import mount_refusal

SYSTEM = [
    *("/", "/usr", "/usr/local", "/usr/local/bin", "/usr/share", "/usr/share/misc", "/usr/src", "/usr/games"),
    *("/var", "/var/spool", "/var/spool/cron", "/var/log", "/var/lib/dpkg", "/var/cache", "/var/mail", "/var/backups"),
    *("/etc/cron.d", "/boot/grub", "/lib/modules", "/lost+found", "/libx32", "/home", "/opt", "/tmp/../etc"),
]


@pytest.mark.parametrize("path", SYSTEM)
def test_a_directory_of_the_system_is_refused(path: str) -> None:
    assert "system director" in (mount_refusal(Path(path)) or "")


def test_a_link_to_a_directory_of_the_system_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to("/usr/share")
    assert "system director" in (mount_refusal(tmp_path / "data") or "")
    (tmp_path / "ours").mkdir()
    assert mount_refusal(tmp_path / "ours") is None


@pytest.mark.parametrize(
    "path", ["/data/sets", "/workspace", "/srv/data", "/mnt/disk", "/media/disk", "/home/a/b", "/var/tmp/a"]
)
def test_a_users_directory_is_allowed(path: str) -> None:
    assert mount_refusal(Path(path)) is None


def test_a_directory_in_the_system_that_belongs_to_an_ordinary_user_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Path("/var/lib").stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    assert mount_refusal(Path("/var/lib/service/data")) is not None
    monkeypatch.setattr(os, "stat", lambda *_, **__: os.stat_result((0o40755, 0, 0, 0, owner + 1, 0, 0, 0, 0, 0)))
    assert mount_refusal(Path("/var/lib/service/data")) is None


@pytest.mark.parametrize("location", ["docker.sock", "run/docker.sock", "a/b/c/podman.sock", "a/b/c/d/containerd.sock"])
def test_an_engines_socket_some_levels_below_is_found(location: str, tmp_path: Path) -> None:
    (tmp_path / location).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / location).touch()
    assert f"contains {location}" in (mount_refusal(tmp_path) or "")


def test_the_search_for_sockets_is_bounded_and_follows_no_links(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    for number in range(300):
        (tmp_path / f"{number}" / "a").mkdir(parents=True)
    assert mount_refusal(tmp_path) is None
