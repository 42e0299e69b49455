"""One executor a test module, in every way that a kernel can be had."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kernelexec import Executor, Session
from kernelexec.cli import main
from kernelexec.config import Config
from kernelexec.executor import notices
from kernelexec.provisioning import platform
from kernelexec.provisioning.host.fork_server_process import ForkServerProcess
from tests.support.engine import IMAGE, needs_bubblewrap, needs_engine
from tests.support.forked_servers import ServerTemplate
from tests.support.hung_tests import HungTests
from tests.support.low_memory import MIB, Tight
from tests.support.pace import FACTOR
from tests.support.places import PLACES
from tests.support.remains import RUN
from tests.support.remote_engine import remote_engine

#: The command line in this process: the current directory and the arguments; the end.
Command = Callable[..., subprocess.CompletedProcess[str]]
#: This directory.
TESTS = Path(__file__).resolve().parent

#: Every way to have a kernel, with the settings that it needs: what must hold for one must hold for all.
KINDS: dict[str, dict[str, object]] = {
    "local": {},
    "container": {"container": {"image": IMAGE, "memory_bytes": 4 * 2**30}},
}
#: Further ones, for the modules that say what holds for a kernel: how it is reached makes no difference to the others.
RELAYED: dict[str, dict[str, object]] = {"container over a relay": KINDS["container"]}
#: In namespaces of this machine.
WRAPPED: dict[str, dict[str, object]] = {"bubblewrap": {}}
#: The same, and whether it is forked makes none either.
NOT_FORKED: dict[str, dict[str, object]] = {
    "local without fork server": {"fork_server": False},
    "container without fork server": {**KINDS["container"], "fork_server": False},
}
#: As on a system that forks no kernels: its side is this machine's all the same.
ELSEWHERE: dict[str, dict[str, object]] = {"local on another system": {}}
EVERY_KIND = [pytest.param(kind, marks=() if kind == "local" else needs_engine) for kind in KINDS]
_MORE = NOT_FORKED | RELAYED | ELSEWHERE
_MORE_KINDS = (
    pytest.param(kind, marks=[pytest.mark.nightly, *([] if kind.startswith("local") else [needs_engine])]) for kind in _MORE
)
EVERY_WAY = [*EVERY_KIND, *_MORE_KINDS, *(pytest.param(kind, marks=needs_bubblewrap) for kind in WRAPPED)]


_HUNG_TESTS = pytest.StashKey[HungTests]()
#: How a module says that all of its tests are of the night: by this mark alone, or as one of a list.
_NIGHTLY = re.compile(r"^pytestmark = (\[[^\]]*)?pytest\.mark\.nightly\b", re.MULTILINE)
# A library that checks notebooks builds 38 grammars when it is imported, for a format that no notebook has.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type] # that is how an import is refused


def pytest_configure(config: pytest.Config) -> None:
    """Keep the stderr of this process, before tests have their own."""
    config.stash[_HUNG_TESTS] = HungTests(float(os.environ.get("KERNELEXEC_TEST_HANG_SECONDS", "105")))


def pytest_report_header() -> str:
    """Name the factor of this machine."""
    return f"times of tests are multiplied by {FACTOR}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Run two workers more than there are cores with ``-n auto``: tests wait for engines and bounds a third of their time."""
    return len(os.sched_getaffinity(0)) + 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let a worker that has no more tests take some of another one."""
    from xdist.scheduler import WorkStealingScheduling  # noqa: PLC0415 - where it is installed

    return WorkStealingScheduling(config, log)


def _tier(path: Path) -> str:
    return path.relative_to(TESTS).parts[0]


def _repeats_confined(item: pytest.Item) -> bool:
    """Return whether a test repeats in a container or in namespaces what a local kernel shows.

    It does where its module has ``ALSO_CONFINED``, unless that names it, with the parameters in brackets or without.
    """
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec") or not hasattr(item.module, "ALSO_CONFINED"):
        return False
    is_confined = any(part.startswith(("container", "bubblewrap")) for part in item.callspec.id.split("-"))
    return is_confined and {item.originalname, item.name}.isdisjoint(item.module.ALSO_CONFINED)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while thousands of tests are made, nor among them later: they stay for the whole run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no module for the gate whose tests are all of the night: some import large frameworks."""
    if config.getoption("nightly") or collection_path.suffix != ".py":
        return None
    return True if _NIGHTLY.search(collection_path.read_text(encoding="utf-8")) else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--nightly``: every test, and not only those of the gate."""
    parser.addoption("--nightly", action="store_true", help="run the tests that are marked nightly too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of the night, check the tiers, and skip the tests of an engine where the environment says so."""
    for item in filter(_repeats_confined, items):
        item.add_marker(pytest.mark.nightly)
    if not config.getoption("nightly"):
        chosen = [item for item in items if item.get_closest_marker("nightly") is None]
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("nightly") is not None])
        items[:] = chosen
    for item in items:
        needs, tier = item.get_closest_marker("engine") is not None, _tier(item.path)
        if needs != (tier == "container") and tier in {"unit", "local", "container"}:
            msg = f"{item.nodeid}: it must stand in tests/container if it needs an engine, and only then"
            raise pytest.UsageError(msg)
        if needs and os.environ.get("KERNELEXEC_TEST_ENGINE") == "0":
            item.add_marker(pytest.mark.skip(reason="KERNELEXEC_TEST_ENGINE=0: without a container engine"))


