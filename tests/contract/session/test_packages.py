"""Packages that are installed while the kernel runs: cells find them at once, the state is kept, and a lock names them."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.pylock import Pylock

from kernelexec import Executor, InvalidRequest, Session
from kernelexec.session.features.packages import PackageLock
from tests.conftest import KINDS, WRAPPED
from tests.support.engine import needs_bubblewrap, needs_engine
from tests.support.night import at_night
from tests.support.pace import BOUND
from tests.support.virtual_environments import made_venv, made_wheel, packages_of

#: Nothing runs in containers and namespaces in the gate: ``test_package_index`` and ``test_pip_in_cells`` install there.
ALSO_CONFINED = ()

#: Kernels that have no network, in each way.
OFFLINE: dict[str, dict[str, Any]] = {
    "local": {"confinement": {"network": False}},
    "bubblewrap": WRAPPED["bubblewrap"],
    "container": KINDS["container"],
}
MARKS = {"bubblewrap": needs_bubblewrap, "container": needs_engine}


@pytest.fixture(scope="module", params=[pytest.param(kind, marks=MARKS.get(kind, ())) for kind in OFFLINE])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def executor(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    with Executor(kind, workspace=tmp_path_factory.mktemp("workspaces"), config=OFFLINE[kind]) as opened:
        yield opened


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two packages, of which one needs the other, and that one in two versions."""
    location = tmp_path_factory.mktemp("wheels")
    made_wheel(location, "lower", "1.0")
    made_wheel(location, "lower", "2.0")
    made_wheel(location, "upper", "3.1", requires="lower>=1", code="import lower")
    return location


def own_venv(session: Session) -> Path:
    [path] = (session.workspace / ".kernelexec" / "venvs").iterdir()
    return path


def locked(session: Session) -> dict[str, Any]:
    lock = tomllib.loads((session.workspace / ".kernelexec/pylock.toml").read_text())
    Pylock.from_dict(lock)  # it is valid by the standard
    return lock


@pytest.fixture(scope="module")
def lock(executor: Executor, wheels: Path) -> str:
    """What a session has after an installation of both packages."""
    with executor.session("locks") as session:
        done = session.install(["lower==1.0", "upper"], wheels=wheels)
        assert done.lock == str(session.workspace / ".kernelexec/pylock.toml")
        return (session.workspace / ".kernelexec/pylock.toml").read_text()


def entry(name: str, version: str, digest: str) -> dict[str, Any]:
    file = f"{name}-{version}-py3-none-any.whl"
    return {"name": name, "version": version, "wheels": [{"name": file, "path": file, "hashes": {"sha256": digest}}]}


def test_cells_and_commands_find_what_was_installed_at_once(session: Session, wheels: Path) -> None:
    session.execute("x = 1")
    done = session.install("upper", wheels=wheels)
    assert done.ok, done.output
    assert sorted(map(str, done.packages)) == ["lower 2.0", "upper 3.1"]
    assert done.notes == ()
    assert done.seconds > 0
    result = session.execute("import upper; print(upper.version, upper.lower.version, x)")
    assert (result.stdout, result.state) == ("3.1 2.0 1\n", "kept")
    answer = session.execute_command("python -c 'import ipykernel, upper, sys; print(upper.version, sys.prefix)'")
    assert answer.stdout == f"3.1 {done.venv}\n", answer.stderr
    actual = session.environment()
    assert (actual.venv, actual.served, actual.packages["upper"]) == (done.venv, "own", "3.1")


@pytest.mark.nightly
def test_packages_of_the_interpreter_are_visible_in_the_environment(session: Session, wheels: Path) -> None:
    session.install("lower", wheels=wheels)
    answer = session.execute_command("python -c 'import ipykernel, lower; print(lower.version)'")
    assert answer.stdout == "2.0\n", answer.stderr


def test_a_lock_names_all_with_their_hashes(session: Session, lock: str, wheels: Path) -> None:
    digests = {path.name.split("-")[0]: hashlib.sha256(path.read_bytes()).hexdigest() for path in wheels.glob("*-[13].*.whl")}
    actual = tomllib.loads(lock)
    Pylock.from_dict(actual)  # it is valid by the standard
    assert actual["packages"] == [entry("lower", "1.0", digests["lower"]), entry("upper", "3.1", digests["upper"])]
    assert actual["tool"]["kernelexec"] == {"python": session.environment().version, "unhashed": {}}


