"""The directories of a test run: each of its processes has a runtime directory, a home and a temporary directory of its own.

So a test sees no executor, file or setting of its user's other programs, and other runs of the tests may go on meanwhile.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

_PREFIX, _LOCK = "kxs-", "lock"
#: The longest path of a temporary directory in which unix sockets of the tests have room.
_BASE_CHARS = 30
#: The directory of the whole run, which its worker processes inherit.
_RUN = "KERNELEXEC_TEST_DIRECTORY"
#: Directories of this user that programs look for outside of the home: they follow it.
_FOLLOWING = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")


class Places:
    """The directories of this process, in that of the run. Paths are short, for unix sockets."""

    def __init__(self) -> None:
        """Create them, and have the environment name them."""
        self._lock: int | None = None
        self.keeps = False
        """Whether the directory of the run stays at its end, for a look at what failed; the next run removes it."""
        run = os.environ.get(_RUN)
        if run is None:
            run = self._begin_run()
        self.run = Path(run)
        own = self.run / os.environ.get("PYTEST_XDIST_WORKER", "main")
        own.mkdir(mode=0o711, exist_ok=True)
        for name, mode in (("home", 0o700), ("run", 0o700), ("tmp", 0o1777)):
            (own / name).mkdir(exist_ok=True)
            (own / name).chmod(mode)
        home = Path.home()
        for name, path in (("NPM_CONFIG_USERCONFIG", home / ".npmrc"), ("NPM_CONFIG_CACHE", home / ".npm")):
            os.environ.setdefault(name, str(path))  # an index of packages is the machine's, as the network is
        for name in _FOLLOWING:
            os.environ.pop(name, None)
        os.environ |= {
            "HOME": str(own / "home"),
            "KERNELEXEC_RUNTIME_DIR": str(own / "run"),
            "TMPDIR": str(own / "tmp"),
            "XDG_RUNTIME_DIR": str(own / "run"),
        }
        tempfile.tempdir = None

    def _begin_run(self) -> str:
        """Create the directory of a run, and remove those of runs that were killed."""
        base = Path(tempfile.gettempdir())
        if len(str(base)) > _BASE_CHARS:
            base = Path("/tmp")
        for left in base.glob(f"{_PREFIX}*"):
            with suppress(OSError), (left / _LOCK).open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(left)
        run = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        run.chmod(0o711)
        self._lock = os.open(run / "new", os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (run / "new").rename(run / _LOCK)
        os.environ[_RUN] = str(run)
        atexit.register(self._end_run, os.getpid())
        return str(run)

    def _end_run(self, owner: int) -> None:
        if self._lock is not None and os.getpid() == owner and not self.keeps:
            remove(self.run)


def remove(directory: Path) -> None:
    """Remove a directory, also if a failed test has left one in it that is deeper than Python's own functions go."""
    subprocess.run(["rm", "-rf", "--", str(directory)], check=False, stderr=subprocess.DEVNULL)


#: Those of this process.
PLACES = Places()
