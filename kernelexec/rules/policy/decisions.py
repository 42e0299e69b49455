"""Decisions of validators about a cell, and requests to approvers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from kernelexec.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposed cell, as sent or as rewritten by the previous validator."""

    session: str
    kind: Literal["code", "command"]
    language: str
    source: str


@dataclass(frozen=True, slots=True)
class Allow:
    """The decision to allow a cell: the next validator decides, then the rules. None has the same meaning."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The decision to ask the approver, if nothing else denies the cell."""

    reason: str


@dataclass(frozen=True, slots=True)
class Deny:
    """The decision against running a cell."""

    reason: str


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The decision to run another source instead, if nothing later denies it."""

    source: str
    reason: str = ""


Decision = Allow | Ask | Deny | Rewrite

Validator = Callable[[Proposal], Decision | Awaitable[Decision | None] | None]
"""Decides about a cell before it runs. A plain function is called in a thread. An exception is a denial."""


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A question to the approver: may this cell run?"""

    execution_id: str
    proposal: Proposal
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Approval:
    """The answer of an approver, which may also be ``Allow()``, ``Deny(reason)`` or a plain True or False."""

    approved: bool
    reason: str = ""


ApproverAnswer = Approval | Allow | Deny | bool


Approver = Callable[[ApprovalRequest], ApproverAnswer | Awaitable[ApproverAnswer]]
"""Decides whether a cell may run. A plain function is called in a thread. No answer in ``budgets.approval`` seconds is a no."""


def check_callables(validators: object, approver: object, on_input: object = None) -> tuple[Validator, ...]:
    """Return the validators; raise ``InvalidRequest`` if any function is not callable."""
    functions = tuple(validators) if isinstance(validators, list | tuple) else None
    if functions is None or not all(map(callable, functions)):
        raise InvalidRequest(f"validators={validators!r:.200}: must be a list of functions of one proposal.")
    for name, function in (("approver", approver), ("on_input", on_input)):
        if function is not None and not callable(function):
            raise InvalidRequest(f"{name}={function!r:.200}: must be a function of one request.")
    return functions
