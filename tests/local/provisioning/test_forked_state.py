"""A forked kernel with preloaded modules is as one that has just imported them: its state, and what it shows."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from kernelexec import Executor
from tests.support.night import named_cases
from tests.support.preloading import make_font_list, preloaded_session

PRELOADED = ("numpy", "pandas", "matplotlib.pyplot")
#: Prints the state of the process and of all modules: settings, counters, and the sizes of collections and caches.
STATE = r"""
def describe_state():
    import asyncio, atexit, contextlib, decimal, functools, gc, importlib, itertools, locale, logging, os, resource, signal
    import socket, sys
    import time, warnings
    import matplotlib.pyplot, numpy, pandas
    sizes = dict, list, set, frozenset, tuple
    def describe(value):
        if isinstance(value, (bool, int, float, str, bytes, type(None))) or type(value) is itertools.count:
            return repr(value)[:400]
        if isinstance(value, functools._lru_cache_wrapper):
            return str(value.cache_info())
        return f"{type(value).__name__} of {len(value)}" if isinstance(value, sizes) else None
    state = {}
    for name, module in sorted(sys.modules.items()):
        if module is None or name.startswith(("launcher", "__main__", "__mp_main__")):
            continue
        for key, value in list(vars(module).items()):
            members = list(vars(value).items()) if isinstance(value, type) and value.__module__ == name else ()
            for label, item in ((key, value), *((f"{key}.{part}", item) for part, item in members)):
                with contextlib.suppress(ImportError):  # six has names of modules that are not installed
                    item = getattr(item, "__func__", item)
                if (text := describe(item)) is not None:
                    state[f"{name}.{label}"] = text
    state["modules"] = sorted(name for name in sys.modules if not name.startswith("launcher"))
    state["filters"] = list(map(str, warnings.filters))
    state["once"] = list(warnings.onceregistry)
    registries = {name: getattr(module, "__warningregistry__", ()) for name, module in sys.modules.items()}
    state["warned"] = sorted(name for name, registry in registries.items() if len(registry) > 1)
    items = [(name, item) for name, item in logging.root.manager.loggerDict.items() if hasattr(item, "level")]
    state["loggers"] = sorted((name, item.level, [type(handler).__name__ for handler in item.handlers]) for name, item in items)
    state["signals"] = [str(signal.getsignal(number)).split(" at ")[0] for number in signal.valid_signals()]
    state["process"] = gc.get_threshold(), gc.isenabled(), sys.flags, socket.getdefaulttimeout(), atexit._ncallbacks()
    state["limits"] = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
    state["contexts"] = str(decimal.getcontext()), locale.setlocale(locale.LC_ALL), sys.getrecursionlimit(), time.tzname
    state["environment"] = sorted(os.environ)
    state["numpy"] = numpy.get_printoptions(), numpy.geterr()
    warnings.simplefilter("ignore")
    state["pandas"] = {name: str(pandas.get_option(name)) for name in pandas._config.config._registered_options}
    state["matplotlib"] = sorted(matplotlib.rcParams.items()), matplotlib.pyplot._REPL_DISPLAYHOOK
    return state
for name, value in describe_state().items(): print(name, "=", value)
"""
#: Differ from process to process, by the order of a set of texts, or by what the launcher itself does on its way.
DIFFERENT = (
    *("_ctypes.", "ctypes.", "tokenize.", "lib2to3.pgen2.tokenize.", "posix.", "os.", "nt.", "threading."),
    *("fnmatch._compile_pattern", "re._", "sys.", "logging._startTime", "tempfile.", "zmq.", "jupyter_core.", "abc."),
    *(
        "multiprocessing.util.MAXFD",
        "linecache.",
        "inspect.modulesbyfile",
        "importlib.metadata.FastPath",
        "_thread",
        "random.",
        "uuid.",
        "time.",
        "asyncio.",
        "weakref.",
        "_weakrefset",
        "typing.",
        "functools.",
    ),
)


def test_the_state_of_a_forked_kernel_is_that_of_a_fresh_one(tmp_path: Path) -> None:
    fresh, forked = (_describe_state(tmp_path / name, forked=forked) for name, forked in (("fresh", False), ("forked", True)))
    assert len(fresh) > 5000
    assert list(difflib.unified_diff(fresh, forked, "fresh", "forked", lineterm="", n=0)) == []


def _describe_state(workspace: Path, *, forked: bool) -> list[str]:
    make_font_list()
    with Executor(
        "local", workspace=workspace, config={"fork_server": forked, "preload": PRELOADED, "checkpoints": "off"}
    ) as executor:
        session = preloaded_session(executor, *PRELOADED) if forked else executor.session("next")
        session.execute("import sys; True")
        result = session.execute(STATE, timeout=60)
        assert result.ok
        text = session.read_output(result.execution_id, limit=10**7).text if result.truncated else result.text
        text = text.replace(str(workspace), "workspace")
        return [line for line in text.splitlines() if not line.startswith(DIFFERENT)]


#: Modules that show something while they are imported.
SHOWING = {
    "a deprecation for the importer": "import warnings\nwarnings.warn('is old', DeprecationWarning, stacklevel=2)",
    "a warning": "import warnings\nwarnings.warn('is odd')",
    "text": "print('hello')",
    "a log record": "import logging\nlogging.getLogger('shows').warning('takes long')",
}


@pytest.mark.parametrize("code", named_cases(SHOWING, {"a deprecation for the importer", "text"}))
def test_output_of_a_preloaded_module_is_in_the_importing_cell(tmp_path: Path, code: str) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "shows.py").write_text(code)
    (tmp_path / "modules" / "quiet.py").write_text("import warnings\nwarnings.warn('is new', PendingDeprecationWarning)")
    texts = []
    for preload in ([], ["shows", "quiet"]):
        config = {"preload": preload, "environment": {"set": {"PYTHONPATH": str(tmp_path / "modules")}}}
        with Executor("local", workspace=tmp_path / str(len(preload)), config=config) as executor:
            session = preloaded_session(executor, *preload[1:]) if preload else executor.session("next")
            shown = session.execute("import shows, quiet")
            texts.append([line.rpartition(": ")[2] for line in shown.text.splitlines()])
            assert session.execute("import shows").text == ""
    assert texts[0] == texts[1] != []


def test_filters_that_a_module_adds_come_first(tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "filters.py").write_text("import warnings\nwarnings.filterwarnings('error', message='mine')")
    config = {"preload": ["filters"], "environment": {"set": {"PYTHONPATH": str(tmp_path / "modules")}}}
    with Executor("local", workspace=tmp_path / "workspaces", config=config) as executor:
        session = preloaded_session(executor, "filters")
        assert session.execute("import warnings; warnings.filters[0][0]").text == "'error'"
