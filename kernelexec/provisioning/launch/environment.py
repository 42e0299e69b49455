"""The environment variables of kernels: on this machine all except likely secrets, in containers few."""

from __future__ import annotations

import functools
import logging
import os
import re
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType

from kernelexec.config import CREDENTIALS, HOME_INSIDE, Config, Environment
from kernelexec.config.types import source_variables
from kernelexec.errors import InvalidConfig
from kernelexec.launcher.protocol import SUDO_VARIABLE

_SECRET_NAME = re.compile(
    r"(?:^|_)(?:API_?KEY|ACCESS_?KEY|SECRET|TOKEN|PASS|PASSW(?:OR)?D|PASSPHRASE|PWD_?HASH|CREDENTIALS?|PRIVATE_?KEY|AUTH|"
    r"COOKIE|SESSION_?(?:ID|KEY)|SIGNING_?KEY|ENCRYPTION_?KEY|DSN|WEBHOOK|BEARER|JWT|PAT|KEY)(?:$|_|\d)|_PWD$|"
    r"(?:APIKEY|ACCESSKEY|SECRETKEY|PRIVATEKEY|SECRET|TOKEN|PASSWORD)$",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"^(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}$|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_|\bglpat-|\bxox[abprs]-|"
    r"\bAKIA[0-9A-Z]{16}\b|\bhf_[A-Za-z0-9]{20,}|^eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.|AccountKey=[A-Za-z0-9+/]{20,}|"
    r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@"
)
#: Variables of this process's own session, which are useless or too powerful for a kernel.
_PROCESS_VARIABLES = frozenset(
    {
        *("SSH_AUTH_SOCK", "GPG_AGENT_INFO", "DOCKER_HOST", "JPY_PARENT_PID", "JPY_SESSION_NAME", "PYTHONSTARTUP"),
        *("PYTEST_CURRENT_TEST", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG", "FASTMCP_ENV_FILE"),
    }
)
#: Variables of this machine that have no meaning, or another one, in a container.
_MACHINE_VARIABLES = frozenset(
    {"PATH", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "SHELL", "PWD", "OLDPWD", "TMPDIR", "HOSTNAME", "DISPLAY"}
)
_MACHINE_PREFIXES = ("LD_", "XDG_", "DBUS_", "KERNELEXEC_")
#: Name of the kernels' user: an image need not have an account with its number.
_USER = "kernel"
_TMP = "/tmp"  # noqa: S108 - the container's own
#: The caches of programs: in directories outside the workspace, which are writable where the root is read-only.
_CACHES = {
    "IPYTHONDIR": f"{_TMP}/.ipython",
    "JUPYTER_RUNTIME_DIR": f"{_TMP}/.jupyter",
    "MPLCONFIGDIR": f"{_TMP}/.matplotlib",
    "NUMBA_CACHE_DIR": f"{_TMP}/.numba",
    "UV_LINK_MODE": "copy",  # from its cache, which is not in the workspace's file system
    "XDG_CACHE_HOME": f"{_TMP}/.cache",
    "XDG_CONFIG_HOME": f"{_TMP}/.config",
}


#: Where kernels have no network: pip else tries for nine seconds to reach an index.
_WITHOUT_NETWORK = {"PIP_RETRIES": "0", "UV_OFFLINE": "1"}
_LINE = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(.*?)[ \t]*", re.ASCII)
_BYTES = 1024 * 1024
_QUOTES = ("'", '"')
logger = logging.getLogger("kernelexec")


def looks_secret(name: str, value: str) -> bool:
    """Return whether a variable looks like a secret, by name or value."""
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


def scrub_environment(
    rules: Environment, environ: Mapping[str, str] | None = None, *, without: Collection[str] = frozenset()
) -> dict[str, str]:
    """Return a kernel's environment: the file's variables, this process's without likely secrets, then configured variables.

    A variable in ``pass_names`` is kept; ``without`` names further secrets.

    Raises:
        InvalidConfig: the environment file cannot be read.
    """
    source = os.environ if environ is None else environ
    excluded = _PROCESS_VARIABLES.union(without)
    variables = {
        name: value
        for name, value in source.items()
        if name in rules.pass_names or (name not in excluded and (rules.pass_all or not looks_secret(name, value)))
    }
    return {**read_env_file(rules.env_file), **variables, **rules.set}


def kernel_environment(config: Config) -> dict[str, str]:
    """Return the environment of this machine's kernels and fork servers, without the sources of configured secrets."""
    variables = scrub_environment(config.environment, without=source_variables(config.secrets))
    if config.confines_kernels and "UV_CACHE_DIR" not in variables:
        variables = {"UV_NO_CACHE": "1"} | variables  # uv ends where it cannot write its cache in the home
    return variables if config.has_network else {**_WITHOUT_NETWORK, **variables}


def named_variables(config: Config) -> dict[str, str]:
    """Return this process's variables for a container: the variables in ``pass_names``, or all with a meaning there."""
    rules, hidden = config.environment, _PROCESS_VARIABLES | _MACHINE_VARIABLES | source_variables(config.secrets)
    return {
        name: value
        for name, value in os.environ.items()
        if name in rules.pass_names or (rules.pass_all and name not in hidden and not name.startswith(_MACHINE_PREFIXES))
    }


def container_environment(config: Config, workspace: str) -> dict[str, str]:
    """Return a container's environment: writable directories for caches, and only selected variables of this process.

    The home is the workspace, or a separate directory with shared credentials.
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
    if not config.has_network:
        fixed |= _WITHOUT_NETWORK
    variables = {**read_env_file(rules.env_file), **fixed, **named_variables(config)}
    return {**variables, **rules.set}


def read_env_file(path: Path | None) -> Mapping[str, str]:
    """Read the variables of a file, again after each change; empty without a file.

    Raises:
        InvalidConfig: the file cannot be read, is not regular, is not UTF-8, or is larger than 1 MiB.
    """
    if path is None:
        return {}
    file = path.expanduser()
    try:
        status = file.stat()
        if stat.S_ISREG(status.st_mode) and status.st_size <= _BYTES:
            return _parse_file(str(file), status.st_mtime_ns, status.st_size)
        reason = f"it must be a regular file of at most {_BYTES} bytes"
    except OSError as exc:
        reason = exc.strerror or str(exc)
    except UnicodeDecodeError:
        reason = "it is not UTF-8"
    message = f"environment.env_file: {file} cannot be read ({reason}): name a file of lines NAME=VALUE, or leave it out."
    raise InvalidConfig(message)


@functools.lru_cache(maxsize=16)
def _parse_file(path: str, changed: int, size: int) -> Mapping[str, str]:  # noqa: ARG001 - key of the cache
    # The path may have become a FIFO since the check: such an open must not wait for a writer.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        text = file.read(_BYTES).decode()
    variables: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not (entry := line.strip()) or entry.startswith("#"):
            continue
        match = _LINE.fullmatch(entry)
        if match is None or "\0" in entry:
            logger.warning("kernelexec.env_file_line_ignored", extra={"file": path, "line": number})
            continue
        name, value = match.groups()
        quoted = len(value) > 1 and value[0] in _QUOTES and value[0] == value[-1]
        variables[name] = value[1:-1] if quoted else value
    return MappingProxyType(variables)