def pytest_sessionfinish(exitstatus: int) -> None:
    """Keep the directories of a run that failed, for a look; the next run removes them."""
    PLACES.keeps = exitstatus not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Have the tasks of a test that hangs in its worker's log, as faulthandler has the stacks of its threads."""
    with item.config.stash[_HUNG_TESTS].watch(item.nodeid):
        return (yield)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run asynchronous tests on asyncio, which executors need; trio is installed for some of the frameworks."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def own_programs() -> Iterator[None]:
    """Let the tests find the programs of their own environment first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
        yield


@pytest.fixture(scope="session", autouse=True)
def signals_as_in_a_terminal() -> Iterator[None]:
    """Have what the tests start hear Ctrl+C, though this run be one in the background, where shells have it ignored."""
    ignored = [signum for signum in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(signum) is signal.SIG_IGN]
    for signum in ignored:
        signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
    yield
    for signum in ignored:
        signal.signal(signum, signal.SIG_IGN)


@pytest.fixture(scope="session", autouse=True)
def no_preload() -> Iterator[None]:
    """Have fork servers import no large libraries without a test that configures them: each needs two seconds for them."""
    field = Config.model_fields["preload"]
    before, field.default = field.default, ()
    Config.model_rebuild(force=True)
    yield
    field.default = before
    Config.model_rebuild(force=True)


@pytest.fixture(scope="session")
def server_template(own_programs: None) -> Iterator[ServerTemplate]:
    """Of what the fork servers of this process are forked."""
    template = ServerTemplate()
    yield template
    template.close()


@pytest.fixture(scope="module", autouse=True)
def forked_servers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have fork servers forked, unless a module has ``OWN_FORK_SERVERS``; tests of the unit tier start no process."""
    with pytest.MonkeyPatch.context() as patch:
        if _tier(request.path) != "unit" and not getattr(request.module, "OWN_FORK_SERVERS", False):
            template: ServerTemplate = request.getfixturevalue("server_template")
            patch.setattr(ForkServerProcess, "start", template.start)
        yield


