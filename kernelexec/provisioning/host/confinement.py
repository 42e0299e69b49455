"""What a kernel on this machine is told to confine itself to; ``launcher/sandbox/confinement`` does it before any cell."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernelexec.config import Config
from kernelexec.errors import InvalidConfig, KernelStartFailed
from kernelexec.provisioning import platform
from kernelexec.provisioning.host.interpreters import interpreter
from kernelexec.provisioning.host.writable_paths import import_path, imported_by_us, outermost, own_reading, within, written
from kernelexec.provisioning.launch.environment import environment_of
from kernelexec.provisioning.launch.kernelspec import LAUNCHER
from kernelexec.provisioning.runtime.kernel_directory import RuntimeDirectory
from kernelexec.provisioning.runtime.locations import bases
from kernelexec.provisioning.runtime.owned_directory import PREFIX
from kernelexec.provisioning.runtime.temp_dirs import temporary_directory
from kernelexec.workspace.contexts import contexts, permissions

#: Where people and their programs keep secrets, in their homes: keys, passwords, tokens, histories, browsers' profiles.
SECRET_STORES = (
    *(".ssh", ".gnupg", ".pki", ".password-store", ".local/share/keyrings", ".local/share/kwalletd", ".config/sops"),
    *(".aws", ".azure", ".config/gcloud", ".boto", ".kube", ".docker", ".config/containers", ".oci", ".config/doctl"),
    *(".config/gh", ".config/hub", ".config/glab-cli", ".git-credentials", ".config/git/credentials", ".netrc", "_netrc"),
    *(".pypirc", ".npmrc", ".yarnrc.yml", ".cargo/credentials", ".cargo/credentials.toml", ".gem/credentials", ".m2"),
    *(".config/pip", ".pip", ".condarc", ".huggingface", ".cache/huggingface/token", ".kaggle", ".config/rclone"),
    *(".pgpass", ".my.cnf", ".mylogin.cnf", ".dbshell", ".terraform.d", ".terraformrc", ".vault-token", ".ansible"),
    *(".claude", ".claude.json", ".codex", ".gemini", ".cursor", ".config/Claude", ".config/Code", ".config/github-copilot"),
    *(".mozilla", ".thunderbird", ".config/google-chrome", ".config/chromium", ".config/BraveSoftware", ".config/vivaldi"),
    *(".config/microsoft-edge", ".config/opera", ".config/1Password", ".config/Bitwarden", ".config/Signal", ".config/Slack"),
    *(".cache/google-chrome", ".cache/chromium", ".cache/mozilla", "snap/firefox", "snap/chromium", ".var/app"),
    *(".bash_history", ".zsh_history", ".python_history", ".psql_history", ".mysql_history", ".node_repl_history"),
    *(".Xauthority", ".ICEauthority", ".electrum", ".bitcoin", ".config/solana"),
)
#: Those of IPython, one for each profile.
_HISTORIES = ".ipython/profile_*/history.sqlite"
#: The same of the machine, for a process that is root.
MACHINE_STORES = (
    *("/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/sudoers.d", "/etc/ssl/private", "/etc/kubernetes"),
    *("/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "/var/lib/kubelet", "/var/spool/cron"),
    *("/run/secrets", "/var/run/secrets", "/run/credentials"),
)
_LACKING = (
    "kernelexec itself is loaded from {}, which cells can write: what they leave there runs without confinement the next time"
)


def confinement(config: Config, cwd: str, runtime: RuntimeDirectory, root: Path | None) -> dict[str, Any] | None:
    """The order for a kernel with that workspace and that private directory, in an executor's ``root``.

    None where it is not to be confined.

    Raises:
        KernelStartFailed: it can have no temporary directory, or a context path is gone.
    """
    chosen = config.confinement
    if not config.confines_kernels:
        return None
    try:
        temporary = config.environment.set.get("TMPDIR") or temporary_directory(_session(runtime, root))
        context = contexts(config)
    except OSError as exc:
        raise KernelStartFailed(f"The kernel's temporary directory cannot be made: {exc}.") from exc
    except InvalidConfig as exc:
        raise KernelStartFailed(str(exc)) from exc
    hidden = sorted({str(runtime.session), *hidden_paths(config)})
    places = written(config, cwd)
    kept = [str(path) for path, writable in permissions(context).items() if not writable]
    over = _within(map(_still, _paths(chosen.writable)), kept)
    given = within(temporary, written(config, cwd, temporary=False))  # and may be a link by now
    own = [os.path.realpath(path) for path in (runtime.path, *([] if given else [temporary]))]
    readable = [path for path in (*chosen.readable, config.programs.venv) if path is not None and not within(path, places)]
    reading = [*own_reading(interpreter(config, cwd)), *import_path(environment_of(config)), str(LAUNCHER)]
    seen = [*(str(one.path) for one in context), *(path for path in dict.fromkeys(reading) if not within(path, places))]
    lacking = imported_by_us(places) if config.isolation != "bubblewrap" else None
    return {
        "temporary": str(temporary),
        "private": own[0],
        "writable": outermost([_still(cwd), *own, *(path for path, inner in over if not inner)]),
        "hidden": hidden,
        "readable": [*_paths(readable), *(path for path, inner in over if inner)],
        "reads": _within(seen, hidden),
        "writes": [
            *((path, inner) for path, inner in over if inner),
            *_within((str(one.path) for one in context if one.writable), [*kept, *hidden]),
        ],
        "network": config.has_local_network,
        "required": chosen.level == "required",
        "lacks": [_LACKING.format(lacking)] if lacking is not None else [],
    }


def _still(path: str) -> str:
    """A path over no link: who has looked at it has resolved them, and one that is there now was put there by somebody.

    Raises:
        KernelStartFailed: there is one.
    """
    if (found := os.path.realpath(path)) != path:
        message = f"{path} leads to {found} by a link that was not there before: look who put it there."
        raise KernelStartFailed(message)
    return path


def hidden_paths(config: Config) -> set[str]:
    """What kernels on this machine do not read, but for what in it is theirs; nothing where they are not confined."""
    return {*_paths(config.confinement.hidden), *_secret_stores(), *_ours(config)} if config.confines_kernels else set()


def _session(runtime: RuntimeDirectory, root: Path | None) -> Path:
    """The private directory of a session, some of whose kernels have theirs deeper in it."""
    return next((path for path in runtime.path.parents if path.parent == root), runtime.session)


def _within(paths: Iterable[str], kept: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Where each path leads, with what of ``kept`` is in it, in whatever way that is named."""
    found = list(map(os.path.realpath, paths))
    names = sorted({name for path in kept for name in (path, os.path.realpath(path))}) if found else []
    return [(path, [name for name in names if name.startswith(f"{path.rstrip('/')}/")]) for path in found]


def _paths(paths: Iterable[Path]) -> list[str]:
    return [str(path.expanduser().absolute()) for path in paths]


def _secret_stores() -> Iterator[str]:
    """Of this user; and if that is root, of all users and of the machine."""
    homes = {str(Path.home()), *platform.homes()}
    if platform.is_root():
        homes |= {home for home in platform.homes(of_all=True) if home.startswith(("/home/", "/root", "/Users/"))}
        yield from (str(path) for path in Path("/etc/ssh").glob("ssh_host_*_key"))
    yield from filter(os.path.exists, MACHINE_STORES)
    for home in filter(os.path.isdir, homes):
        if home != "/":
            yield from (os.path.join(home, name) for name in SECRET_STORES)  # noqa: PTH118 - text in, text out
            yield from map(str, Path(home).glob(_HISTORIES))


def _ours(config: Config) -> Iterator[str]:
    """What other sessions have: private directories, with the keys of their kernels; workspaces, journals, logs and results."""
    for base in bases():
        with suppress(OSError):
            yield from (str(path) for path in base.glob(f"{PREFIX}*"))
    kept = config.cache.results_directory if config.cache.enabled else None
    yield from _paths(path for path in (config.workspaces, config.log_dir, kept) if path is not None)
