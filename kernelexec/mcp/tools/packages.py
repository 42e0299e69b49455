"""The tool that installs packages: a long installation goes on when its call has to answer, and is asked for again."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, cast

import anyio
from fastmcp import Context

from kernelexec.mcp.calls.progress import check_wait
from kernelexec.mcp.calls.sessions import Calls
from kernelexec.mcp.content.answers import preview
from kernelexec.mcp.tools.code import WAIT, SessionName, Wait, refusing, reporting
from kernelexec.mcp.toolsets import Source
from kernelexec.results import Installation, SecurityError
from kernelexec.session import AsyncSession
from kernelexec.session.features.requirements import is_wheel

_TOLD_EVERY = 5.0

Names = Annotated[list[str], "What to install, as pip takes it: names with versions, or paths of wheels in the workspace."]


@dataclass(frozen=True, slots=True)
class InstallAnswer:
    """What became of an installation, or that it goes on; ``installed`` names what came anew, with versions."""

    status: Literal["ok", "error", "running"]
    installed: list[str]
    output: str
    seconds: float
    notes: list[str]


@dataclass(slots=True)
class _Underway:
    """An installation in a session's life, until somebody has been told how it ended."""

    began: float
    done: anyio.Event = field(default_factory=anyio.Event)
    found: Installation | None = None
    failure: Exception | None = None


class Packages:
    """The tool, for one executor's sessions; ``source`` is where packages come from, by default what cells can reach."""

    def __init__(self, calls: Calls, source: Source = None) -> None:
        self._calls = calls
        self._from: dict[str, Any] = {"network": True} if source == "network" else {"wheels": source}
        self._underway: dict[tuple[str, tuple[str, ...]], _Underway] = {}

    async def install_packages(
        self,
        context: Context,
        packages: Names,
        session: SessionName = "default",
        wait: Wait = WAIT,
    ) -> InstallAnswer:
        """Install something."""
        asking = self._calls.asking(context)
        with refusing():
            patience = check_wait(wait)
            opened = await self._calls.session(session)
            key = opened.name, tuple(packages)
            if key not in self._underway:
                for wheel in filter(is_wheel, map(str.strip, packages)):
                    await opened.files.list(wheel)  # the session reads wheels anywhere: an agent may name only what it has
                try:
                    await opened.check_command(shlex.join(["pip", "install", *packages]), approver=asking)
                except SecurityError:
                    if asking.needed is None:
                        raise
                    return cast("InstallAnswer", asking.needed)  # fastmcp hands it on as it is
                if key not in self._underway:
                    opened.scope.check_open()
                    self._underway[key] = _Underway(anyio.current_time())
                    opened.scope.tasks.start_soon(self._install, opened, key)
            one, report = self._underway[key], reporting(context)
            with anyio.move_on_after(patience):
                while not one.done.is_set():
                    with anyio.move_on_after(_TOLD_EVERY):
                        await one.done.wait()
                    await report(anyio.current_time() - one.began, "installing")
            if not one.done.is_set():
                again = "It goes on: call install_packages again with the same arguments to collect it."
                return InstallAnswer("running", [], "", round(anyio.current_time() - one.began, 3), [again])
            self._underway.pop(key, None)
            if one.failure is not None:
                raise one.failure
        assert one.found is not None
        return _answer(one.found, opened)

    async def _install(self, opened: AsyncSession, key: tuple[str, tuple[str, ...]]) -> None:
        """A task of the session's life, which nothing that becomes of a call ends; and it ends nothing of that."""
        one = self._underway[key]
        try:
            one.found = await opened.install(key[1], **self._from)
        except Exception as exc:  # noqa: BLE001 - raised to who asked
            one.failure = exc
        finally:
            if one.found is None and one.failure is None:  # the session ends: nobody will ask
                self._underway.pop(key, None)
            one.done.set()


def _answer(found: Installation, opened: AsyncSession) -> InstallAnswer:
    return InstallAnswer(
        "ok" if found.ok else "error",
        [str(package) for package in found.packages],
        preview(opened.mask(found.output), "read .kernelexec/pylock.toml of the workspace for what is there"),
        round(found.seconds, 3),
        list(found.notes),
    )
