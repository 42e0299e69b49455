"""The confinement of a kernel on this machine, as its launcher reported it before any cell ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ConfinementReport:
    """The layers in force, by name, and the missing ones, in sentences."""

    layers: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @classmethod
    def of(cls, launcher_info: dict[str, Any]) -> ConfinementReport:
        """Read the launcher's report of itself; the result is empty without one."""
        report = launcher_info.get("confinement")
        parts = report if isinstance(report, dict) else {}
        return cls(*(_texts(parts.get(name)) for name in ("layers", "missing")))

    @property
    def notices(self) -> tuple[str, ...]:
        """Sentences for the first result of the kernel."""
        return (f"This kernel is not confined in every way: {'; '.join(self.missing)}.",) if self.missing else ()


def _texts(value: object) -> tuple[str, ...]:
    return tuple(text for text in value if isinstance(text, str)) if isinstance(value, list) else ()
