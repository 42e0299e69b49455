"""How an idle kernel comes to be its session's: in another directory, with another environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def enter(content: Mapping[str, Any], visited: list[Path]) -> dict[str, Any]:
    """Go to ``cwd``, the first of the directories that were ``visited``, and change the ``environment``: the reply.

    A variable that is to be None is removed. Nothing changes where the directory cannot be entered.
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
