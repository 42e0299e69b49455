"""What a kernel may know of this process's environment: everything but what looks like a secret, by name or by value."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping

from kernelexec.config import Config, Environment
from kernelexec.config.secret_references import sources
from kernelexec.provisioning.launch.envfile import variables_of

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
# Handles into this process's own world, worth nothing or too much to a kernel.
_OURS = frozenset({"SSH_AUTH_SOCK", "GPG_AGENT_INFO", "DOCKER_HOST", "JPY_PARENT_PID", "JPY_SESSION_NAME", "PYTHONSTARTUP"})
_OURS |= {"PYTEST_CURRENT_TEST", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"}


#: What of this machine means nothing, or another thing, in a container.
_HERE = frozenset(
    {"PATH", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "SHELL", "PWD", "OLDPWD", "TMPDIR", "HOSTNAME", "DISPLAY"}
)
_HERE_ALL = ("LD_", "XDG_", "DBUS_", "KERNELEXEC_")


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable looks like a secret, by its name or by its value."""
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


def scrubbed(
    rules: Environment, environ: Mapping[str, str] | None = None, *, without: Collection[str] = frozenset()
) -> dict[str, str]:
    """The environment for a kernel: this process's without what looks like a secret and was not named, then what is set.

    It is ``without`` those either that are known to be secrets, unless they are named.
    """
    source = os.environ if environ is None else environ
    held = _OURS.union(without)
    kept = {
        name: value
        for name, value in source.items()
        if name in rules.pass_names or (name not in held and (rules.pass_all or not looks_secret(name, value)))
    }
    return {**variables_of(rules.env_file), **kept, **rules.set}


def environment_of(config: Config) -> dict[str, str]:
    """The environment of this machine's kernels, and of who forks them: no secret that is given by reference is in it."""
    return scrubbed(config.environment, without=sources(config.secrets))


def named(config: Config) -> dict[str, str]:
    """What of this process's environment is for a container: what is named, or all that means there what it does here."""
    rules, hidden = config.environment, _OURS | _HERE | sources(config.secrets)
    return {
        name: value
        for name, value in os.environ.items()
        if name in rules.pass_names or (rules.pass_all and name not in hidden and not name.startswith(_HERE_ALL))
    }
