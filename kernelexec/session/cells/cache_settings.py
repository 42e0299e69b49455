"""Whether a session has a result cache, and the settings in each of its keys."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelexec.config import Config
from kernelexec.provisioning import Backend

if TYPE_CHECKING:
    from kernelexec.session.cells.result_cache import CellResultCache

logger = logging.getLogger("kernelexec")


def open_result_cache(config: Config, backend: Backend, workspace: Path) -> CellResultCache | None:
    """Return the result cache of a new session, or None if nothing may be cached."""
    options = config.cache
    if not options.enabled or backend.secrets is not None or config.container.mode == "ephemeral":
        return None
    if options.results_directory.resolve().is_relative_to(workspace.resolve()):  # cells could write there
        logger.warning(
            "kernelexec.cache_in_workspace", extra={"cache": str(options.results_directory), "workspace": str(workspace)}
        )
        return None
    from kernelexec.cache import ResultStore  # noqa: PLC0415 - few sessions have a cache
    from kernelexec.session.cells.result_cache import CellResultCache  # noqa: PLC0415 - as above

    store = ResultStore(options.results_directory, options.size_bytes)
    return CellResultCache(store, _collect_settings(config, backend, workspace))


def _collect_settings(config: Config, backend: Backend, workspace: Path) -> Mapping[str, Any]:
    """Return the settings; the workspace is one, since its files can change what any cell shows, for instance at an import."""
    container = config.container.model_dump(mode="json") if config.isolation == "container" else {}
    return {
        "workspace": str(workspace),
        "isolation": backend.isolation,
        "online": config.has_network,
        "prefix": config.programs.prefix_words,
        "variables": dict(config.environment.set),
        "container": {name: container.get(name) for name in ("image", "python", "environment")},
    }
