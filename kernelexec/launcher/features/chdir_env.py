"""The move of an idle kernel to its session: to another directory, with another environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def relocate(content: Mapping[str, Any], visited: list[Path]) -> dict[str, Any]:
    """Change to ``cwd``, the new first entry of ``visited``, and change the ``environment``; return the reply.

    A variable with the value None is removed. Nothing changes if the directory cannot be entered.
    """
    try:
        os.chdir(content["cwd"])
    except OSError as exc:
        return {"status": "error", "evalue": str(exc)}
    visited[:] = [Path(content["cwd"])]
    for name, value in content["environment"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return {"status": "ok"}
