"""What a model is told of a session, on stdout."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from kernelexec.cli.signals import Signals
from kernelexec.cli.status import INTERRUPTED
from kernelexec.cli.surroundings import here, write_any
from kernelexec.config import Config
from kernelexec.executor import AsyncExecutor
from kernelexec.prompts import OFF


def show_guidance(config: Config, work_dir: Path | None) -> int:
    """Print the guidance of a new session.

    Raises:
        KernelStartFailed: no kernel came up.
    """
    directory, signals = work_dir or here(), Signals()

    async def told() -> str | None:
        if not config.enabled:
            return OFF + "\n"
        text = None
        with signals.listening():
            async with AsyncExecutor(config=config) as executor:
                signals.session = await executor.session("guidance", work_dir=directory)
                text = await signals.session.guidance()
        return text

    text = anyio.run(told)
    if text is None or signals.status:
        return signals.status or INTERRUPTED
    write_any(sys.stdout, text)
    return 0
