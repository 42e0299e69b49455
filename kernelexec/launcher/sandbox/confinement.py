"""Confinement of a kernel on the owner's machine to the workspace, without root, by all available layers.

The confinement comes before user code and threads, and all child processes inherit the layers. This is no container: the
guide's page about local kernels names attacks beyond it. ``main`` runs in the owner's isolated interpreter, ahead of an
untrusted interpreter.
"""

from __future__ import annotations

import glob
import os
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from .. import platform
from ..owner import apply_limits
from ..platform import capset, prctl, unshare
from ..protocol import LaunchOptions
from .restrictions import (
    IOCTL,
    READ_FILE,
    TRUNCATE,
    WRITE,
    WRITE_FILE,
    Ruleset,
    allow_except,
    block_foreign_access,
    block_network,
    set_no_new_privileges,
)

#: Devices for reading and writing, graphics cards included.
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "nvidia*", "dri", "kfd", "dxg")
#: Entries of a profile written by IPython. The others are the user's configuration.
_WRITTEN = ("history", "db", "log", "pid", "security")
#: The cache filled by matplotlib while drawing. Other entries are only read.
_TEX_CACHE = "tex.cache"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - its fixed path
_DROP_BOUNDING, _AMBIENT, _CLEAR_ALL = 24, 47, 4  # of prctl(2)
_CAPABILITIES_3 = 0x20080522
_NEW_IPC = 0x08000000  # CLONE_NEWIPC of unshare(2)
#: Root keeps the right to other users' files, since another user may own the workspace.
_CAP_DAC_OVERRIDE, _CAPABILITIES_MAX = 1, 64


@dataclass(frozen=True)
class ConfinementOptions:
    """Options of the owner. All paths are absolute."""

    writable: list[str]
    hidden: list[str]
    """Unreadable paths. New entries beside them are unreadable too: see ``_allow_reading``."""
    readable: list[str]
    """Readable paths, also inside of hidden paths."""
    temporary: str
    """Directory for temporary files instead of ``/tmp``."""
    private: str | None = None
    """A directory for this kernel only."""
    opened: list[int] = field(default_factory=list)
    """Descriptors of writable directories: a path could lead elsewhere by now."""
    reads: list[tuple[str, list[str]]] = field(default_factory=list)
    """Readable paths, each with the unreadable paths inside; no link is followed."""
    writes: list[tuple[str, list[str]]] = field(default_factory=list)
    """Writable paths, each with the unwritable paths inside."""
    network: bool = True
    has_private_ipc: bool = False
    """Whether a namespace already separates the System V objects of sessions."""
    required: bool = False
    lacks: list[str] = field(default_factory=list)
    """Missing layers known to the owner, in sentences."""


def confine(options: dict[str, Any] | None) -> dict[str, list[str]]:
    """Apply the options as far as possible. Return the active ``layers``, and the ``missing`` layers in sentences.

    Raises:
        SystemExit: a required layer is missing, or the network must be blocked and cannot be.
    """
    layers: list[str] = []
    missing: list[str] = []
    if options is None:
        return {"layers": layers, "missing": missing}
    settings = ConfinementOptions(**options)
    missing += settings.lacks

    def attempt(layer: str, apply: Callable[[], str | None], otherwise: str) -> None:
        if layer not in platform.PLATFORM.confinement_layers:
            missing.append(f"{otherwise} (not supported on {platform.PLATFORM.name})")
            return
        try:
            lack = apply()
        except (OSError, AttributeError) as exc:
            missing.append(f"{otherwise} ({exc})")
            return
        layers.append(layer)
        missing.extend([lack] if lack else [])

    # First: without root, Linux accepts Landlock and filters only from a process that cannot gain privileges.
    attempt("no-new-privileges", lambda: _apply_no_new_privileges(settings), "programs that become another user do so")
    attempt(
        "landlock", lambda: _apply_landlock(settings), "files are read and written with all rights of this user: no Landlock"
    )
    if "capabilities" in platform.PLATFORM.confinement_layers and os.geteuid() == 0:
        attempt("capabilities", _drop_capabilities, "the kernel has root's rights over the machine")
    if not settings.network:
        attempt("no-network", block_network, "the network cannot be taken away")
    _use_private_directories(settings)
    if missing and (settings.required or not (settings.network or "no-network" in layers)):
        sys.exit(f"The kernel cannot be confined as required: {'; '.join(missing)}.")
    return {"layers": layers, "missing": missing}


def main(arguments: list[str]) -> None:
    """Confine this process and execute a command for the launcher, which gets the result in its options.

    Raises:
        SystemExit: the command cannot be started, or confinement is required and missing.
    """
    options = LaunchOptions.take()
    apply_limits(options.limits)
    confined = confine(options.confinement)
    options.apply()
    os.environ.update(replace(options, confinement=None, confined=confined, environment={}, cwd=None).as_environment())
    try:
        os.execvp(arguments[0], arguments)  # noqa: S606 - no shell on purpose
    except OSError as exc:
        sys.exit(f"{arguments[0]} cannot be started: {exc.strerror}.")


def _use_private_directories(settings: ConfinementOptions) -> None:
    """Use the temporary directory, and the private directory for IPython and matplotlib, with links to the user's files."""
    os.environ["TMPDIR"], tempfile.tempdir = settings.temporary, None
    if settings.private is not None:
        _use_private_ipython(settings.private, settings.writable)
        _use_private_matplotlib(settings.private, settings.writable)