def test_another_session_is_made_from_a_lock(session: Session, lock: str, wheels: Path, tmp_path: Path) -> None:
    (tmp_path / "pylock.toml").write_text(lock)
    session.install("lower==2.0", wheels=wheels)
    done = session.rebuild(tmp_path / "pylock.toml", wheels=wheels)
    assert done.ok, done.output
    assert sorted(map(str, done.packages)) == ["lower 1.0", "upper 3.1"]
    assert session.execute("import upper; print(upper.lower.version)").stdout == "1.0\n"
    assert locked(session) == tomllib.loads(lock)


def test_a_wheel_of_another_content_is_refused_by_a_lock(session: Session, lock: str, wheels: Path, tmp_path: Path) -> None:
    (session.workspace / ".kernelexec").mkdir(exist_ok=True)
    (session.workspace / ".kernelexec/pylock.toml").write_text(lock)
    shutil.copytree(wheels, tmp_path / "forged")
    made_wheel(tmp_path / "forged", "lower", "1.0", code="print('forged')")
    done = session.rebuild(wheels=tmp_path / "forged")
    assert not done.ok
    assert "hash" in done.output.lower()
    assert session.execute("import importlib.util; print(importlib.util.find_spec('lower'))").stdout == "None\n"


def test_a_lock_of_another_python_is_reported(session: Session, lock: str, wheels: Path) -> None:
    own, other = f'python = "{session.environment().version}"', 'python = "3.7.1"'
    assert own in lock
    (session.workspace / "other.lock").write_text(lock.replace(own, other))
    done = session.rebuild(session.workspace / "other.lock", wheels=wheels)
    assert done.ok, done.output
    assert any("made with Python 3.7.1, but this environment has 3." in note for note in done.notes)


def test_a_fresh_environment_holds_nothing(session: Session, wheels: Path) -> None:
    session.install("upper", wheels=wheels)
    session.execute("import upper")
    session.restart(fresh_venv=True)
    missing = session.execute("import upper")
    assert missing.error is not None
    assert missing.error.ename == "ModuleNotFoundError"
    assert not session.execute_command("python -c 'import upper'").ok
    assert session.execute_command("python -c 'import ipykernel'").ok
    assert locked(session)["packages"] == []


def test_missing_packages_are_a_result_and_the_state_is_kept(session: Session, wheels: Path) -> None:
    session.execute("x = 1")
    done = session.install("no-such-thing>=2", wheels=wheels)
    assert (done.ok, done.packages, done.lock) == (False, (), None)
    assert "No matching distribution found for no-such-thing>=2" in done.output
    assert session.execute("x").text == "1"
    assert session.install("lower", wheels=wheels).ok


def test_a_wheel_is_installed_by_its_path(session: Session, wheels: Path) -> None:
    made_wheel(session.workspace, "inside", "1.2")
    done = session.install([wheels / "lower-1.0-py3-none-any.whl", "inside-1.2-py3-none-any.whl"])
    assert sorted(map(str, done.packages)) == ["inside 1.2", "lower 1.0"], done.output
    assert session.execute("import inside, lower; print(inside.version, lower.version)").stdout == "1.2 1.0\n"


@pytest.mark.nightly
def test_wheels_may_lie_in_the_workspace(session: Session) -> None:
    made_wheel(session.workspace / "mine", "inside", "1.2")
    done = session.install("inside", wheels="mine")
    assert done.ok, done.output
    assert session.execute("import inside; print(inside.version)").stdout == "1.2\n"


def test_packages_are_installed_while_a_cell_runs(session: Session, wheels: Path) -> None:
    session.execute("import pathlib, time")
    wait = "while not list(pathlib.Path('.kernelexec').glob('venvs/*/lib/*/*/lower.py')): time.sleep(0.01)\nprint('seen')"
    running = session.execute(wait, wait=0.001, timeout=BOUND)
    assert session.install("lower", wheels=wheels).ok
    result = session.wait_for(running.execution_id, wait=BOUND).result
    assert result is not None
    assert result.stdout == "seen\n"
    assert session.execute("import lower; print(lower.version)").stdout == "2.0\n"


