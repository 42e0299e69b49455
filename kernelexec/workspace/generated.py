"""Which files tools make by themselves: 21 patterns of them, by whole parts of a path, by the ends of names, and by globs."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import PurePosixPath

#: Names: a path is generated where one of its parts is exactly this, in this case.
_PARTS = frozenset(
    {
        *("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".coverage", ".tox", ".nox"),
        *("node_modules", ".next", ".nuxt", "dist", "build", ".DS_Store", "Thumbs.db"),
    }
)
#: What the name of the file itself ends with.
_SUFFIXES = (".pyc", ".pyo")
#: Globs for any part: what is in such a directory was made with it.
_PART_GLOBS = ("*.egg-info",)
#: Globs for the name of the file itself: a directory that is called so may hold what somebody wrote.
_NAME_GLOBS = ("*.log", "*.swp", "*.swo", "*~")
#: All of them, as they are written down.
PATTERNS = (*sorted(_PARTS), *_SUFFIXES, *_PART_GLOBS, *_NAME_GLOBS)


def is_generated(path: str | PurePosixPath) -> bool:
    """Whether a path, relative to the directory that is worked in, is of a file that a tool makes again by itself."""
    parts = PurePosixPath(path).parts
    if not parts:
        return False
    name = parts[-1]
    return (
        not _PARTS.isdisjoint(parts)
        or name.endswith(_SUFFIXES)
        or any(fnmatchcase(part, glob) for part in parts for glob in _PART_GLOBS)
        or any(fnmatchcase(name, glob) for glob in _NAME_GLOBS)
    )
