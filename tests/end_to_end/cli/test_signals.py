"""Signals that a command was started without: they stay ignored, as under nohup, whichever command it is."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelexec.cli.image import _interrupt_on_signals
from kernelexec.cli.stdio import CommandFailed
from tests.support.command_line import BOUND, COMMAND, LOCAL, NO_PRELOAD, WAITS, environment
from tests.support.mcp_clients import Raw
from tests.support.night import at_night

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def without(signum: signal.Signals, cwd: Path, *args: str) -> subprocess.Popen[bytes]:
    """The command, started without that signal."""
    words = ["sh", "-c", f"trap '' {signum.value}; exec \"$@\"", "sh", COMMAND, *args, *LOCAL]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, cwd=cwd, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe)


@pytest.fixture(params=SIGNALS, ids=[signum.name for signum in SIGNALS])
def ignored(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """A signal that this process ignores for a while."""
    before = signal.signal(request.param, signal.SIG_IGN)
    yield request.param
    signal.signal(request.param, before)


@pytest.mark.parametrize("signum", [signal.SIGINT, *at_night(signal.SIGHUP)])
def test_a_run_goes_on_under_a_signal_that_it_was_started_without(signum: signal.Signals, tmp_path: Path) -> None:
    with without(signum, tmp_path, "exec", f"print('begun', flush=True)\n{WAITS}print('end')") as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            process.send_signal(signum)
            (tmp_path / "go").touch()
            stdout, _ = process.communicate(timeout=BOUND)
        finally:
            process.kill()
    assert (process.returncode, stdout) == (0, b"end\n")


def test_a_server_goes_on_under_a_signal_that_it_was_started_without(tmp_path: Path) -> None:
    with without(signal.SIGHUP, tmp_path, "mcp", *NO_PRELOAD) as process:
        try:
            client = Raw(process, "legacy")
            client.answer(client.call("execute_code", code="1"))
            process.send_signal(signal.SIGHUP)
            client.answer(client.call("execute_code", code="2"))
            client.end()
        finally:
            process.kill()
    assert process.returncode == 0


def test_a_build_goes_on_under_a_signal_that_it_was_started_without(ignored: signal.Signals) -> None:
    with _interrupt_on_signals():
        os.kill(os.getpid(), ignored)
    assert signal.getsignal(ignored) is signal.SIG_IGN


def test_a_build_is_ended_by_another_signal(ignored: signal.Signals) -> None:
    other = signal.SIGHUP if ignored != signal.SIGHUP else signal.SIGTERM
    before = signal.getsignal(other)
    with pytest.raises(CommandFailed, match="The build was ended") as caught, _interrupt_on_signals():
        os.kill(os.getpid(), other)
    assert caught.value.status == 128 + other
    assert signal.getsignal(other) is before
