"""A session's paths on this machine, for confined kernels and for file operations.

``launcher/sandbox/confinement`` applies the rules to a kernel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernelexec.config import Config
from kernelexec.errors import InvalidConfig, KernelStartFailed
from kernelexec.provisioning import platform
from kernelexec.provisioning.host.interpreters import (
    OWN_CODE,
    choose_interpreter,
    find_own_import,
    import_path,
    interpreter_paths,
    is_beneath,
    keep_outermost,
    own_code_paths,
    writable_directories,
)
from kernelexec.provisioning.launch import LAUNCHER
from kernelexec.provisioning.launch.environment import kernel_environment
from kernelexec.provisioning.runtime.kernel_directory import RuntimeDirectory
from kernelexec.provisioning.runtime.owned_directory import ROOT_PREFIX, all_bases, create_temp_directory
from kernelexec.workspace.agent_files.access import FileRoot
from kernelexec.workspace.contexts import contexts, permissions

#: Paths with secrets in home directories: keys, passwords, tokens, histories, browser profiles.
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
#: Histories of IPython, one for each profile.
_HISTORIES = ".ipython/profile_*/history.sqlite"
#: Paths with secrets of the machine, for a process that is root.
MACHINE_STORES = (
    *("/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/sudoers.d", "/etc/ssl/private", "/etc/kubernetes"),
    *("/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "/var/lib/kubelet", "/var/spool/cron"),
    *("/run/secrets", "/var/run/secrets", "/run/credentials"),
)
_OWN_CODE_LACK = OWN_CODE + " {}, which cells can write: files that they leave there run without confinement at the next start"


def confinement_rules(config: Config, cwd: str, runtime: RuntimeDirectory, root: Path | None) -> dict[str, Any] | None:
    """Return the rules for a kernel with that workspace and private directory, in an executor's ``root``.

    None if the configuration has no confinement.

    Raises:
        KernelStartFailed: the temporary directory cannot be created, or a context path is gone.
    """
    chosen = config.confinement
    if not config.confines_kernels:
        return None
    try:
        temporary = config.environment.set.get("TMPDIR") or create_temp_directory(private_session(runtime, root))
        context = contexts(config)
    except OSError as exc:
        raise KernelStartFailed(f"The kernel's temporary directory cannot be created: {exc}.") from exc
    except InvalidConfig as exc:
        raise KernelStartFailed(str(exc)) from exc
    hidden = sorted({str(runtime.session), *hidden_paths(config)})
    cell_directories = writable_directories(config, cwd)
    read_only = [str(path) for path, writable in permissions(context).items() if not writable]
    writable = _list_nested(map(_check_no_link, _absolute_paths(chosen.writable)), read_only)
    is_listed = is_beneath(temporary, writable_directories(config, cwd, with_temporary=False))  # a cell may have made it a link
    own_paths = [os.path.realpath(path) for path in (runtime.path, *([] if is_listed else [temporary]))]
    readable = [
        path for path in (*chosen.readable, config.programs.venv) if path is not None and not is_beneath(path, cell_directories)
    ]
    reading = [*interpreter_paths(choose_interpreter(config, cwd)), *import_path(kernel_environment(config)), str(LAUNCHER)]
    read_paths = [
        *(str(entry.path) for entry in context),
        *(path for path in dict.fromkeys(reading) if not is_beneath(path, cell_directories)),
    ]
    own_import = find_own_import(cell_directories) if config.isolation != "bubblewrap" else None
    return {
        "temporary": str(temporary),
        "private": own_paths[0],
        "writable": keep_outermost([_check_no_link(cwd), *own_paths, *(path for path, inner in writable if not inner)]),
        "hidden": hidden,
        "readable": [*_absolute_paths(readable), *(path for path, inner in writable if inner)],
        "reads": _list_nested(read_paths, hidden),
        "writes": [
            *((path, inner) for path, inner in writable if inner),
            *_list_nested((str(entry.path) for entry in context if entry.writable), [*read_only, *hidden]),
        ],
        "network": config.has_local_network,
        "required": chosen.level == "required",
        "lacks": [_OWN_CODE_LACK.format(own_import)] if own_import is not None else [],
    }


def private_session(runtime: RuntimeDirectory, root: Path | None) -> Path:
    """Return the private directory of the first session above a kernel's directory, at any depth."""
    return next((path for path in runtime.path.parents if path.parent == root), runtime.session)


