"""Secrets for tests, and a look for them, in every form, in whatever was shown or written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kernelexec.results import strip_ansi
from kernelexec.rules.secrets.finder import encodings
from tests.conftest import KINDS

#: One that every encoding writes differently, and one that is also a name; by the variables that kernels have them in.
AWKWARD, NAME = 'S3cr&t/val\'ue+"\u00fc"-0xKq', "tok_9f8e7d6c5b4a"
SECRETS = {"API_KEY": AWKWARD, "NAME_LIKE": NAME}
MARK, NAME_MARK = "[secret API_KEY]", "[secret NAME_LIKE]"
GUISES = frozenset().union(*map(encodings, SECRETS.values()))


def config(kind: str, tmp_path: Path, **more: Any) -> dict[str, Any]:
    """Settings of an executor whose kernels get two secrets: one from a file, one from a function."""
    (tmp_path / "api-key").write_text(f"{AWKWARD}\n")
    references = {"API_KEY": {"file": tmp_path / "api-key"}, "NAME_LIKE": lambda: NAME}
    return KINDS[kind] | {"secrets": references} | more


def shown(*texts: str | bytes) -> list[str]:
    """The forms of secrets that are in what was shown."""
    decoded = [text.decode("utf-8", "replace") if isinstance(text, bytes) else text for text in texts]
    plain = [strip_ansi(text.replace("\\u001b", "\x1b")) for text in decoded]  # colours may stand within a secret
    return sorted(guise for guise in GUISES if any(guise in text for text in (*decoded, *plain)))


def written(*places: Path) -> dict[str, list[str]]:
    """The same for all files there, by path; also for what they are called."""
    files: Iterable[Path] = [file for directory in places for file in (directory, *directory.rglob("*")) if file.is_file()]
    return {str(file): actual for file in files if (actual := shown(file.read_bytes(), str(file)))}
