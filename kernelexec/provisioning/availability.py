"""Availability of the configured isolation; only the modules of the configured isolation are imported."""

from __future__ import annotations

from kernelexec.config import Config


def explain_unavailable(config: Config) -> str | None:
    """Return why the configured isolation is unavailable, in a sentence; None if available.

    Waits for a silent engine at most ``docker.client.PROBE_SECONDS``.
    """
    if config.isolation == "bubblewrap":
        from kernelexec.provisioning.host.bubblewrap_backend import explain_missing  # noqa: PLC0415 - see above

        return explain_missing(config)
    if config.isolation != "container":
        return None
    try:
        from kernelexec.docker.client import probe  # noqa: PLC0415 - see above
    except ImportError as exc:
        return f"The package docker cannot be imported ({exc}): install it with `pip install docker`."
    return probe()
