"""One executor a test module, in every way that a kernel can be had."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor, Session
from kernelexec.cli import main
from kernelexec.config import Config
from kernelexec.provisioning import platform
from tests.support.engine import IMAGE, needs_bubblewrap, needs_engine
from tests.support.hung_tests import HungTests
from tests.support.low_memory import MIB, Tight
from tests.support.remains import RUN

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
OVER_TCP: dict[str, dict[str, object]] = {
    "container over tcp": {"container": {"image": IMAGE, "memory_bytes": 4 * 2**30, "transport": "tcp"}},
}
#: In namespaces of this machine.
WRAPPED: dict[str, dict[str, object]] = {"bubblewrap": {}}
#: The same, and whether it is forked makes none either.
NOT_FORKED: dict[str, dict[str, object]] = {
    "local without fork server": {"fork_server": False},
    "container without fork server": {**KINDS["container"], "fork_server": False},
}
#: As on a system that pins no unix sockets and forks no kernels: its side is this machine's all the same.
ELSEWHERE: dict[str, dict[str, object]] = {"local without unix sockets": {}}
EVERY_KIND = [pytest.param(kind, marks=() if kind == "local" else needs_engine) for kind in KINDS]
_MORE = NOT_FORKED | OVER_TCP | ELSEWHERE
_MORE_KINDS = (pytest.param(kind, marks=() if kind.startswith("local") else needs_engine) for kind in _MORE)
EVERY_WAY = [*EVERY_KIND, *_MORE_KINDS, *(pytest.param(kind, marks=needs_bubblewrap) for kind in WRAPPED)]


#: The modules that take the most seconds. Where several workers share the modules, these begin first, so that none is left to
#: one worker at the end.
_LONGEST = (
    *("container/test_image_build", "contract/session/test_packages", "contract/test_resilience", "contract/test_contract"),
    *(
        "end_to_end/mcp/test_stdio",
        "end_to_end/jupyter/test_server",
        "local/session/test_takeover",
        "end_to_end/cli/test_command",
    ),
    *("end_to_end/cli/test_repl", "contract/session/test_pool", "container/test_adoption", "end_to_end/frameworks/test_ag2"),
    *("contract/provisioning/test_languages", "end_to_end/test_readme", "end_to_end/test_notebooks"),
    *(
        "local/provisioning/test_wrapped",
        "container/test_sudo",
        "local/kernel/test_curve_kernels",
        "local/replay/test_notebooks",
    ),
)


#: Tests that run driver code which other tests measure, with other inputs, and tests of the launcher, which has no coverage.
#: They run without coverage, which takes two thirds of the driver's processor time.
_UNMEASURED = (
    *("hostile", "fuzz", "unit/launcher", "unit/outputs/test_collector_bounds.py", "contract/launcher"),
    *("unit/test_architecture.py", "unit/test_naming.py"),
    *("local/provisioning/test_confinement.py", "local/session/test_takeover.py"),
    *("contract/test_resilience.py", "contract/session/test_run_tests.py", "contract/session/test_variable_values.py"),
    *(f"end_to_end/test_{name}.py" for name in ("command_execution", "notebooks", "readme", "secure_example")),
    *(f"end_to_end/cli/test_{name}.py" for name in ("agents", "config", "containers", "mcp_entry", "publication", "running")),
    *(f"end_to_end/cli/test_{name}.py" for name in ("notebooks_of_jupyter", "signals", "streams", "what_nbclient_keeps")),
    *("end_to_end/frameworks/test_tracing.py", "end_to_end/jupyter/test_server.py"),
    *(f"end_to_end/mcp/test_{name}.py" for name in ("answer_limits", "answers", "calls", "connections", "elicitation", "http")),
    *(f"end_to_end/mcp/test_{name}.py" for name in ("jwt", "leaving_clients", "logs", "metrics", "oauth", "oauth_providers")),
    *(f"end_to_end/mcp/test_{name}.py" for name in ("quotas", "request_bodies", "request_ids", "server_image", "stdio")),
    *(f"end_to_end/mcp/test_{name}.py" for name in ("structured", "task_owners", "tasks", "toolsets", "untrusted_text")),
)
#: How coverage's settings reach the processes that a test starts.
_COVERAGE = "COVERAGE_PROCESS_CONFIG"
_HUNG_TESTS = pytest.StashKey[HungTests]()


@cache
def _is_listed(path: Path) -> bool:
    return any(path.is_relative_to(TESTS / unmeasured) for unmeasured in _UNMEASURED)


def _is_unmeasured(item: pytest.Item) -> bool:
    """Return whether a test runs without coverage: it is listed, or repeats another for a kind of kernel or of client."""
    if _is_listed(item.path):
        return True
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if item.path.is_relative_to(TESTS / "contract") and params.get("kind", "local") != "local":
        return True
    return any(value == "legacy" for value in params.values() if isinstance(value, str))


def pytest_configure(config: pytest.Config) -> None:
    """Keep the stderr of this process, before tests have their own."""
    config.stash[_HUNG_TESTS] = HungTests(float(os.environ.get("KERNELEXEC_TEST_HANG_SECONDS", "580")))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Run two workers more than there are cores with ``-n auto``: tests wait for engines and bounds a third of their time."""
    return (os.cpu_count() or 1) + 2


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let the processes of a test without coverage run without it too."""
    with pytest.MonkeyPatch.context() as patch:
        if item.get_closest_marker("no_cover") is not None:
            patch.delenv(_COVERAGE, raising=False)
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest modules first, check the tiers, and skip the tests of an engine where the environment says so."""
    positions = {TESTS / f"{name}.py": position for position, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: positions.get(item.path, len(positions)))
    for item in items:
        needs, tier = item.get_closest_marker("engine") is not None, item.path.relative_to(TESTS).parts[0]
        if needs != (tier == "container") and tier in {"unit", "local", "container"}:
            msg = f"{item.nodeid}: it must stand in tests/container if it needs an engine, and only then"
            raise pytest.UsageError(msg)
        if _is_unmeasured(item):
            item.add_marker(pytest.mark.no_cover)
        if needs and os.environ.get("KERNELEXEC_TEST_ENGINE") == "0":
            item.add_marker(pytest.mark.skip(reason="KERNELEXEC_TEST_ENGINE=0: without a container engine"))


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
def signals_as_in_a_terminal() -> None:
    """Have what the tests start hear Ctrl+C, though this run be one in the background, where shells have it ignored."""
    for signum in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def no_preload() -> None:
    """Have fork servers import no large libraries without a test that configures them: each needs two seconds for them."""
    Config.model_fields["preload"].default = ()
    Config.model_rebuild(force=True)