def test_another_version_is_reported_and_comes_with_a_restart(session: Session, wheels: Path) -> None:
    session.install("lower==1.0", wheels=wheels)
    session.execute("import lower")
    done = session.install("lower==2.0", wheels=wheels)
    assert done.notes == ("lower 2.0: installed, but cells keep the version that is loaded until the session restarts.",)
    assert session.execute("print(lower.version)").stdout == "1.0\n"
    session.restart()
    assert session.execute("import lower; print(lower.version)").stdout == "2.0\n"


@pytest.mark.nightly
def test_a_kernel_keeps_its_own_packages_and_that_is_reported(session: Session, tmp_path: Path) -> None:
    made_wheel(tmp_path / "more", "ipykernel", "999.0")
    done = session.install("ipykernel==999.0", wheels=tmp_path / "more")
    assert done.ok, done.output
    assert done.notes == ("Only commands have ipykernel 999.0: cells have the version that their kernel needs.",)
    assert session.execute("1 + 1").text == "2"
    session.restart()
    assert session.execute("1 + 1").text == "2"


REFUSED: tuple[Any, ...] = (
    "--target=/tmp/x",
    "-r requirements.txt",
    "-e .",
    "--index-url=https://example.org",
    "numpy --pre",
    "numpy\n--pre",
    "numpy @ file:///etc",
    "git+https://example.org/x.git",
    "https://example.org/x.whl/../x",
    "./directory",
    "-x.whl",
    "name; import os\x00",
    "",
    [],
    None,
    5,
    [5],
    b"numpy",
)


@pytest.mark.parametrize("kind", ["local"], indirect=True)
@pytest.mark.parametrize("packages", REFUSED, ids=repr)
def test_packages_with_another_meaning_for_pip_are_refused(session: Session, wheels: Path, packages: Any) -> None:
    with pytest.raises(InvalidRequest):
        session.install(packages, wheels=wheels)
    assert not (session.workspace / ".kernelexec" / "pylock.toml").exists()


@pytest.mark.parametrize("kind", ["local"], indirect=True)
@pytest.mark.parametrize(
    "requirement",
    at_night("lower >=1, <2", "Lower", "lower[a,b]", "lower", "lower==1.0", "lower==1.*", "lower; python_version>='3'"),
)
def test_names_with_versions_are_taken(session: Session, wheels: Path, requirement: str) -> None:
    assert session.install(requirement, wheels=wheels).ok


def test_without_a_network_there_must_be_wheels(session: Session) -> None:
    with pytest.raises(InvalidRequest, match=r"has no network to install from: pass a directory of wheels"):
        session.install("numpy")
    with pytest.raises(InvalidRequest, match="network='tor'"):
        session.install("numpy", network="tor")  # type: ignore[arg-type]


def test_wheels_that_are_no_directory_are_refused(session: Session, wheels: Path) -> None:
    (session.workspace / "linked").symlink_to(wheels)
    (session.workspace / "file").write_text("")
    for value in ("gone", "file", "linked", "~no-such-user/a", 5, ""):
        with pytest.raises(InvalidRequest, match="wheels="):
            session.install("lower", wheels=value if value != "" else "no/such")  # type: ignore[arg-type]


