"""Containers that are given the caller's own credentials: to be read, in a home in memory that nothing else of theirs is in."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelexec import Executor
from kernelexec.config import CREDENTIALS, Config, load
from kernelexec.docker.accounts import with_home
from kernelexec.errors import InvalidConfig
from kernelexec.provisioning.container.mounts import build_mounts
from kernelexec.provisioning.launch.environment import container_environment
from tests.support.engine import MINIMAL, needs_engine

FILES = {
    "ssh_keys": ".ssh/id_ed25519",
    "git_config": ".gitconfig",
    "gh_config": ".config/gh/hosts.yml",
    "npm_config": ".npmrc",
    "pypi_config": ".pypirc",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory with every sort of credentials, and something else."""
    home = tmp_path / "home"
    for name, file in {**FILES, "other": ".config/other"}.items():
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_text(name)
        (home / file).chmod(0o600)
    monkeypatch.setenv("HOME", str(home))
    return home


def config_of(*names: str) -> Config:
    return load("container", config={"container": {"image": MINIMAL, "credentials": names}})


def test_each_sort_has_its_place(home: Path, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    actual = build_mounts(config_of(*CREDENTIALS).container, workspace=workspace, root=tmp_path / "root", records=())
    value = [bind for bind in actual if bind[1].startswith("/home/kernel")]
    assert value == [(str(home / path), f"/home/kernel/{path}", True) for path in CREDENTIALS.values()]
    assert set(CREDENTIALS) == set(FILES)


def test_repeated_credentials_are_mounted_once(home: Path, tmp_path: Path) -> None:
    container = config_of("ssh_keys", "git_config", "ssh_keys").container
    assert container.credentials == ("ssh_keys", "git_config")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    actual = build_mounts(container, workspace=workspace, root=tmp_path / "root", records=())
    assert [bind[0] for bind in actual if bind[1].startswith("/home/kernel")] == [str(home / ".ssh"), str(home / ".gitconfig")]


def test_an_account_of_the_image_gets_the_home() -> None:
    before = b"root:x:0:0:root:/root:/bin/sh\nodd:0\ntoor:x:0:0::/:/bin/sh\nother:x:5:0::/o:/bin/sh\n"
    after = b"root:x:0:0:root:/h:/bin/sh\nodd:0\ntoor:x:0:0::/h:/bin/sh\nother:x:5:0::/o:/bin/sh\n"
    assert with_home(before, "0:0", "/h") == after


def test_without_credentials_the_workspace_is_the_home() -> None:
    assert container_environment(config_of(), "/w")["HOME"] == "/w"
    assert "GH_CONFIG_DIR" not in container_environment(config_of("ssh_keys"), "/w")
    assert list(config_of().container.memory_directories) == ["/tmp", "/dev/shm"]


def test_unknown_credentials_are_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"container\.credentials.*ssh_keys.*'aws'"):
        config_of("aws")


@needs_engine
def test_they_can_be_read_and_not_written_and_what_is_not_there_is_reported(home: Path, tmp_path: Path) -> None:
    (home / ".npmrc").unlink()
    container = {"image": MINIMAL, "credentials": list(CREDENTIALS)}
    with Executor("container", workspace=tmp_path / "workspaces", config={"container": container}) as executor:
        session = executor.session("a")
        code = "import os, pathlib, pwd\nhome = pathlib.Path.home()\n"
        first = session.execute(code + "str(home), pwd.getpwuid(os.getuid()).pw_dir, os.environ['GH_CONFIG_DIR']")
        assert first.text == "('/home/kernel', '/home/kernel', '/home/kernel/.config/gh')"
        assert first.notes == (
            f"The credentials npm_config are not given to the container: there is no {home / '.npmrc'} on this machine.",
        )
        for kernel in ("a new container", "forked in it"):
            for name, file in FILES.items():
                if name == "npm_config":
                    continue
                assert session.execute(f"{code}(home / {file!r}).read_text()").text == repr(name), kernel
                assert "Read-only file system" in session.execute(f"(home / {file!r}).write_text('x')").text, kernel
            assert session.execute("sorted(os.listdir(home / '.config'))").text == "['gh']"
            assert session.execute("(home / 'kept').exists(), (home / 'kept').write_text('in memory')").text == "(False, 9)"
            session.restart()
        assert sorted(path.name for path in (tmp_path / "workspaces" / "a").iterdir()) == [".kernelexec", "a.ipynb"]
    assert (home / ".ssh" / "id_ed25519").read_text() == "ssh_keys"


@needs_engine
def test_the_home_is_the_kernels_own_for_every_user(home: Path, tmp_path: Path) -> None:
    for path in home.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    container = {"image": MINIMAL, "credentials": ["gh_config"], "user": "4321:4321"}
    (tmp_path / "workspaces").mkdir(mode=0o777)
    (tmp_path / "workspaces").chmod(0o777)
    with Executor("container", workspace=tmp_path / "workspaces", config={"container": container}) as executor:
        session = executor.session("a")
        for _ in ("a new container", "forked in it"):
            command = "ls ~/.config && cat ~/.config/gh/hosts.yml && echo && mkdir ~/.cache ~/.config/other && stat -c %u ~"
            result = session.execute_command(command)
            assert (result.text, result.exit_code) == ("gh\ngh_config\n4321\n", 0)
            session.restart()
