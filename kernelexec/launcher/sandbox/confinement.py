"""What holds a kernel on its owner's machine within its workspace, without root: every layer that this machine has.

It is applied before any code of the user's and any thread; all that the kernel starts inherits it. It is no container:
what it does not stop stands in the README.
"""

from __future__ import annotations

import glob
import os
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from .. import platform
from ..libc import capset, prctl
from .landlock import IOCTL, READ_FILE, TRUNCATE, WRITE, WRITE_FILE, Ruleset, take_no_privileges
from .landlock_exceptions import allow_but
from .seccomp import can_filter, go_offline, leave_limits_of_others

#: What programs write to that is no file: and graphics cards.
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "nvidia*", "dri", "kfd", "dxg")
#: What IPython writes in a profile; all else there is the user's configuration.
_WRITTEN = ("history", "db", "log", "pid", "security")
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - it is what it is called
_DROP_BOUNDING, _AMBIENT, _CLEAR_ALL = 24, 47, 4  # of prctl(2)
_CAPABILITIES_3 = 0x20080522
#: Root may still read and write what is another user's, where the files are its own to use: a workspace may be.
_CAP_DAC_OVERRIDE, _CAPABILITIES_MAX = 1, 64


@dataclass(frozen=True)
class Confinement:
    """What the owner asked for, in absolute paths."""

    writable: list[str]
    hidden: list[str]
    """What cannot be read, nor anything that comes to be beside it later."""
    readable: list[str]
    """What can be read all the same."""
    temporary: str
    """What programs are told to use in the place of ``/tmp``."""
    private: str | None = None
    """A directory that it has for itself, and that is new for each kernel."""
    opened: list[int] = field(default_factory=list)
    """What can be written too, as descriptors."""
    reads: list[tuple[str, list[str]]] = field(default_factory=list)
    """What can be read too, each with what in it cannot; no link is followed to it."""
    writes: list[tuple[str, list[str]]] = field(default_factory=list)
    """What can be written too, each with what in it cannot."""
    network: bool = True
    required: bool = False
    lacks: list[str] = field(default_factory=list)
    """What the owner knows to be missing."""


def confine(said: dict[str, Any] | None) -> dict[str, list[str]]:
    """Apply what can be of an order, if there is one: which ``layers`` hold now, and what is ``missing``, in sentences.

    Raises:
        SystemExit: something is missing that is required, or there is to be no network and nothing prevents one.
    """
    layers: list[str] = []
    missing: list[str] = []
    if said is None:
        return {"layers": layers, "missing": missing}
    wanted = Confinement(**said)
    missing += wanted.lacks

    def attempt(layer: str, apply: Callable[[], str | None], otherwise: str) -> None:
        if layer not in platform.HERE.confinement:
            missing.append(f"{otherwise} (nothing is known for that on {platform.HERE.name})")
            return
        try:
            lack = apply()
        except (OSError, AttributeError) as exc:
            missing.append(f"{otherwise} ({exc})")
            return
        layers.append(layer)
        missing.extend([lack] if lack else [])

    attempt("no-new-privileges", _leave_others, "programs that become another user do so")
    attempt("landlock", lambda: _guard_files(wanted), "files are read and written with all rights of this user: no Landlock")
    if "capabilities" in platform.HERE.confinement and os.geteuid() == 0:
        attempt("capabilities", _drop_capabilities, "the kernel has root's rights over the machine")
    if not wanted.network:
        attempt("no-network", _leave_network, "the network cannot be taken away")
    _have_places(wanted)
    if missing and (wanted.required or not (wanted.network or "no-network" in layers)):
        sys.exit(f"The kernel cannot be confined as is required: {'; '.join(missing)}.")
    return {"layers": layers, "missing": missing}


