"""Kernels of ours for other Jupyter programs: our kernelspecs there, and kernels under the KernelManager of such a program.

The KernelManager of JupyterLab, nbclient, papermill or the console has no private directory, connects by path, and trusts the
sockets there, which a kernel could replace. So the kernel gets a private directory like all of ours. Once the kernel serves,
hard links to the sockets are created in a directory that only this process writes, and the manager gets those names.
``launch_kernel`` waits for the links, so a failed start reports the reason. Revisit when jupyter_client accepts open sockets.
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager

from kernelexec.config import Budgets, Config, load
from kernelexec.docker.labels import LAUNCHER_INSIDE
from kernelexec.errors import InvalidRequest, InvalidWorkDir, KernelexecError, KernelStartFailed
from kernelexec.provisioning.backend import backend_for
from kernelexec.provisioning.launch import LAUNCHER
from kernelexec.provisioning.launch.kernelspec import describe_stderr
from kernelexec.provisioning.runtime.kernel_directory import PORTS, RuntimeDirectory
from kernelexec.provisioning.runtime.owned_directory import OwnedDirectory, new_root, sweep, swept_bases

_NAME = re.compile(r"[a-z0-9._-]+")
_PROVISIONERS = {"container": "kernelexec-container", "local": "kernelexec-local"}
T = TypeVar("T")
AsyncCall = Callable[[], Awaitable[T]]
#: The environment variable in which a server names the notebook of a kernel.
_NOTEBOOK = "JPY_SESSION_NAME"
_IN_LOG = " Its output is in the log of the program that started it."


def install_spec(
    name: str,
    display_name: str,
    *,
    isolation: str = "container",
    container: Mapping[str, Any] | None = None,
    python: str | None = None,
    share_home: bool = False,
    prefix: Path | None = None,
) -> Path:
    """Install or replace a kernelspec of ours and return the directory. A ``prefix`` of None installs for the user.

    Raises:
        InvalidRequest: the name is invalid or belongs to another program, or an option of containers is unknown.
        OSError: the directory cannot be written.
    """
    container_options = dict(container or {})
    options = load(isolation, config={"container": container_options} | ({"python": python} if python else {}))
    if not _NAME.fullmatch(name):
        message = f"{name!r} cannot be a kernelspec's name: use lower-case letters, digits, dots, underscores and dashes."
        raise InvalidRequest(message)
    if isolation not in _PROVISIONERS:
        raise InvalidRequest(f"isolation={isolation!r}: must be {' or '.join(map(repr, _PROVISIONERS))} for a kernelspec.")
    local = isolation == "local"
    directory = _create_manager(prefix).find_kernel_specs().get(name)
    if directory is not None and not _is_own(_read_spec(Path(directory))):
        message = f"The kernelspec {name!r} in {directory} belongs to another program: choose another name by --name."
        raise InvalidRequest(message)
    interpreter, launcher = (options.python, str(LAUNCHER)) if local else (options.container.python, LAUNCHER_INSIDE)
    config = {} if local else {"container": container_options} | ({"share_home": True} if share_home else {})
    spec = {
        "argv": [interpreter, launcher, "-f", "{connection_file}"],
        "display_name": display_name,
        "language": "python",
        "interrupt_mode": "message",
        "metadata": {"kernel_provisioner": {"provisioner_name": _PROVISIONERS[isolation], "config": config}},
    }
    with tempfile.TemporaryDirectory() as source:
        (Path(source) / "kernel.json").write_text(json.dumps(spec, indent=1) + "\n", encoding="utf-8")
        location: dict[str, Any] = {"user": True} if prefix is None else {"prefix": str(prefix)}
        return Path(_create_manager(prefix).install_kernel_spec(source, name, **location))


def _create_manager(prefix: Path | None) -> KernelSpecManager:
    manager = KernelSpecManager(ensure_native_kernel=False, log=logging.getLogger("kernelexec.kernelspecs"))
    if prefix is not None:
        directory = str(prefix.absolute() / "share" / "jupyter" / "kernels")
        manager.kernel_dirs = [directory, *(other for other in manager.kernel_dirs if other != directory)]
    return manager


def _read_spec(directory: Path) -> dict[str, Any]:
    try:
        content = json.loads((directory / "kernel.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _is_own(content: Mapping[str, Any]) -> bool:
    """Return whether a kernelspec names a provisioner of ours."""
    for name in ("metadata", "kernel_provisioner"):
        inner = content.get(name)
        content = inner if isinstance(inner, dict) else {}
    return content.get("provisioner_name") in _PROVISIONERS.values()


class ManagedKernelDirectory:
    """The private directory of a manager, which outlives restarts and has a directory for each kernel process."""

    def __init__(self, manager: Any) -> None:  # noqa: ANN401 - jupyter_client's KernelManager or a subclass
        self._manager = manager
        self._root: OwnedDirectory | None = None
        self._runtime: RuntimeDirectory | None = None
        self._kernels = 0
        self._python = ""

    async def prepare(
        self,
        spec: KernelSpec,
        kernel_id: str,
        kwargs: Mapping[str, Any],
        *,
        isolation: str,
        options: Mapping[str, Any],
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Create the directory of a new kernel process; return the arguments of the launch and the provisioner's settings.

        Of this process's environment the kernel gets the notebook's name and the variables named in the kernelspec.

        Raises:
            InvalidConfig: the kernelspec holds an unknown option, or a transport unknown to such kernels.
            InvalidWorkDir: the kernel would see all of the home directory.
            KernelStartFailed: there is no directory for sockets.
        """
        config = _load_config(isolation, options, kwargs.get("cwd"))
        if self._root is None:
            await anyio.to_thread.run_sync(sweep, swept_bases(), threading.Event())
            self._root = OwnedDirectory.claim(new_root())
        runtime = self._create_runtime(self._root.path)
        session = f"jupyter-{self._manager.kernel_name}"
        backend = backend_for(config, session=session, workspace=config.workspace, root=self._root.path)
        self._python = backend.python
        named = {name: Template(text).safe_substitute(os.environ) for name, text in spec.env.items()}
        notebook = {name: text for name, text in (kwargs.get("env") or {}).items() if name == _NOTEBOOK}
        launch_options = runtime.launch_environment("", config.limits.list_set())
        argv = [*spec.argv, *kwargs.get("extra_arguments", ())]
        launch = {
            "cmd": [word.replace("{connection_file}", str(runtime.connection_file)) for word in argv],
            "env": backend.environment() | notebook | named | launch_options,
            "cwd": backend.cwd,
        }
        return launch, backend.build_spec(runtime, kernel_id, None).metadata["kernel_provisioner"]["config"]

    @property
    def connection_info(self) -> Any:  # noqa: ANN401 - jupyter_client's own type
        """Where the manager's clients connect."""
        return self._manager.get_connection_info()

    def _create_runtime(self, root: Path) -> RuntimeDirectory:
        """Create the directory of the next kernel process, and point the manager to the linked sockets."""
        manager = self._manager
        self._kernels += 1
        runtime = self._runtime = RuntimeDirectory(root / str(self._kernels))
        runtime.create(name=manager.kernel_name, key=manager.session.key.decode(), scheme=manager.session.signature_scheme)
        # The manager connects to <root>/s-1 .. s-5: links that ``_link`` makes. The kernel's own sockets are one level deeper,
        # in <root>/<number>, and a container gets that directory only.
        manager.transport, manager.ip = "ipc", str(root / "s")
        for name, port in PORTS.items():
            setattr(manager, name, port)
        manager.write_connection_file()
        return runtime

    async def wait_ready(self, wait_exit: AsyncCall[object], read_output: AsyncCall[str] | None = None) -> None:
        """Wait until the kernel serves, and link the sockets to the manager's paths.

        ``wait_exit`` waits for the kernel's end; ``read_output`` returns output missing from the application's own log.

        Raises:
            KernelStartFailed: the kernel ended, did not serve in time, or has replaced a socket.
        """
        assert self._runtime is not None
        runtime, is_serving, budget = self._runtime, False, Budgets().start
        with anyio.move_on_after(budget) as timeout:
            async with anyio.create_task_group() as tasks:

                async def cancel_at_exit() -> None:
                    await wait_exit()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(cancel_at_exit)
                await runtime.wait_ready()
                is_serving = True
                tasks.cancel_scope.cancel()
        if not is_serving:
            ending = f"did not serve within {budget} s" if timeout.cancelled_caught else "ended while it started"
            output = _IN_LOG if read_output is None else describe_stderr((await read_output()).strip(), self._python)
            raise KernelStartFailed(f"The kernel {ending}.{output}")
        self._link(runtime)

    def _link(self, runtime: RuntimeDirectory) -> None:
        """Link the inode of each socket, so a later replacement by the kernel has no effect on clients."""
        self._unlink()
        for port in PORTS.values():
            link = Path(f"{self._manager.ip}-{port}")
            try:
                os.link(runtime.path / f"s-{port}", link, follow_symlinks=False)
            except OSError as exc:
                raise KernelStartFailed(f"The kernel's socket {port} cannot be used: {exc.strerror}.") from exc
            if not stat.S_ISSOCK(link.lstat().st_mode):  # checked on the link, whose inode the kernel can no longer change
                raise KernelStartFailed(f"The kernel has replaced its socket {port} by another file.")

    def _unlink(self) -> None:
        for port in PORTS.values():
            Path(f"{self._manager.ip}-{port}").unlink(missing_ok=True)

    async def release(self, *, restart: bool) -> None:
        """Remove the directory of the kernel process; without a restart, the manager's directory too."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            self._unlink()
            await anyio.to_thread.run_sync(runtime.remove)
        if not restart and self._root is not None:
            root, self._root = self._root, None
            await anyio.to_thread.run_sync(root.remove)


@contextmanager
def reraise_for_server() -> Iterator[None]:
    """Raise our errors as tornado's HTTPError: a Jupyter server shows only the messages of this class."""
    try:
        yield
    except KernelexecError as exc:
        from tornado.web import HTTPError  # noqa: PLC0415 - only a failure needs it

        message = str(exc)

        class KernelNotStarted(KernelStartFailed, HTTPError):
            """A failed start, as a server's answer to the request for the kernel."""

            def __init__(self) -> None:
                super().__init__(500, message, reason="The kernel was not started")

            def __str__(self) -> str:
                return message

        raise KernelNotStarted from exc


def _load_config(isolation: str, options: Mapping[str, Any], cwd: object) -> Config:
    """Return the settings of a kernel, whose workspace is the notebook's directory.

    A container gets the home directory only if the kernelspec was installed with ``share_home``: a kernel of a notebook there
    would see all private files.
    """
    workspace = Path(str(cwd) if cwd else Path.cwd()).resolve()
    home = Path.home().resolve()
    config = load(isolation, workspace=workspace, config=options)
    shared = config.container.share_home
    if isolation == "container" and ((workspace == home and not shared) or workspace in home.parents):
        message = (
            f"The kernel would see all of {workspace}, with the private files in {home}: put the notebook into a directory"
        )
        message += " of its own, or install the kernelspec with --share-home." if workspace == home else " of its own."
        raise InvalidWorkDir(message)
    return config
