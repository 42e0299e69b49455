"""The environment of kernels in containers: little that comes from here, and places for what programs like to write."""

from __future__ import annotations

from kernelexec.config import CREDENTIALS, HOME_INSIDE, Config
from kernelexec.launcher.protocol import SUDO_VARIABLE
from kernelexec.provisioning.launch.envfile import variables_of
from kernelexec.provisioning.launch.environment import named

#: What kernels are told that their user is called: an image need not know its number.
_USER = "kernel"
_TMP = "/tmp"  # noqa: S108 - the container's own

#: Where programs keep what they like to write: not in the workspace, and not where only reading is possible.
_CACHES = {
    "IPYTHONDIR": f"{_TMP}/.ipython",
    "JUPYTER_RUNTIME_DIR": f"{_TMP}/.jupyter",
    "MPLCONFIGDIR": f"{_TMP}/.matplotlib",
    "NUMBA_CACHE_DIR": f"{_TMP}/.numba",
    "XDG_CACHE_HOME": f"{_TMP}/.cache",
    "XDG_CONFIG_HOME": f"{_TMP}/.config",
}


def environment_inside(config: Config, workspace: str) -> dict[str, str]:
    """Nothing of this process's but what is named; programs keep their caches where they can write.

    The home is the workspace, unless there are credentials: those lie in one of their own.
    """
    rules = config.environment
    home = HOME_INSIDE if config.container.credentials else workspace
    fixed = {
        "HOME": home,
        "USER": _USER,
        "LOGNAME": _USER,
        **_CACHES,
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "LANG": "C.UTF-8",
    }
    if "gh_config" in config.container.credentials:
        fixed["GH_CONFIG_DIR"] = f"{home}/{CREDENTIALS['gh_config']}"
    if config.container.sudo:
        fixed[SUDO_VARIABLE] = "1"
    given = {**variables_of(rules.env_file), **fixed, **named(config)}
    return {**given, **rules.set, **config.container.environment}
