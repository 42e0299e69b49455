"""What the engine says of itself, and which images it has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from docker.errors import DockerException

from kernelexec.docker.client import Engine
from kernelexec.errors import EngineAway


@dataclass(frozen=True, slots=True)
class About:
    """An engine: its version, the machine that it runs on, the kind of its control groups, and its images by name."""

    version: str
    system: str
    cgroup: str
    live_restore: bool
    images: tuple[str, ...]

    def first_of(self, names: Iterable[str]) -> str | None:
        """The first of these images that is there."""
        here = {name.removesuffix(":latest") for name in self.images}
        return next((name for name in names if name.removesuffix(":latest") in here), None)


def about(engine: Engine) -> About:
    """Ask it.

    Raises:
        EngineAway: it does not say.
    """
    try:
        said, found = engine.api.info(), engine.api.images()
    except (DockerException, OSError) as exc:
        raise EngineAway(f"The container engine does not say what it is: {exc}") from exc
    return About(
        version=str(said.get("ServerVersion", "unknown")),
        system=str(said.get("OperatingSystem", "unknown")),
        cgroup=str(said.get("CgroupVersion") or "1"),
        live_restore=bool(said.get("LiveRestoreEnabled")),
        images=tuple(sorted(name for image in found for name in image.get("RepoTags") or () if name != "<none>:<none>")),
    )