def _have_places(wanted: Confinement) -> None:
    """Use the temporary directory; and what IPython would write in the user's own, it writes in the kernel's private one.

    Their configuration is linked there.
    """
    os.environ["TMPDIR"], tempfile.tempdir = wanted.temporary, None
    theirs = os.path.realpath(os.environ.get("IPYTHONDIR") or os.path.expanduser("~/.ipython"))  # noqa: PTH111
    if wanted.private is None or any(f"{theirs}/".startswith(f"{os.path.realpath(path)}/") for path in wanted.writable):
        return
    ours = os.environ["IPYTHONDIR"] = os.path.join(wanted.private, "ipython")  # noqa: PTH118 - text in, text out
    os.mkdir(ours, mode=0o700)  # noqa: PTH102
    _link(theirs, ours, lambda entry: not entry.name.startswith("profile_"))
    for profile in glob.iglob(f"{glob.escape(theirs)}/profile_*/"):  # noqa: PTH207
        made = os.path.join(ours, os.path.basename(profile.rstrip("/")))  # noqa: PTH118, PTH119
        os.mkdir(made, mode=0o700)  # noqa: PTH102
        _link(profile, made, lambda entry: not entry.name.startswith(_WRITTEN))


def _link(there: str, here: str, wanted: Callable[[os.DirEntry[str]], bool]) -> None:
    with suppress(OSError), os.scandir(there) as names:
        for entry in filter(wanted, names):
            os.symlink(entry.path, os.path.join(here, entry.name))  # noqa: PTH118, PTH211


def _guard_files(wanted: Confinement) -> str | None:
    ruleset = Ruleset(offline=not wanted.network)
    for path in wanted.readable:
        ruleset.allow(path, READ_FILE)
    for path in wanted.writable:
        allow_but(ruleset, path, READ_FILE | WRITE, [])
    for fd in wanted.opened:
        ruleset.allow_open(fd, READ_FILE | WRITE)
    for path, kept in wanted.reads:
        allow_but(ruleset, path, READ_FILE, kept)
    for path, kept in wanted.writes:
        allow_but(ruleset, path, WRITE, kept)
    for device in _DEVICES:
        for path in glob.iglob(f"/dev/{device}"):  # noqa: PTH207 - names only
            ruleset.allow(path, READ_FILE | WRITE_FILE | IOCTL | TRUNCATE)
    ruleset.allow(_SHARED_MEMORY, READ_FILE | WRITE)
    _allow_reading(ruleset, {name for path in (*wanted.hidden, "/dev") for name in (path, os.path.realpath(path))})
    ruleset.enforce()
    return None if ruleset.scoped else "other processes of this user can be signalled: Linux 6.12 or newer prevents that"


def _allow_reading(ruleset: Ruleset, hidden: set[str]) -> None:
    """All but what is hidden. A right holds for all beneath, so the directories above have none, but what else is in them."""
    above = {"/"}
    for path in hidden:
        while (path := os.path.dirname(path)) not in above:  # noqa: PTH120 - a path as it is
            above.add(path)

    def allow(names: Iterable[os.DirEntry[str]]) -> None:
        for entry in names:
            if entry.path in hidden:
                continue
            if entry.path in above and entry.is_dir(follow_symlinks=False):
                within(entry.path)
            else:
                ruleset.allow(entry.path, READ_FILE, follow=False)

    def within(directory: str) -> None:
        with suppress(OSError), os.scandir(directory) as names:
            allow(names)

    within("/")


def _drop_capabilities() -> None:
    """Be root in name only."""
    for capability in range(_CAPABILITIES_MAX):
        with suppress(OSError):  # it is none, or gone already
            if capability != _CAP_DAC_OVERRIDE:
                prctl(_DROP_BOUNDING, capability)
    with suppress(OSError):
        prctl(_AMBIENT, _CLEAR_ALL)
    kept = 1 << _CAP_DAC_OVERRIDE
    capset(struct.pack("Ii", _CAPABILITIES_3, 0), struct.pack("6I", kept, kept, 0, 0, 0, 0))


def _leave_others() -> str | None:
    take_no_privileges()
    try:
        leave_limits_of_others()
    except (OSError, LookupError) as exc:
        return f"the resource limits of other processes of this user can be set ({exc})"
    return None


def _leave_network() -> None:
    if not can_filter():
        raise OSError("this processor's system calls are not known")
    go_offline()