@pytest.fixture(scope="module", autouse=True)
def own_remains(own_programs: None) -> Iterator[None]:
    """Give each module its own private directories and mark its processes: other modules' killed owners leave some a moment."""
    location = tempfile.mkdtemp(prefix="kxr-")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(RUN, uuid.uuid4().hex)
        patch.setenv("KERNELEXEC_RUNTIME_DIR", location)
        yield
    shutil.rmtree(location, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def base_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Choose the directory of all ``tmp_path`` now: while a test has a temporary directory of its own, it would lie there."""
    return tmp_path_factory.getbasetemp()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A private directory with a path short enough for unix sockets."""
    path = Path(tempfile.mkdtemp(prefix="kxt-"))
    yield path
    shutil.rmtree(path)


@contextmanager
def signals_kept() -> Iterator[None]:
    """Have this process handle and block the same signals afterwards."""
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@pytest.fixture
def in_process(capfd: pytest.CaptureFixture[str]) -> Command:
    """The command line in this process, begun as in a new one: where that one would spend its time on nothing but imports."""

    def run(cwd: Path, *args: str, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[str]:
        capfd.readouterr()  # what the test's own executors have said is not the command's
        variables = {name: value for name, value in os.environ.items() if not name.endswith("_USE_DOCKER")} | env
        with (
            tempfile.TemporaryFile("w+", encoding="utf-8") as content,
            pytest.MonkeyPatch.context() as patch,
            mock.patch.dict(os.environ, variables, clear=True),
            signals_kept(),
        ):
            content.buffer.write(stdin)
            content.seek(0)
            patch.chdir(cwd)
            patch.setattr(sys, "argv", ["kernelexec", *args])
            patch.setattr(sys, "stdin", content)
            patch.setattr(tempfile, "tempdir", None)  # it is chosen by the environment
            patch.setattr(notices, "_printed_notices", set())  # each is printed once a process
            with pytest.raises(SystemExit) as ended:
                main()
        out, err = capfd.readouterr()
        return subprocess.CompletedProcess(args, int(str(ended.value.code)), out, err)

    return run


@pytest.fixture(scope="module", params=EVERY_KIND)
def kind(request: pytest.FixtureRequest) -> str:
    """How the kernels of a module's executor are had; a module may say in which other ways too."""
    return str(request.param)


def settings_of(kind: str) -> tuple[str, dict[str, object]]:
    """The isolation and the configuration of one of ``EVERY_WAY``."""
    return kind.split(maxsplit=1)[0], (KINDS | RELAYED | NOT_FORKED | WRAPPED | ELSEWHERE)[kind]


@contextmanager
def executor_of(kind: str, workspace: Path, **more: Any) -> Iterator[Executor]:
    """An executor whose kernels are had in one of ``EVERY_WAY``, with more of a configuration."""
    isolation, config = settings_of(kind)
    with pytest.MonkeyPatch.context() as patch, remote_engine() if kind in RELAYED else nullcontext():
        if kind in ELSEWHERE:
            patch.setattr(platform, "PLATFORM", platform.Platform.of("darwin"))
        with Executor(isolation=isolation, workspace=workspace, config={**config, **more}) as opened:
            yield opened


@pytest.fixture(scope="module")
def executor(kind: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Executor]:
    """An executor of that kind; the mode of its checkpoints is the module's ``CHECKPOINTS``, if it has one."""
    mode = getattr(request.module, "CHECKPOINTS", "auto")
    with executor_of(kind, tmp_path_factory.mktemp("workspaces"), checkpoints=mode) as opened:
        yield opened


@pytest.fixture
def session(executor: Executor, request: pytest.FixtureRequest) -> Iterator[Session]:
    """A fresh session of its own, or the module's for tests that are marked ``shared_session``."""
    if request.node.get_closest_marker("shared_session"):
        yield executor.session("shared")
        return
    opened = executor.session(f"t{abs(hash(request.node.nodeid)) % 10**8}")
    yield opened
    opened.close()


@pytest.fixture(params=EVERY_KIND)
def tight(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tight]:
    """What opens sessions with little memory, in every way that a kernel can be had."""
    with ExitStack() as closing:
        mode = getattr(request.module, "CHECKPOINTS", "auto")
        yield Tight(request.param, {**KINDS[request.param], "checkpoints": mode}, tmp_path, closing)


@pytest.fixture
def tight_session(tight: Tight) -> Session:
    """A session of 64 MiB."""
    return tight.session(64 * MIB)
