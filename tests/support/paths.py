"""Directories of the repository that tests read, and the end of directories that others still write to."""

from __future__ import annotations

import shutil
from pathlib import Path

#: The root of the checkout.
ROOT = Path(__file__).resolve().parents[2]


def delete_directory(path: Path) -> None:
    """Delete a workspace in which the notebook of the last cell may be written meanwhile."""
    while path.exists():
        shutil.rmtree(path, ignore_errors=True)
