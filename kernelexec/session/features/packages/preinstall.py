"""The installation of configured packages before a session's first cell. The next result reports a failure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from kernelexec.errors import KernelexecError
from kernelexec.launcher import protocol
from kernelexec.session.context import SessionContext
from kernelexec.session.features.packages.installer import INSTALL_SECONDS, PackageInstaller

_SYSTEM = """
export DEBIAN_FRONTEND=noninteractive; as=; [ "$(id -u)" = 0 ] || as="sudo -n"
$as apt-get update -qq && $as apt-get install -qq -y --no-install-recommends -- {}
"""
_NPM = "npm install --no-audit --no-fund -- {}"
_REASON_CHARS = 300


class Preinstaller:
    """The installation of the packages in one session's configuration."""

    def __init__(self, context: SessionContext, packages: PackageInstaller) -> None:
        self._context = context
        self._packages = packages

    async def preinstall(self) -> None:
        """Install system packages, then Python packages, then npm packages. The executor calls it."""
        wanted = self._context.config.programs.preinstall
        if wanted.system and self._context.isolation != "container":
            self._warn_not_installed("system", wanted.system, "system packages are installed in containers only")
        elif wanted.system:
            await self._run_install_command("system", wanted.system, _SYSTEM)
        if wanted.python:
            await self._install_python(wanted.python)
        if wanted.npm:
            await self._run_install_command("npm", wanted.npm, _NPM)

    async def _install_python(self, names: tuple[str, ...]) -> None:
        try:
            installation = await self._packages.install(names, wheels=self._context.config.programs.preinstall.wheels)
        except KernelexecError as exc:
            self._warn_not_installed("python", names, str(exc))
        else:
            self._context.kernels.python.notes.extend(installation.notes)
            if not installation.ok:
                self._warn_not_installed("python", names, installation.output)

    async def _run_install_command(self, kind: str, names: tuple[str, ...], command: str) -> None:
        """Run an internal command in the kernel's environment, without rules and without a record in the notebook."""
        context = self._context
        if not context.kernels.backend.network:
            self._warn_not_installed(kind, names, "the session has no network")
            return
        script = command.format(shlex.join(names)).strip()
        source = protocol.run_program_source(["sh", "-c", script])
        try:
            run, result = await context.run_internally(source, INSTALL_SECONDS, keeps_variables=True)
        except KernelexecError as exc:
            self._warn_not_installed(kind, names, str(exc))
        else:
            if result.status != "ok" or run.get_launcher_report().get("exit_code") != 0:
                self._warn_not_installed(kind, names, result.stderr or result.stdout)

    def _warn_not_installed(self, kind: str, names: Iterable[str], output: str) -> None:
        reason = output.strip()[-_REASON_CHARS:].strip() or "no reason was reported"
        message = f"programs.preinstall.{kind} ({', '.join(names)}) was not installed: {reason}"
        self._context.kernels.python.notes.append(message)