def test_a_link_in_the_place_of_the_environment_is_not_followed(session: Session, wheels: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for location in (tmp_path / "elsewhere", Path("/etc")):
        (session.workspace / ".venv").unlink(missing_ok=True)
        (session.workspace / ".venv").symlink_to(location)
        done = session.install("lower", wheels=wheels)
        assert not done.ok
        assert ".venv is a link, or no directory: remove it." in done.output
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_link_in_the_place_of_a_wheel_or_a_lock_is_not_followed(session: Session, wheels: Path, tmp_path: Path) -> None:
    (tmp_path / "private").write_text("not for cells")
    (session.workspace / "stolen.whl").symlink_to(tmp_path / "private")
    with pytest.raises(InvalidRequest, match=r"stolen.whl cannot be copied"):
        session.install("stolen.whl")
    (tmp_path / "kept").mkdir()
    shutil.rmtree(session.workspace / ".kernelexec", ignore_errors=True)
    (session.workspace / ".kernelexec").symlink_to(tmp_path / "kept")
    assert "is a link, or no directory: remove it." in session.install("lower", wheels=wheels).output
    session.execute_command("python3 -m venv --without-pip .venv")
    done = session.install("lower", wheels=wheels)
    assert (done.ok, done.lock) == (True, None)
    assert list((tmp_path / "kept").iterdir()) == []


HASHES = f'hashes = {{sha256 = "{"0" * 64}"}}'
WHEEL = f'wheels = [{{path = "lower-1.0-py3-none-any.whl", {HASHES}}}]'
#: Tables of a lock that are malformed, or would be for another environment, or fetched from elsewhere.
BAD_TABLES = (
    f'[[packages]]\nname = "-r /etc/passwd"\nversion = "1.0"\n{WHEEL}',
    f'[[packages]]\nname = "lower"\nversion = "1.0\\n-r x"\n{WHEEL}',
    f'[[packages]]\nname = "lower"\n{WHEEL}',
    '[[packages]]\nname = "lower"\nversion = "1.0"',
    f'[[packages]]\nname = "lower"\nversion = "1.0"\nmarker = "python_version > \\"3\\""\n{WHEEL}',
    f'[[packages]]\nname = "lower"\nversion = "1.0"\narchive = {{url = "https://example.org/x.zip", {HASHES}}}',
    f'[[packages]]\nname = "lower"\nversion = "1.0"\n{WHEEL.replace("0" * 64, "0 --pre")}',
    "packages = []\ntool.kernelexec = 5",
    'packages = []\n[tool.kernelexec.unhashed]\n"-r x" = "1"',
    'packages = []\n[tool.kernelexec.unhashed]\nlower = "1\\n-r x"',
    "packages = []\n[tool.kernelexec.unhashed]\nlower = 5",
    f"packages = []\n[tool{'.a' * 40}]",
    f"""packages = []\n[tool]\nx = {{y = '''" ''', {"'#' . " * 40}z = 1}} # \\"\"""",
)
#: Dots that are in no key.
DOTS = ".a" * 40
DOTTED_LOCK = f"""lock-version = "1.0" # {DOTS}
created-by = "x{DOTS}"
[[packages]]
name = "lower"
version = "1{".0" * 40}"
wheels = [{{name = "lower-1-py3-none-any.whl", url = 'https://a{DOTS}/x.whl', hashes = {{sha256 = "{"0" * 64}"}}}}]
[tool.x."y{DOTS}".z]
text = '''
"{DOTS}'''
"""


def test_a_lock_that_is_none_is_refused(session: Session, wheels: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"pylock.toml cannot be read"):
        session.rebuild(wheels=wheels)
    lock = session.workspace / "lock"
    head = 'lock-version = "1.0"\ncreated-by = "x"\n'
    for text in ("{", "[" * 100_000, "x = " + "[" * 100_000, "5", "", head, *(head + tables for tables in BAD_TABLES)):
        lock.write_text(text)
        with pytest.raises(InvalidRequest, match="must be a lock of packages"):
            session.rebuild(lock, wheels=wheels)


def test_a_lock_may_have_dots_in_strings_and_comments() -> None:
    assert PackageLock.parse(DOTTED_LOCK.encode(), "lock").packages[0].archive == f"https://a{DOTS}/x.whl"


def test_a_replaced_interpreter_is_confined_during_an_installation(
    executor: Executor, session: Session, wheels: Path, tmp_path: Path
) -> None:
    """The environment's Python is run for an installation; what it may do is less than what cells may do."""
    session.execute_command("true")
    victim, journal = tmp_path / "victim", session.journal
    program = own_venv(session) / "bin" / "python"
    program.unlink()
    tries = f"touch {victim}; touch {session.workspace}/made; cat {journal}; exec 3<>/dev/tcp/127.0.0.1/22 && echo reached"
    program.write_text(f"#!/bin/bash\necho here; {tries}; exit 3\n")
    program.chmod(0o755)
    done = session.install("lower==2.0", wheels=wheels)
    assert not done.ok
    assert "here" in done.output
    assert not victim.exists()
    assert "execution_id" not in done.output
    assert "reached" not in done.output
    if executor.config.isolation != "container":  # a container's wall is around the workspace
        assert not (session.workspace / "made").exists()
    assert session.execute("1 + 1").text == "2"


def test_an_installation_that_takes_too_long_is_ended(session: Session, wheels: Path) -> None:
    session.execute_command("true")
    program = own_venv(session) / "bin" / "python"
    program.unlink()
    program.write_text("#!/bin/bash\necho here; sleep 600 & sleep 600\n")
    program.chmod(0o755)
    done = session.install("lower==2.0", wheels=wheels, timeout=3)
    assert (done.exit_code, done.ok) == (124, False)
    assert done.output.endswith("The time limit was reached.\n")
    assert session.execute("1 + 1").text == "2"


@pytest.mark.nightly
def test_an_environment_of_the_users_own_is_filled(session: Session, wheels: Path) -> None:
    session.execute_command("python3 -m venv --without-pip .venv")
    done = session.install("lower", wheels=wheels)
    assert done.ok, done.output
    assert session.execute("import lower; print(lower.version)").stdout == "2.0\n"
    assert session.execute_command("python -c 'import lower'").ok


def test_a_named_environment_that_is_elsewhere_is_reported(tmp_path: Path, wheels: Path) -> None:
    venv = made_venv(tmp_path / "named")
    with Executor("local", workspace=tmp_path / "work", config={"programs": {"venv": venv}}) as executor:
        with pytest.raises(InvalidRequest, match="is not in the session's workspace"):
            executor.session().install("lower", wheels=wheels)
        assert list(packages_of(venv).iterdir()) == []


def test_a_named_environment_in_the_workspace_is_filled(tmp_path: Path, wheels: Path) -> None:
    venv = made_venv(tmp_path / "project" / "env")
    config = {"programs": {"venv": venv}, "work_dir": tmp_path / "project"}
    with Executor("local", workspace=tmp_path / "work", config=config) as executor:
        session = executor.session()
        assert session.install("lower", wheels=wheels).venv == str(venv)
        assert session.execute("import lower; print(lower.version)").stdout == "2.0\n"
        assert not (session.workspace / ".venv").exists()


def test_an_installation_has_the_limits_of_kernels(tmp_path: Path, wheels: Path) -> None:
    with Executor("local", workspace=tmp_path / "work", config={"limits": {"nofile": 123}}) as executor:
        session = executor.session()
        session.execute_command("true")
        program = own_venv(session) / "bin" / "python"
        program.unlink()
        program.write_text("#!/bin/bash\nulimit -n; exit 3\n")
        program.chmod(0o755)
        assert "123" in session.install("lower==2.0", wheels=wheels).output.splitlines()


def test_without_pip_it_says_so(tmp_path: Path, wheels: Path) -> None:
    bare = made_venv(tmp_path / "bare")
    [own] = [path for path in sys.path if path.endswith("site-packages")][:1]
    hider = "import sys; sys.path[:] = filter(None, sys.path); sys.modules |= dict.fromkeys(['pip', 'ensurepip'])\n"
    (packages_of(bare) / "with_ipykernel.pth").write_text(f"{own}\n")
    (packages_of(bare) / "zz.pth").write_text(hider)
    with Executor("local", workspace=tmp_path / "work", config={"python": str(bare / "bin/python")}) as executor:
        done = executor.session().install("lower", wheels=wheels)
        assert not done.ok
        assert "has no pip: install it there" in done.output


def without_pip(location: Path) -> Path:
    """The Python of an environment that has all packages of this one but pip."""
    bare, others = made_venv(location / "bare"), location / "others"
    others.mkdir()
    [own] = [path for path in sys.path if path.endswith("site-packages")][:1]
    for entry in Path(own).iterdir():
        if not entry.name.startswith("pip"):
            (others / entry.name).symlink_to(entry)
    (packages_of(bare) / "others.pth").write_text(f"{others}\n")
    return bare / "bin" / "python"


def test_an_environment_without_pip_takes_that_of_its_python(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path / "work", config={"python": str(without_pip(tmp_path))}) as executor:
        session = executor.session()
        assert session.execute("import importlib.util; importlib.util.find_spec('pip').origin").text.count(".whl/pip/") == 1
        assert session.execute_command("python -m pip --version").stdout.count(".whl/pip ") == 1


@pytest.mark.nightly
def test_the_pip_of_its_python_installs_into_an_environment_without_pip(tmp_path: Path, wheels: Path) -> None:
    with Executor("local", workspace=tmp_path / "work", config={"python": str(without_pip(tmp_path))}) as executor:
        session = executor.session()
        done = session.install("lower", wheels=wheels)
        assert done.ok, done.output
        assert session.execute("__import__('lower').version").text == "'2.0'"


@pytest.mark.parametrize("kind", ["local"], indirect=True)
def test_a_lock_of_another_tool_is_taken(session: Session, wheels: Path) -> None:
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(wheels.glob("lower-*.whl"))]
    sources = ", ".join(
        f'{{url = "https://example.org/lower-1.0-{tag}-none-any.whl", hashes = {{sha256 = "{digest}"}}}}'
        for tag, digest in zip(("py2", "py3"), ("0" * 64, digests[0]), strict=True)
    )
    lock = session.workspace / "pylock.other.toml"
    package = f'[[packages]]\nname = "lower"\nversion = "1.0"\nwheels = [{sources}]\n'
    lock.write_text(f'lock-version = "1.0"\ncreated-by = "another"\n{package}')
    done = session.rebuild(lock, wheels=wheels)
    assert (done.ok, list(map(str, done.packages)), done.notes) == (True, ["lower 1.0"], ()), done.output
    assert locked(session)["packages"] == [entry("lower", "1.0", digests[0])]


