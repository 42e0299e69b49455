"""Context paths: what kernels and file operations see besides the workspace, and what of it they can write, in every place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor, FileRefused, InvalidConfig, InvalidWorkDir, Session
from kernelexec.config import Config, load
from kernelexec.workspace.contexts import contexts
from tests.support.engine import IMAGE, needs_bubblewrap, needs_engine

#: Where kernels are, and in containers where context paths are in them.
PLACES = [
    pytest.param("local", id="local"),
    pytest.param("bubblewrap", marks=needs_bubblewrap, id="bubblewrap"),
    pytest.param("container host", marks=needs_engine, id="container, own paths"),
    pytest.param("container classic", marks=[needs_engine, pytest.mark.nightly], id="container, classic"),
]
FILES = ("ro/f", "ro/rw/f", "rw/f", "rw/free/f", "rw/a/f", "rw/a/free/f", "rw/a/kept/f", "rw/ro/f")


class Place:
    """A session that sees ``ro`` (in it ``ro/rw`` to write), ``rw`` (in it ``a/kept`` protected, and ``rw/ro``), and a file."""

    def __init__(self, base: Path, session: Session, *, classic: bool) -> None:
        self.base = base
        self.session = session
        self.classic = classic

    def inside(self, path: str) -> str:
        """Where its kernels see it."""
        return f"/context/{path}" if self.classic else str(self.base / path)

    def tries(self, code: str, path: str) -> str:
        """What a cell comes to: nothing, or an error's name."""
        result = self.session.execute(f"import os, pathlib\npath = pathlib.Path({self.inside(path)!r})\n{code}")
        return "" if result.ok else result.error.ename if result.error else result.text


