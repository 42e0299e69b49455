"""What holds a kernel of this machine within its workspace, as its launcher said before any cell ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Confined:
    """The layers that hold, by name, and what is missing, in sentences."""

    layers: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @classmethod
    def of(cls, about: dict[str, Any]) -> Confined:
        """From what the launcher says of itself; nothing where it says nothing, or is not ours."""
        said = about.get("confinement")
        parts = said if isinstance(said, dict) else {}
        return cls(*(_texts(parts.get(name)) for name in ("layers", "missing")))

    @property
    def told(self) -> tuple[str, ...]:
        """What the first result of the kernel says of it."""
        return (f"This kernel is not confined in every way: {'; '.join(self.missing)}.",) if self.missing else ()


def _texts(said: object) -> tuple[str, ...]:
    return tuple(found for found in said if isinstance(found, str)) if isinstance(said, list) else ()