@pytest.mark.parametrize("kind", ["local"], indirect=True)
def test_a_package_without_a_known_archive_is_in_the_lock_too(session: Session, wheels: Path) -> None:
    session.execute_command("true")
    record = packages_of(own_venv(session)) / "other-2.5.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 2.5\n")
    assert session.install(["lower==1.0", "upper"], wheels=wheels).ok
    lock = locked(session)
    assert [package["name"] for package in lock["packages"]] == ["lower", "upper"]
    assert lock["tool"]["kernelexec"]["unhashed"] == {"other": "2.5"}
    made_wheel(session.workspace / "more", "other", "2.5")
    made_wheel(session.workspace / "more", "lower", "1.0", code="changed = True")
    made_wheel(session.workspace / "more", "upper", "3.1")
    done = session.rebuild(wheels="more")
    assert done.ok, done.output
    assert sorted(map(str, done.packages)) == ["lower 1.0", "other 2.5", "upper 3.1"]


@pytest.mark.parametrize("kind", ["local"], indirect=True)
def test_several_packages_and_files_of_requirements_mean_what_they_look_like(session: Session, wheels: Path) -> None:
    assert sorted(session.install("lower==1.0", "upper", wheels=wheels).names) == ["lower", "upper"]
    made_wheel(session.workspace, "further", "1.0")
    made_wheel(session.workspace, "inside", "1.2")
    (session.workspace / "requirements.txt").write_text("# ours\nlower == 2.0  # newer\n\n./inside-1.2-py3-none-any.whl\n")
    assert sorted(map(str, session.install("requirements.txt", wheels=wheels).packages)) == ["inside 1.2", "lower 2.0"]
    (session.workspace / "sub").mkdir()
    (session.workspace / "sub" / "more.txt").write_text("./further-1.0-py3-none-any.whl")
    done = session.install(Path("sub/more.txt"), wheels=wheels)
    assert sorted(done.names) == ["further"], done.output