@pytest.fixture(scope="module", params=PLACES)
def location(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    base = tmp_path_factory.mktemp("context").resolve()
    isolation, _, layout = request.param.partition(" ")
    for name in FILES:
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text("as it was")
    (base / "single").write_text("as it was")
    value = [
        {"path": base / "ro"},
        {"path": base / "ro" / "rw", "permission": "write", "name": "inner"},
        {"path": base / "rw", "permission": "write", "protected_paths": ["a/kept"]},
        {"path": base / "rw" / "ro", "name": "deeper"},
        {"path": base / "single", "permission": "write"},
    ]
    config: dict[str, Any] = {"context_paths": value, "read_before_delete": False}
    if isolation == "container":
        config["container"] = {"image": IMAGE, "layout": layout}
    with Executor(isolation, workspace=base / "workspaces", config=config) as executor:
        yield Place(base, executor.session("a"), classic=layout == "classic")


@pytest.mark.parametrize("path", FILES)
def test_all_of_it_can_be_read(location: Place, path: str) -> None:
    assert location.tries("assert path.read_text() == 'as it was', path.read_text()", path) == ""


@pytest.mark.parametrize("path", ["ro/f", "rw/a/kept/f", "rw/ro/f"])
def test_read_only_paths_cannot_be_changed(location: Place, path: str) -> None:
    for code in ("path.open('a')", "path.unlink()", "path.rename(path.with_name('moved'))", "os.truncate(path, 0)"):
        assert location.tries(code, path) in ("PermissionError", "OSError"), code
    for code in ("path.with_name('new').touch()", "path.with_name('new').mkdir()", "path.with_name('new').symlink_to('/')"):
        assert location.tries(code, path) in ("PermissionError", "OSError"), code
    here = location.base / path
    assert here.read_text() == "as it was"
    assert [item.name for item in here.parent.iterdir() if item.name != "rw"] == ["f"]


@pytest.mark.parametrize("path", ["ro/rw", "rw/free", "rw/a/free"])
def test_writable_paths_can_be_changed(location: Place, path: str) -> None:
    assert location.tries("(path / 'new').write_text('made')", path) == ""
    assert (location.base / path / "new").read_text() == "made"
    assert location.tries("(path / 'new').unlink()", path) == ""
    assert location.tries("(path / 'f').write_text('as it was')", path) == ""


def test_files_beside_a_protected_path_are_written_but_locally_not_created(location: Place) -> None:
    for path in ("rw/f", "rw/a/f", "single"):
        assert location.tries("path.write_text('as it was')", path) == ""
    expected = "PermissionError" if location.session.execute("1").isolation == "local" else ""
    for path in ("rw/new", "rw/a/new"):
        assert location.tries("path.touch()", path) == expected
        assert (location.base / path).exists() is (expected == "")
        (location.base / path).unlink(missing_ok=True)


def test_nothing_above_what_is_protected_can_be_moved_away(location: Place) -> None:
    for path in ("rw/a", "rw/a/kept", "rw/ro", "rw"):
        assert location.tries("path.rename(path.with_name('moved'))", path) in ("PermissionError", "OSError")
    assert sorted(item.name for item in (location.base / "rw").iterdir()) == ["a", "f", "free", "ro"]


def test_file_operations_have_the_same_rights(location: Place) -> None:
    files = location.session.files
    for path in ("ro/x", "rw/a/kept/x", "rw/ro/x", "rw/a/kept/f"):
        for named in (location.inside(path), str(location.base / path)):
            with pytest.raises(FileRefused, match="can only be read"):
                files.write(named, "x")
    for path in ("ro/f", "rw/a/kept", "rw/a", "rw", "single"):
        with pytest.raises(FileRefused, match=r"can only be read|is not deleted"):
            files.delete(location.inside(path), recursive=True)
    assert files.write(location.inside("rw/x"), "x").path == location.inside("rw/x")
    assert files.read(str(location.base / "rw" / "x")).text == "x"
    assert files.delete(location.inside("rw/x")).deleted == (location.inside("rw/x"),)
    assert files.write(location.inside("single"), "as it was").created is False
    assert files.list(location.inside("ro")).paths == (f"{location.inside('ro')}/f", f"{location.inside('ro')}/rw")


def test_a_command_may_start_in_one(location: Place) -> None:
    result = location.session.execute_command("cat f", work_dir=location.inside("rw/free"))
    assert result.stdout == "as it was"
    with pytest.raises(InvalidWorkDir, match=r"is outside of the workspace .* and the context paths .*/ro"):
        location.session.execute_command("pwd", work_dir=location.base)
    with pytest.raises(InvalidWorkDir, match="does not exist"):
        location.session.execute_command("pwd", work_dir=location.base / "ro" / "nothing")
    with pytest.raises(InvalidWorkDir, match="is not a directory"):
        location.session.execute_command("pwd", work_dir=location.base / "ro" / "f")


def test_the_rights_last_over_a_restart(location: Place) -> None:
    location.session.restart()
    assert location.tries("path.open('a')", "rw/a/kept/f") in ("PermissionError", "OSError")
    assert location.tries("path.open('a').close()", "rw/free/f") == ""


def test_other_agents_outputs_are_read_and_not_written(tmp_path: Path) -> None:
    other = tmp_path.resolve() / "workspaces" / "other"
    with Executor("local", workspace=tmp_path / "workspaces") as executor:
        executor.session("other").execute("open('output.txt', 'w').write('theirs')")
    with Executor("local", workspace=tmp_path / "workspaces", config={"context_paths": [{"path": other}]}) as executor:
        session = executor.session("mine")
        assert session.execute(f"print(open('{other}/output.txt').read())").stdout == "theirs\n"
        assert session.execute(f"open('{other}/output.txt', 'a')").error is not None
        assert session.execute(f"open('{other.parent}/.journals/other.jsonl')").error is not None
    assert (other / "output.txt").read_text() == "theirs"


@pytest.mark.parametrize("permission", ["read", "write"])
def test_credentials_in_a_context_path_stay_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, permission: str) -> None:
    home = tmp_path.resolve() / "home"
    for name in (".ssh/id_ed25519", "project/notes", ".config/gh/hosts.yml", ".config/app/settings"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("x")
    monkeypatch.setenv("HOME", str(home))
    config = {"context_paths": [{"path": home, "permission": permission}]}
    with Executor("local", workspace=tmp_path / "workspaces", config=config) as executor:
        session = executor.session("a")
        for name in (".ssh/id_ed25519", ".config/gh/hosts.yml"):
            for mode in ("r", "a"):
                result = session.execute(f"open('{home}/{name}', '{mode}')")
                assert result.error is not None
                assert result.error.ename == "PermissionError"
            for call in (
                session.files.read,
                session.files.list,
                session.files.delete,
                lambda path: session.files.write(path, ""),
            ):
                with pytest.raises(FileRefused, match="is hidden: people and programs keep secrets there"):
                    call(home / name)
        with pytest.raises(FileRefused, match=r"is not deleted|can only be read"):
            session.files.delete(home / ".config", recursive=True)
        assert session.files.read(home / "project" / "notes").text == "x"
        assert session.execute(f"open('{home}/project/notes').read()").ok
        assert session.execute(f"open('{home}/.config/app/settings', 'a')").ok is (permission == "write")


def test_an_idle_kernel_sees_them_too(tmp_path: Path) -> None:
    base = tmp_path.resolve()
    for name in ("ro", "rw"):
        (base / name).mkdir()
    value = [{"path": base / "ro"}, {"path": base / "rw", "permission": "write"}]
    config = {"context_paths": value, "pool": {"size": 1, "policy": "wait"}}
    with Executor("local", workspace=base / "workspaces", config=config) as executor:
        session = executor.session("a")
        assert session.execute(f"open('{base}/rw/new', 'w').close()").notes == ()
        assert session.execute(f"open('{base}/ro/new', 'w')").error is not None
    assert (list((base / "ro").iterdir()), list((base / "rw").iterdir())) == ([], [base / "rw" / "new"])


def test_a_link_in_the_place_of_a_context_path_or_in_it_gives_no_rights(tmp_path: Path) -> None:
    base = tmp_path.resolve()
    for name in ("rw/kept", "rw/swapped/in", "rw/way/in", "outside/in"):
        (base / name).mkdir(parents=True)
        (base / name / "f").write_text("as it was")
    config = {
        "context_paths": [
            {"path": base / "rw", "permission": "write", "protected_paths": ["kept"]},
            {"path": base / "rw" / "way" / "in", "permission": "write"},
        ]
    }
    with Executor("local", workspace=base / "workspaces", config=config) as executor:
        session = executor.session("a")
        for name in ("swapped", "way"):
            (base / "rw" / name).rename(base / f"old {name}")
            (base / "rw" / name).symlink_to(base / "outside")
        with pytest.raises(InvalidConfig, match=r"way/in leads to .*/outside/in by a link that did not exist before"):
            executor.session("b")
        (base / "rw" / "way").unlink()
        (base / "old way").rename(base / "rw" / "way")
        for item in (session, executor.session("b")):
            for path in ("rw/swapped/in/f", "outside/in/f"):
                assert item.execute(f"open('{base}/{path}', 'a')").error is not None, path
            assert item.execute(f"open('{base}/rw/way/in/f', 'a').close()").ok
    assert (base / "outside" / "in" / "f").read_text() == "as it was"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    base = tmp_path.resolve()
    for name in ("work/in", "data/sub"):
        (base / name).mkdir(parents=True)
    (base / "file").touch()
    os.mkfifo(base / "pipe")
    return base


def loaded(base: Path, *value: dict[str, Any], isolation: str = "local", **more: Any) -> Config:
    paths = [{**item, "path": base / item["path"]} for item in value]
    return load(isolation, workspace=base / "workspaces", config={"context_paths": paths, **more}, inside=False)


WRONG: dict[str, tuple[list[dict[str, Any]], str]] = {
    "missing": ([{"path": "nothing"}], r"nothing cannot be had: No such file or directory\. Make it, or leave it out"),
    "a pipe": ([{"path": "pipe"}], "neither a directory nor a plain file"),
    "named twice": ([{"path": "data"}, {"path": "data/../data"}], "is there 2 times: a path has one permission"),
    "the same name twice": ([{"path": "data", "name": "x"}, {"path": "file", "name": "x"}], "x is there 2 times: two paths"),
    "protected, missing": ([{"path": "data", "protected_paths": ["nothing"]}], "data/nothing cannot be had"),
    "protected, outside": ([{"path": "data", "protected_paths": ["../work"]}], "the protected path .*/work must be inside"),
    "protected, itself": ([{"path": "data", "protected_paths": ["."]}], "must be inside"),
    "the workspace": ([{"path": "work", "permission": "write"}], "is, or holds, the session's workspace"),
    "protected, with the workspace in it": (
        [{"path": ".", "permission": "write", "protected_paths": ["work"]}],
        "is, or holds, the session's workspace",
    ),
    "to read, in the workspace": ([{"path": "work/in"}], "is to be read only, and is in the workspace"),
}


@pytest.mark.parametrize(("value", "message"), WRONG.values(), ids=WRONG)
def test_invalid_context_paths_are_refused_before_anything_runs(base: Path, value: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message), Executor(config=loaded(base, *value)) as executor:
        executor.session("a", work_dir=base / "work")
    assert list((base / "work").iterdir()) == [base / "work" / "in"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", ".a", "a b", "\u00e9", "x" * 129, 5])
def test_a_name_is_a_plain_one(base: Path, name: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"context_paths\.0\.name: "):
        loaded(base, {"path": "data", "name": name})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"path": "data", "permision": "write"},
            r"context_paths\.0\.permision is not an option \(did you mean 'permission'\?\)",
        ),
        ({"path": "data", "permission": "execute"}, r"context_paths\.0\.permission: "),
        ({"path": "data", "protected_paths": "sub"}, r"context_paths\.0\.protected_paths: "),
    ],
)
def test_an_option_that_is_none_is_reported(base: Path, value: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        loaded(base, value)


def test_links_are_resolved_and_names_follow(base: Path) -> None:
    (base / "link").symlink_to("data")
    config = loaded(base, {"path": "link", "permission": "write", "protected_paths": ["sub"]})
    (base / "link").unlink()
    [actual] = contexts(config, base / "work")
    assert (actual.path, actual.name, actual.protected) == (base / "data", "data", (base / "data" / "sub",))


def test_in_the_classic_layout_no_two_have_one_name(base: Path) -> None:
    (base / "other" / "data").mkdir(parents=True)
    value = ({"path": "data"}, {"path": "other/data"})
    assert len(contexts(loaded(base, *value, isolation="container"))) == 2
    with pytest.raises(InvalidConfig, match="data is there 2 times: two paths cannot be at one place below /context"):
        contexts(loaded(base, *value, isolation="container", container={"layout": "classic"}))


@needs_engine
@pytest.mark.parametrize("path", ["/etc", "/var/run", "/proc/1"])
def test_system_directories_are_refused_as_context_of_a_container(tmp_path: Path, path: str) -> None:
    config = {"context_paths": [{"path": path}], "container": {"image": IMAGE}}
    with Executor("container", workspace=tmp_path, config=config) as executor:
        with pytest.raises(InvalidConfig, match=r"is not given to containers: .* is a system directory"):
            executor.session()
        assert executor.sessions() == ()


@pytest.mark.parametrize(
    ("isolation", "option"),
    [
        ("local", {"context_paths": ["data"]}),
        ("local", {"volumes": ["data:rw"]}),
        pytest.param("bubblewrap", {"mounts": "data"}, marks=needs_bubblewrap),
        pytest.param("container", {"context_paths": ["data"], "image": IMAGE}, marks=needs_engine),
        pytest.param("container", {"volumes": {"data": {"bind": "/b", "mode": "ro"}}, "image": IMAGE}, marks=needs_engine),
    ],
)
def test_a_folder_is_had_by_its_name(
    isolation: str, option: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "f").write_text("read")
    with Executor(isolation, workspace=tmp_path / "work", **option) as executor:
        session = executor.session()
        path = "/b" if isinstance(option.get("volumes"), dict) else folder
        assert session.execute(f"open('{path}/f').read()").value == "read"
        assert session.execute(f"open('{path}/f', 'w').close()").ok == (option.get("volumes") == ["data:rw"])
