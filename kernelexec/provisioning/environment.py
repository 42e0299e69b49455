"""What a kernel may know of this process's environment: everything but what looks like a secret, by name or by value."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from kernelexec.config import Environment

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


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable looks like a secret, by its name or by its value."""
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


def scrubbed(rules: Environment, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a kernel: this process's without what looks like a secret and was not named, then what is set."""
    source = os.environ if environ is None else environ
    kept = {
        name: value
        for name, value in source.items()
        if name in rules.pass_names or (name not in _OURS and not looks_secret(name, value))
    }
    return {**kept, **rules.set}