@pytest.mark.parametrize("kind", ["local"], indirect=True)
@pytest.mark.parametrize("spelling", ["-r sub/more.txt", *at_night("--requirement=sub/more.txt", "-rsub/more.txt")])
def test_the_option_of_pip_names_a_file_of_requirements(session: Session, wheels: Path, spelling: str) -> None:
    (session.workspace / "sub").mkdir()
    (session.workspace / "sub" / "more.txt").write_text("upper")
    assert sorted(session.install(spelling, wheels=wheels).names) == ["lower", "upper"]


@pytest.mark.parametrize("kind", ["local"], indirect=True)
def test_a_file_of_requirements_that_asks_for_more_or_is_a_link_is_refused(
    session: Session, wheels: Path, tmp_path: Path
) -> None:
    for line in ("-r other.txt", "--index-url https://example.org", "lower --hash=sha256:0", "-e .", "lower \\"):
        (session.workspace / "requirements.txt").write_text(f"lower\n{line}\n")
        with pytest.raises(InvalidRequest, match="name with versions"):
            session.install("requirements.txt", wheels=wheels)
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "secret.txt").write_text("a secret\n")
    (session.workspace / "link.txt").symlink_to(tmp_path / "private" / "secret.txt")
    (session.workspace / "linked").symlink_to(tmp_path / "private")
    for path in ("link.txt", "linked/secret.txt", "gone.txt"):
        with pytest.raises(InvalidRequest, match=f"{path} cannot be read") as refused:
            session.install(path, wheels=wheels)
        assert "secret\n" not in str(refused.value)
