"""Files that tools generate: 21 patterns for whole parts of a path, ends of names, and globs."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import PurePosixPath

#: Parts: a path is generated if one of its parts is exactly this; case counts.
_PARTS = frozenset(
    {
        *("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".coverage", ".tox", ".nox"),
        *("node_modules", ".next", ".nuxt", "dist", "build", ".DS_Store", "Thumbs.db"),
    }
)
#: Suffixes of the file's own name.
_SUFFIXES = (".pyc", ".pyo")
#: Globs for any part: the content of such a directory is generated too.
_PART_GLOBS = ("*.egg-info",)
#: Globs for the file's own name only: a directory of such a name may contain files that people wrote.
_NAME_GLOBS = ("*.log", "*.swp", "*.swo", "*~")
#: All patterns.
PATTERNS = (*sorted(_PARTS), *_SUFFIXES, *_PART_GLOBS, *_NAME_GLOBS)


def is_generated_file(path: str | PurePosixPath) -> bool:
    """Return whether a path, relative to the working directory, is of a file that a tool generates again."""
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