def _check_no_link(path: str) -> str:
    """Return a resolved path; raise ``KernelStartFailed`` if any part has become a link since."""
    if (target := os.path.realpath(path)) != path:
        message = (
            f"{path} leads to {target} by a new link: remove the link, and check the workspace for the code that created it."
        )
        raise KernelStartFailed(message)
    return path


def hidden_paths(config: Config) -> set[str]:
    """Return the paths hidden from confined kernels, except for a kernel's own files inside; empty without confinement."""
    return (
        {*_absolute_paths(config.confinement.hidden), *_secret_stores(), *_other_sessions(config)}
        if config.confines_kernels
        else set()
    )


def _list_nested(paths: Iterable[str], inner_paths: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Return the target of each path with all ``inner_paths`` below the target, as named and as resolved."""
    targets = list(map(os.path.realpath, paths))
    names = sorted({name for path in inner_paths for name in (path, os.path.realpath(path))}) if targets else []
    return [(path, [name for name in names if name.startswith(f"{path.rstrip('/')}/")]) for path in targets]


def _absolute_paths(paths: Iterable[Path]) -> list[str]:
    return [str(path.expanduser().absolute()) for path in paths]


def _secret_stores() -> Iterator[str]:
    """Yield the existing machine stores and this user's secret paths; for root also all users' paths and the SSH host keys."""
    homes = {str(Path.home()), *platform.home_directories()}
    if platform.is_root():
        homes |= {home for home in platform.home_directories(of_all=True) if home.startswith(("/home/", "/root", "/Users/"))}
        yield from (str(path) for path in Path("/etc/ssh").glob("ssh_host_*_key"))
    yield from filter(os.path.exists, MACHINE_STORES)
    for home in filter(os.path.isdir, homes):
        if home != "/":
            yield from (os.path.join(home, name) for name in SECRET_STORES)  # noqa: PTH118 - text in, text out
            yield from map(str, Path(home).glob(_HISTORIES))


def _other_sessions(config: Config) -> Iterator[str]:
    """Yield the paths of other sessions: private directories with keys of kernels, workspaces, journals, logs, results."""
    for base in all_bases():
        with suppress(OSError):
            yield from (str(path) for path in base.glob(f"{ROOT_PREFIX}*"))
    yield from _absolute_paths(path for path in (config.absolute_workspace, config.log_dir, config.cache) if path is not None)


def record_directories(config: Config) -> list[Path]:
    """Return the directories with records of executed code: the journals and logs of all sessions."""
    logs = config.log_dir
    return [config.absolute_workspace.resolve() / ".journals", *([logs.expanduser().resolve()] if logs else [])]


def file_roots(config: Config, workspace: Path, to_kernel_path: Callable[[str], str]) -> tuple[FileRoot, ...]:
    """Return the workspace, then the context paths; raise ``InvalidConfig`` for a missing context path."""
    protected_paths = (*own_code_paths(), *record_directories(config))
    roots = [FileRoot(workspace, to_kernel_path(str(workspace)), protected=_beneath(workspace, protected_paths))]
    context_paths = contexts(config, workspace)
    secret = (
        tuple(Path(name) for path in hidden_paths(config) for name in {path, os.path.realpath(path)}) if context_paths else ()
    )
    for context in context_paths:
        protected = (*context.protected, *_beneath(context.path, protected_paths))
        hidden = _beneath(context.path, secret)
        root = FileRoot(context.path, to_kernel_path(str(context.path)), context.writable, protected, context.single, hidden)
        roots.append(root)
    return tuple(roots)


def _beneath(path: Path, paths: tuple[Path, ...]) -> tuple[Path, ...]:
    return tuple(inner for inner in paths if path in inner.parents)