def _use_private_ipython(private: str, writable: list[str]) -> None:
    user_directory = os.path.realpath(os.environ.get("IPYTHONDIR") or os.path.expanduser("~/.ipython"))  # noqa: PTH111
    if _is_below(user_directory, writable):
        return
    private_directory = os.environ["IPYTHONDIR"] = os.path.join(private, "ipython")  # noqa: PTH118 - text in, text out
    os.mkdir(private_directory, mode=0o700)  # noqa: PTH102
    _link(user_directory, private_directory, lambda entry: not entry.name.startswith("profile_"))
    for profile in glob.iglob(f"{glob.escape(user_directory)}/profile_*/"):  # noqa: PTH207
        copy = os.path.join(private_directory, os.path.basename(profile.rstrip("/")))  # noqa: PTH118, PTH119
        os.mkdir(copy, mode=0o700)  # noqa: PTH102
        _link(profile, copy, lambda entry: not entry.name.startswith(_WRITTEN))


def _use_private_matplotlib(private: str, writable: list[str]) -> None:
    """Set a private directory for matplotlib, which checks permissions only and so does not notice Landlock."""
    user_directories = _matplotlib_directories()
    if all(_is_below(directory, writable) for directory in user_directories):
        return
    private_directory = os.environ["MPLCONFIGDIR"] = os.path.join(private, "matplotlib")  # noqa: PTH118 - text in, text out
    os.mkdir(private_directory, mode=0o700)  # noqa: PTH102
    for directory in user_directories:
        _link(directory, private_directory, lambda entry: entry.name != _TEX_CACHE)


def _matplotlib_directories() -> list[str]:
    """Return matplotlib's directories for configuration and caches, by matplotlib's rules and without repetition."""
    if named := os.environ.get("MPLCONFIGDIR"):
        return [os.path.realpath(named)]
    home = os.path.expanduser("~")  # noqa: PTH111
    bases = (os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config", os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache")
    return list(dict.fromkeys(os.path.realpath(f"{base}/matplotlib") for base in bases))


def _is_below(directory: str, parents: list[str]) -> bool:
    return any(f"{directory}/".startswith(f"{os.path.realpath(path)}/") for path in parents)


def _link(source: str, target: str, wanted: Callable[[os.DirEntry[str]], bool]) -> None:
    with suppress(OSError), os.scandir(source) as names:
        for entry in filter(wanted, names):
            with suppress(FileExistsError):
                os.symlink(entry.path, os.path.join(target, entry.name))  # noqa: PTH118, PTH211


def _apply_landlock(settings: ConfinementOptions) -> str | None:
    ruleset = Ruleset(offline=not settings.network)
    for path in settings.readable:
        ruleset.allow(path, READ_FILE)
    for path in settings.writable:
        allow_except(ruleset, path, READ_FILE | WRITE, [])
    for fd in settings.opened:
        ruleset.allow_open(fd, READ_FILE | WRITE)
    for path, excluded in settings.reads:
        allow_except(ruleset, path, READ_FILE, excluded)
    for path, excluded in settings.writes:
        allow_except(ruleset, path, WRITE, excluded)
    for device in _DEVICES:
        for path in glob.iglob(f"/dev/{device}"):  # noqa: PTH207 - names only
            ruleset.allow(path, READ_FILE | WRITE_FILE | IOCTL | TRUNCATE)
    ruleset.allow(_SHARED_MEMORY, READ_FILE | WRITE)
    _allow_reading(ruleset, {name for path in (*settings.hidden, "/dev") for name in (path, os.path.realpath(path))})
    ruleset.enforce()
    return None if ruleset.has_scopes else "other processes of this user can be signalled: Linux 6.12 or newer prevents that"


def _allow_reading(ruleset: Ruleset, hidden: set[str]) -> None:
    """Allow reading except for hidden paths. A right holds for a whole tree, so directories above hidden paths get no right.

    Instead each present entry of such a directory gets the right by name. New entries stay unreadable.
    """
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
    """Drop root's capabilities."""
    for capability in range(_CAPABILITIES_MAX):
        with suppress(OSError):  # no such capability, or dropped already
            if capability != _CAP_DAC_OVERRIDE:
                prctl(_DROP_BOUNDING, capability)
    # The bounding set is for programs with capabilities of their own, the ambient set for other programs. ``capset`` drops
    # those of this process, last: the bounding set can only be changed with CAP_SETPCAP.
    with suppress(OSError):
        prctl(_AMBIENT, _CLEAR_ALL)
    capabilities = 1 << _CAP_DAC_OVERRIDE
    # Version 3 has two records of 32 bits each: effective, permitted and inheritable.
    capset(struct.pack("Ii", _CAPABILITIES_3, 0), struct.pack("6I", capabilities, capabilities, 0, 0, 0, 0))


def _apply_no_new_privileges(settings: ConfinementOptions) -> str | None:
    set_no_new_privileges()
    try:
        block_foreign_access(allows_system_v=settings.has_private_ipc or _create_ipc_namespace())
    except (OSError, LookupError) as exc:
        return f"the resource limits and shared memory of other processes of this user can be changed ({exc})"
    return None


def _create_ipc_namespace() -> bool:
    """Move this process and later children to a new namespace for System V objects. Only root may do this."""
    try:
        unshare(_NEW_IPC)
    except (OSError, AttributeError):
        return False
    return True
