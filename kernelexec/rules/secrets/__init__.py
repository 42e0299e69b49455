"""Secrets of an executor: their values, and their removal from everything shown."""

from __future__ import annotations

from kernelexec.rules.secrets.store import SecretStore

__all__ = ["SecretStore"]
