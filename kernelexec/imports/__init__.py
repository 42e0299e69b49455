"""Quick imports: names whose modules are imported at the first use; and errors of missing names with the names to write."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: What to write instead of the attribute of a session, by its name elsewhere.
SESSION: Mapping[str, str] = {
    **dict.fromkeys(("run", "run_code", "run_cell", "execute_code", "execute_cell", "exec"), "session.execute(code)"),
    **dict.fromkeys(("submit", "async_execute"), "session.execute(code, wait=0.1)"),
    "create_code_context": 'executor.session("a")',
    "get_host": 'session.execute_command("curl 127.0.0.1:8000")',
    "kill": "session.close()",
    **dict.fromkeys(("shell", "run_command", "commands"), 'session.execute_command("ls")'),
    "run_file": 'session.execute("%run a.py")',
    "set": 'session.put("x", 1)',
    "push": 'session.put({"x": 1})',
    "eval": 'session.execute("x + 1").value',
    **dict.fromkeys(("upload", "upload_file"), 'session.files.upload("a.csv")'),
    **dict.fromkeys(("download", "download_file"), 'session.files.download("a.csv")'),
    "list_files": "session.files.list()",
    "read_file": 'session.files.read("a.csv")',
    "write_file": 'session.files.write("a.csv", text)',
    "pip_install": 'session.install("x")',
    "reset": "session.restart()",
    **dict.fromkeys(("id", "sandbox_id"), "session.name"),
    "work_dir": "session.workspace",
    "info": "session.stats()",
    **dict.fromkeys(("timeout", "set_timeout"), "session.execute(code, timeout=30)"),
    **dict.fromkeys(("is_alive", "is_running"), "session.stats()"),
    "history": "session.executions()",
}
FILES: Mapping[str, str] = {
    **dict.fromkeys(("list_files", "get_info"), "files.list()"),
    "read_file": 'files.read("a.csv")',
    "write_file": 'files.write("a.csv", text)',
    "upload_file": 'files.upload("a.csv")',
    "download_file": 'files.download("a.csv")',
    "remove": 'files.delete("a.csv")',
    **dict.fromkeys(("rename", "make_dir"), 'session.execute_command("mkdir data; mv a.csv data")'),
    "watch_dir": "result.files",
}
EXECUTOR: Mapping[str, str] = {
    **dict.fromkeys(("execute", "execute_code_blocks", "run", "run_code"), "executor.session().execute(code)"),
    **dict.fromkeys(("create_session", "get_session"), 'executor.session("a")'),
    "start": "executor.open()",
    "restart": "executor.session().restart()",
    **dict.fromkeys(("close_all", "stop"), "executor.close()"),
    **dict.fromkeys(("names", "list_sessions"), "executor.sessions()"),
    "work_dir": "executor.config.workspace",
}
RESULT: Mapping[str, str] = {
    **dict.fromkeys(("result", "data"), "result.value"),
    "results": "result.outputs",
    "output_files": "result.files",
    "code_file": "session.notebook",
    "returncode": "result.exit_code",
    "duration": "result.timing.wall",
    "timed_out": "result.interrupted",
    "output": "result.text",
    "logs": "result.stdout",
    "success": "result.ok",
}
#: What to write instead of a keyword that a method does not have, by its name elsewhere.
EXECUTE_KEYWORDS: Mapping[str, str] = {
    "variables": "inputs={...}",
    **dict.fromkeys(("on_stdout", "on_stderr", "on_result", "on_error"), "on_output=function"),
    **dict.fromkeys(("env", "envs"), 'Executor(env={...}), or session.execute_command("ls", env={...})'),
    **dict.fromkeys(("cwd", "work_dir"), 'session.execute_command("ls", work_dir="data")'),
    "background": 'session.start_background("ls")',
    "context": 'executor.session("a").execute(code)',
}
SESSION_KEYWORDS: Mapping[str, str] = {
    "env": "Executor(env={...})",
    "cwd": 'work_dir="data"',
    "timeout": "Executor(timeout=30), or session.execute(code, timeout=30)",
    "language": 'session.execute(code, language="r")',
    "python": 'Config(python="python3.12")',
}
PACKAGE: Mapping[str, str] = {"connect": 'kernelexec.attach("a")'}


def explain_attribute(names: Mapping[str, str]) -> Callable[[object, str], Any]:
    """Return the ``__getattr__`` of a class, which is called for missing attributes only."""

    def fail(self: object, name: str) -> Any:  # noqa: ANN401 - of a property
        # A property has failed with an AttributeError of its own, which Python takes for a missing attribute: run it again, so
        # that its error is raised, and not ours.
        if hasattr(type(self), name):
            return object.__getattribute__(self, name)
        message = f"{type(self).__name__!r} object has no attribute {name!r}{explain_name(names, name)}"
        raise AttributeError(message, name=name, obj=self)

    return fail


def explain_keywords(names: Mapping[str, str]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator of a function: the error of a keyword from another library names the keyword to write."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        own = (getattr(function, "__kwdefaults__", None) or {}).keys()

        @wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            if wrong := next(iter((names.keys() & kwargs.keys()) - own), None):
                raise TypeError(f"{function.__name__}() has no argument {wrong!r}: write {names[wrong]}")
            return function(*args, **kwargs)

        return call

    return decorate


def explain_name(names: Mapping[str, str], name: str) -> str:
    """Return the end of the message about a missing name: what to write instead, or an empty text."""
    return f": write {names[name]}" if name in names else ""


def make_getattr(
    package: str, modules: Mapping[str, str], others: Mapping[str, str] = MappingProxyType({})
) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a package.

    Args:
        package: the package's ``__name__``.
        modules: the module of each public name, relative to the package. ``from package import name`` imports the module, and
            so does the use of the module itself as an attribute of the package.
        others: names of other libraries, with what to write instead.
    """
    own = {module.partition(".")[0] for module in modules.values()}

    def find(name: str) -> object:
        if name in modules:
            value = getattr(import_module(f"{package}.{modules[name]}"), name)
        elif name in own:
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}{explain_name(others, name)}")
        setattr(sys.modules[package], name, value)  # the next use finds it there, without a call
        return value

    return find


def import_without_collection(*names: str) -> None:
    """Import modules without collections of garbage, which take a sixth of the time of an import of thousands of objects.

    Nearly all of these objects live as long as the process, so later collections skip them too. Call this only in a process of
    our own, before the work begins: earlier garbage is never collected.
    """
    # 0.18 of 1.13 s for the MCP server; the collections found 5,000 of 600,000 objects to be garbage.
    if all(name in sys.modules for name in names):
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for name in names:
            import_module(name)
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()
