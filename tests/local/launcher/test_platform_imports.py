"""What another system lacks costs no import, and only two modules ask which system it is."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import kernelexec
from tests.support.night import at_night

PACKAGE = Path(kernelexec.__file__).parent
#: The modules that may ask, by path; and the questions that the workspace, which stands below, has to ask itself.
ASKING = {"provisioning/platform.py", "launcher/platform.py"}
BELOW = {("workspace/safe_files.py", "getattr(os, 'O_PATH')")}
#: Not everywhere; their imports are guarded where they are asked for.
MODULES = ("fcntl", "resource", "termios", "pwd")
#: What these programs of ours import, which run in containers only.
IN_CONTAINERS = {"docker/images/export_python.py"}
LACKS = (
    *("memfd_create", "pidfd_open", "mkfifo", "O_PATH", "fork", "setsid", "killpg", "getuid", "geteuid", "getpgrp", "getsid"),
    *("register_at_fork", "sysconf", "posix_spawn", "waitid"),
)
#: All is imported once as it is, so that other libraries, and Python's own, have what they need; then ours anew.
ELSEWHERE = """
import builtins, importlib, os, pkgutil, signal, socket, sys

def all_of_ours():
    import kernelexec.launcher
    inner = pkgutil.walk_packages(kernelexec.launcher.__path__, "kernelexec.launcher.")
    named = [module.name for module in inner if not module.name.endswith("__main__")]
    for name in ("kernelexec", "kernelexec.cli.application", "kernelexec.mcp.server", *named):
        importlib.import_module(name)
    return named

all_of_ours()
for name in [name for name in sys.modules if name.partition(".")[0] == "kernelexec"]:
    del sys.modules[name]
for name in %(lacks)r:
    delattr(os, name)
del socket.SO_PEERCRED
sys.platform = %(platform)r
really = builtins.__import__

def import_elsewhere(name, globals=None, *args, **kwargs):
    if name in %(modules)r and (globals or {}).get("__name__", "").startswith("kernelexec"):
        raise ImportError(name)
    return really(name, globals, *args, **kwargs)

class Elsewhere:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in %(modules)r:
            raise ModuleNotFoundError(name)

for name in %(modules)r:
    sys.modules.pop(name, None)
builtins.__import__ = import_elsewhere
sys.meta_path.insert(0, Elsewhere)
print(len(all_of_ours()) > 30)
from kernelexec import Executor
from kernelexec.provisioning import platform
from kernelexec.launcher import platform as inner
executor = Executor("local")
print(platform.PLATFORM.name, inner.PLATFORM.name, inner.resource, executor.config.isolation)
"""


@pytest.mark.parametrize("platform", ["darwin", *at_night("win32")])
def test_all_can_be_imported_and_an_executor_made_where_much_is_not_there(platform: str, tmp_path: Path) -> None:
    code = ELSEWHERE % {"lacks": LACKS, "modules": MODULES, "platform": platform}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (ran.stdout, ran.returncode) == (f"True\n{platform} {platform} None local\n", 0), ran.stderr


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def asked(path: Path) -> Iterator[str]:
    """What of the system the text of a module asks."""
    for node in nodes(path):
        match node:
            case ast.Attribute(value=ast.Name(id="sys"), attr="platform") | ast.Attribute(value=ast.Name(id="os"), attr="name"):
                yield ast.unparse(node)
            case ast.Call(
                func=ast.Name(id="hasattr" | "getattr" as call), args=[ast.Name(id=module), ast.Constant(value=name), *_]
            ):
                if module in ("os", "signal", "socket"):
                    yield f"{call}({module}, {name!r})"


def imported(path: Path) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


SOURCES = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}


def test_no_other_module_asks_which_system_it_is() -> None:
    actual = {(name, what) for name, path in SOURCES.items() if name not in ASKING for what in asked(path)}
    assert actual == BELOW


def test_no_other_module_imports_what_some_systems_lack() -> None:
    actual = {name for name, path in SOURCES.items() if {*MODULES} & {*imported(path)}}
    assert actual - ASKING == IN_CONTAINERS
