"""The environment of kernels in containers: few variables of this process, and writable directories for caches."""

from __future__ import annotations

from kernelexec.config import CREDENTIALS, HOME_INSIDE, Config
from kernelexec.launcher.protocol import SUDO_VARIABLE
from kernelexec.provisioning.launch.envfile import read_env_file
from kernelexec.provisioning.launch.environment import named_variables

#: Name of the kernels' user: an image need not have an account with its number.
_USER = "kernel"
_TMP = "/tmp"  # noqa: S108 - the container's own

#: Directories for the caches of programs: outside the workspace, and writable where the root is read-only.
_CACHES = {
    "IPYTHONDIR": f"{_TMP}/.ipython",
    "JUPYTER_RUNTIME_DIR": f"{_TMP}/.jupyter",
    "MPLCONFIGDIR": f"{_TMP}/.matplotlib",
    "NUMBA_CACHE_DIR": f"{_TMP}/.numba",
    "XDG_CACHE_HOME": f"{_TMP}/.cache",
    "XDG_CONFIG_HOME": f"{_TMP}/.config",
}


def container_environment(config: Config, workspace: str) -> dict[str, str]:
    """Return the environment: of this process's variables only the named ones, and writable directories for caches.

    The home is the workspace, unless there are credentials, which have a home of their own.
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
    variables = {**read_env_file(rules.env_file), **fixed, **named_variables(config)}
    return {**variables, **rules.set, **config.container.environment}
