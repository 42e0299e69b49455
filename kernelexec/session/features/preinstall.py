"""What a new session has installed before its first cell. A failure is said by the next result, and costs no session."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from kernelexec.cells import CodeCell
from kernelexec.errors import KernelexecError
from kernelexec.launcher import protocol
from kernelexec.session.cells.cell_run import Turn
from kernelexec.session.cells.queue import Queue
from kernelexec.session.features.install_plan import INSTALL_SECONDS
from kernelexec.session.features.packages import Packages
from kernelexec.session.kernels.supervisor import Keeper

_SYSTEM = """
export DEBIAN_FRONTEND=noninteractive; as=; [ "$(id -u)" = 0 ] || as="sudo -n"
$as apt-get update -qq && $as apt-get install -qq -y --no-install-recommends -- {}
"""
_NPM = "npm install --no-audit --no-fund -- {}"
_SAID_CHARS = 300


class Preinstalling(Packages):
    """The part of a session that comes before its first cell."""

    isolation: str
    _keeper: Keeper
    _queue: Queue

    async def preinstall(self) -> None:
        """Install what the configuration names, in its order. Called by the executor."""
        wanted = self._config.programs.preinstall
        if wanted.system and self.isolation != "container":
            self._warn("system", wanted.system, "the system's packages are installed in containers only")
        elif wanted.system:
            await self._command("system", wanted.system, _SYSTEM)
        if wanted.python:
            await self._python(wanted.python)
        if wanted.npm:
            await self._command("npm", wanted.npm, _NPM)

    async def _python(self, names: tuple[str, ...]) -> None:
        try:
            done = await self.install(names, wheels=self._config.programs.preinstall.wheels)
        except KernelexecError as exc:
            self._warn("python", names, str(exc))
        else:
            self._keeper.remarks.extend(done.notes)
            if not done.ok:
                self._warn("python", names, done.output)

    async def _command(self, kind: str, names: tuple[str, ...], command: str) -> None:
        """Have a command of ours run in the kernel's place; no rule judges it, and no notebook has it."""
        if not self._kernels.place.network:
            self._warn(kind, names, "the session has no network")
            return
        text = command.format(shlex.join(names)).strip()
        request = protocol.run_program_source(["sh", "-c", text])
        turn = Turn(CodeCell(request), timeout=INSTALL_SECONDS, own=True, isolation=self.isolation)
        try:
            self._queue.add(turn)
            result = await self._queue.outcome(turn, None)
        except KernelexecError as exc:
            self._warn(kind, names, str(exc))
        else:
            if result.status != "ok" or turn.said().get("exit_code") != 0:
                self._warn(kind, names, result.stderr or result.stdout)

    def _warn(self, kind: str, names: Iterable[str], said: str) -> None:
        why = said.strip()[-_SAID_CHARS:].strip() or "it did not say why"
        self._keeper.remarks.append(f"programs.preinstall.{kind} ({', '.join(names)}) was not installed: {why}")
