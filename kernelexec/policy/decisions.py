"""What validators decide about a cell, and what an approver is asked: the words of both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class Proposal:
    """A cell that somebody wants to run, as it was sent or as the validator before rewrote it."""

    session: str
    kind: Literal["code", "command"]
    language: str
    source: str


@dataclass(frozen=True, slots=True)
class Allow:
    """Nothing speaks against it: the next validator decides, then the rules. None says the same."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The approver decides, if nothing else denies it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Deny:
    """It does not run."""

    reason: str


@dataclass(frozen=True, slots=True)
class Rewrite:
    """This runs in its place, if nothing that comes after denies that."""

    source: str
    reason: str = ""


Decision = Allow | Ask | Deny | Rewrite

Validator = Callable[[Proposal], Decision | Awaitable[Decision | None] | None]
"""Decides about a cell before it runs. A plain function is called in a thread. What it raises is a denial."""


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """What somebody is asked: whether this cell may run."""

    execution_id: str
    proposal: Proposal
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Approval:
    """An answer. A plain True or False is one too."""

    approved: bool
    reason: str = ""


class Approver(Protocol):
    """Who is asked. A plain function is called in a thread; it may take ``budgets.approval`` seconds. No answer is a no."""

    def __call__(self, request: ApprovalRequest, /) -> Approval | bool | Awaitable[Approval | bool]:
        """Whether the cell may run."""
        ...
