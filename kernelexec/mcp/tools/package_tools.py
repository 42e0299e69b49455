"""Tool that installs packages; a long installation continues after its call, and a second call collects it."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import anyio
from fastmcp import Context
from fastmcp.tools import ToolResult

from kernelexec.errors import InvalidRequest
from kernelexec.mcp.answers import preview
from kernelexec.mcp.calls.sessions import SessionService
from kernelexec.mcp.server_options import Source
from kernelexec.mcp.tools.code_tools import report_errors
from kernelexec.results import Installation, SecurityError

if TYPE_CHECKING:
    from kernelexec.session import AsyncSession
#: The refusal to install without a source of packages.
_NO_SOURCE = "There is no source of packages: the operator can set `--packages-from network`, or a directory of wheels."


@dataclass(frozen=True, slots=True)
class InstallAnswer:
    """Result of an installation, or its state; ``installed`` lists the new packages with versions."""

    status: Literal["ok", "error", "running"]
    installed: list[str]
    output: str
    seconds: float
    notes: list[str]


@dataclass(slots=True)
class _RunningInstallation:
    """An installation of a session, kept until a call collects its result."""

    began: float
    done: anyio.Event = field(default_factory=anyio.Event)
    installation: Installation | None = None
    failure: Exception | None = None


class PackageTools:
    """Tool that installs packages from ``source``, by default from the network of cells."""

    def __init__(self, sessions: SessionService, source: Source = None, *, has_network: bool = True) -> None:
        self._sessions = sessions
        self._has_source = source is not None or has_network
        self._from: dict[str, Any] = {"network": True} if source == "network" else {"wheels": source}
        self._running: dict[tuple[str, tuple[str, ...]], _RunningInstallation] = {}

    async def install_packages(
        self,
        context: Context,
        packages: Annotated[list[str], "As for pip, or paths of wheels or requirements.txt in the workspace."],
        session: str = "default",
        wait: float | None = None,
    ) -> InstallAnswer:
        """Install packages."""
        elicitation = self._sessions.make_elicitation(context)
        with report_errors():
            patience = self._sessions.check_wait(wait)
            opened = await self._sessions.get_session(session, elicitation)
            key = opened.name, tuple(packages)
            if key not in self._running:
                await self._check_packages(opened, packages)
                try:
                    await opened.check_command(shlex.join(["pip", "install", *packages]), approver=elicitation)
                except SecurityError:
                    if elicitation.input_required is None:
                        raise
                    return cast("InstallAnswer", elicitation.input_required)  # fastmcp passes it on
                if key not in self._running:
                    opened.scope.check_open()
                    self._running[key] = _RunningInstallation(anyio.current_time())
                    opened.scope.tasks.start_soon(self._install, opened, key)
            running = self._running[key]
            with anyio.move_on_after(patience):
                async with elicitation.report_while("the packages are installed", self._sessions.interval):
                    await running.done.wait()
            if not running.done.is_set():
                again = "It continues: call install_packages again with the same arguments to get the result."
                return InstallAnswer("running", [], "", round(anyio.current_time() - running.began, 3), [again])
            self._running.pop(key, None)
            if running.failure is not None:
                raise running.failure
        assert running.installation is not None
        answer = _make_answer(running.installation, opened)
        if not running.installation.ok:
            return cast("InstallAnswer", ToolResult(structured_content=asdict(answer), is_error=True))
        return answer

    async def _check_packages(self, opened: AsyncSession, packages: list[str]) -> None:
        """Refuse files outside the workspace, which sessions accept, and packages without a source."""
        # sessions have imported it
        from kernelexec.session.features.packages import find_requirements_file, is_wheel  # noqa: PLC0415

        for package in map(str.strip, packages):
            if (path := find_requirements_file(package) or (package if is_wheel(package) else None)) is not None:
                await opened.files.list(path)
            if not self._has_source and not is_wheel(package):
                raise InvalidRequest(_NO_SOURCE)

    async def _install(self, opened: AsyncSession, key: tuple[str, tuple[str, ...]]) -> None:
        """Install in a task of the session, independent of any call."""
        running = self._running[key]
        try:
            running.installation = await opened.install(key[1], **self._from)
        except Exception as exc:  # noqa: BLE001 - raised by the call that collects it
            running.failure = exc
        finally:
            if running.installation is None and running.failure is None:  # the session ends, so no call will collect it
                self._running.pop(key, None)
            running.done.set()


def _make_answer(installation: Installation, opened: AsyncSession) -> InstallAnswer:
    return InstallAnswer(
        "ok" if installation.ok else "error",
        [str(package) for package in installation.packages],
        preview(opened.mask(installation.output), "the workspace's .kernelexec/pylock.toml lists the installed packages"),
        round(installation.seconds, 3),
        list(installation.notes),
    )
