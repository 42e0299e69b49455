"""Packages that a new session gets before its first cell. The next result reports a failure, which costs no session."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from kernelexec.cells import CodeCell
from kernelexec.errors import KernelexecError
from kernelexec.launcher import protocol
from kernelexec.session.cells.cell_run import Turn
from kernelexec.session.context import SessionContext
from kernelexec.session.features.install_plan import INSTALL_SECONDS
from kernelexec.session.features.packages import PackageInstaller

_SYSTEM = """
export DEBIAN_FRONTEND=noninteractive; as=; [ "$(id -u)" = 0 ] || as="sudo -n"
$as apt-get update -qq && $as apt-get install -qq -y --no-install-recommends -- {}
"""
_NPM = "npm install --no-audit --no-fund -- {}"
_REASON_CHARS = 300


class Preinstaller:
    """Installs the packages that the configuration of one session names."""

    def __init__(self, context: SessionContext, packages: PackageInstaller) -> None:
        self._context = context
        self._packages = packages

    async def preinstall(self) -> None:
        """Install the system's packages, then Python's, then npm's. Called by the executor."""
        wanted = self._context.config.programs.preinstall
        if wanted.system and self._context.isolation != "container":
            self._warn("system", wanted.system, "the system's packages are installed in containers only")
        elif wanted.system:
            await self._command("system", wanted.system, _SYSTEM)
        if wanted.python:
            await self._python(wanted.python)
        if wanted.npm:
            await self._command("npm", wanted.npm, _NPM)

    async def _python(self, names: tuple[str, ...]) -> None:
        try:
            installation = await self._packages.install(names, wheels=self._context.config.programs.preinstall.wheels)
        except KernelexecError as exc:
            self._warn("python", names, str(exc))
        else:
            self._context.kernels.python.remarks.extend(installation.notes)
            if not installation.ok:
                self._warn("python", names, installation.output)

    async def _command(self, kind: str, names: tuple[str, ...], command: str) -> None:
        """Run a command of this package's own in the kernel's environment; no rule judges it, and no notebook has it."""
        context = self._context
        if not context.kernels.place.network:
            self._warn(kind, names, "the session has no network")
            return
        script = command.format(shlex.join(names)).strip()
        call = protocol.run_program_source(["sh", "-c", script])
        turn = Turn(CodeCell(call), timeout=INSTALL_SECONDS, own=True, isolation=context.isolation)
        try:
            context.queue.add(turn)
            result = await context.queue.outcome(turn, None)
        except KernelexecError as exc:
            self._warn(kind, names, str(exc))
        else:
            if result.status != "ok" or turn.said().get("exit_code") != 0:
                self._warn(kind, names, result.stderr or result.stdout)

    def _warn(self, kind: str, names: Iterable[str], output: str) -> None:
        reason = output.strip()[-_REASON_CHARS:].strip() or "it did not say why"
        message = f"programs.preinstall.{kind} ({', '.join(names)}) was not installed: {reason}"
        self._context.kernels.python.remarks.append(message)
