"""The command line. Results go to stdout, messages to stderr; the exit status shows success."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from kernelexec.imports import import_without_collection

__all__ = ["main", "run_program"]

#: The commands that start a kernel of their own, and the names of this machine as the place of kernels.
_KERNEL_COMMANDS, _HERE = ("exec", "run", "repl"), ("local", "host")
#: Options with which they start none.
_HELP = ("-h", "--help")
#: Pydantic looks for no plugins while this variable is set.
_NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"


def main() -> None:
    """Run the command line: see ``application.main``."""
    import_without_collection("kernelexec.cli.application")
    from kernelexec.cli import application

    application.main()


def run_program() -> NoReturn:
    """Run the command line as a program, and end the process."""
    status: Any = 0
    try:
        if starts_kernel_here(sys.argv[1:], os.environ):
            from kernelexec.provisioning.host.fork_server_process import start_early

            start_early()
            _import_parts()
        main()
    except SystemExit as exc:
        status = exc.code
    except KeyboardInterrupt:  # before the command has taken over its signals
        status = 128 + signal.SIGINT
    _exit_without_freeing(status)


def starts_kernel_here(words: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Return whether a command line, without the program, surely starts a kernel on this machine; a wrong answer costs time."""
    if not words or words[0] not in _KERNEL_COMMANDS or any(word in _HELP for word in words):
        return False
    isolation = environ.get("KERNELEXEC_ISOLATION", "")
    for word, following in zip(words, [*words[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if option == "--isolation":
            isolation = value if equals else following
    return isolation in _HERE


def _import_parts() -> None:
    """Import the parts of sessions, and build the settings without a search for pydantic's plugins in all packages."""
    os.environ[_NO_PLUGINS], former = "__all__", os.environ.get(_NO_PLUGINS)
    import_without_collection("kernelexec.config", "kernelexec.executor.registry")
    from kernelexec.config import Config

    Config.model_rebuild()
    del os.environ[_NO_PLUGINS]  # child processes would inherit it
    if former is not None:
        os.environ[_NO_PLUGINS] = former


def _exit_without_freeing(status: int) -> NoReturn:
    """Wait for threads and call exit handlers, as Python does, but free no objects: 28 ms after the modules of an executor."""
    threads: Any = threading
    threads._shutdown()  # noqa: SLF001 - the only way to wait for threads (Python 3.11 to 3.14)
    atexit._run_exitfuncs()  # noqa: SLF001 - and to call exit handlers; they and the command have flushed the streams
    os._exit(status)
