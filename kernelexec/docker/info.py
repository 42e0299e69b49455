"""The engine's description of itself, and the names of its images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from docker.errors import DockerException

from kernelexec.docker.client import Engine
from kernelexec.errors import EngineUnavailable


@dataclass(frozen=True, slots=True)
class About:
    """An engine: its version, the machine that it runs on, the kind of its control groups, and its images by name."""

    version: str
    system: str
    cgroup: str
    live_restore: bool
    images: tuple[str, ...]

    def first_of(self, names: Iterable[str]) -> str | None:
        """Return the first of these images that the engine has."""
        here = {name.removesuffix(":latest") for name in self.images}
        return next((name for name in names if name.removesuffix(":latest") in here), None)


def about(engine: Engine) -> About:
    """Return the description of an engine.

    Raises:
        EngineUnavailable: the engine does not answer.
    """
    try:
        answer, listed = engine.api.info(), engine.api.images()
    except (DockerException, OSError) as exc:
        raise EngineUnavailable(f"The container engine does not describe itself: {exc}") from exc
    return About(
        version=str(answer.get("ServerVersion", "unknown")),
        system=str(answer.get("OperatingSystem", "unknown")),
        cgroup=str(answer.get("CgroupVersion") or "1"),
        live_restore=bool(answer.get("LiveRestoreEnabled")),
        images=tuple(sorted(name for image in listed for name in image.get("RepoTags") or () if name != "<none>:<none>")),
    )