@pytest.fixture(scope="module", autouse=True)
def own_remains(own_programs: None) -> Iterator[None]:
    """Give each module its own private directories and mark its processes: other modules' killed owners leave some a moment."""
    location = tempfile.mkdtemp(prefix="kxr-", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(RUN, uuid.uuid4().hex)
        patch.setenv("XDG_RUNTIME_DIR", location)
        yield
    shutil.rmtree(location, ignore_errors=True)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A private directory with a path short enough for unix sockets."""
    path = Path(tempfile.mkdtemp(prefix="kxt-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def in_process(capfd: pytest.CaptureFixture[str]) -> Command:
    """The command line, run in this process: for what ends before anything runs, where a process spends its time on imports."""

    def run(cwd: Path, *args: str, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(cwd)
            patch.setattr(sys, "argv", ["kernelexec", *args])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
            for name, value in env.items():
                patch.setenv(name, value)
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
    return kind.split(maxsplit=1)[0], (KINDS | OVER_TCP | NOT_FORKED | WRAPPED | ELSEWHERE)[kind]


@contextmanager
def executor_of(kind: str, workspace: Path, **more: Any) -> Iterator[Executor]:
    """An executor whose kernels are had in one of ``EVERY_WAY``, with more of a configuration."""
    isolation, config = settings_of(kind)
    with pytest.MonkeyPatch.context() as patch:
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
