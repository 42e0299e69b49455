"""Kernels of the KernelManager of another program: JupyterLab, nbclient, papermill, the console.

Such a manager has no private directory, connects by path, and trusts the sockets there. So its kernel gets a private directory
like our own kernels, and the manager gets hard links to its sockets, in a directory that the kernel cannot see.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from jupyter_client.kernelspec import KernelSpec

from kernelexec.config import Budgets, Config, load
from kernelexec.errors import InvalidConfig, InvalidWorkDir, KernelexecError, KernelStartFailed
from kernelexec.provisioning.backend import backend_for
from kernelexec.provisioning.launch.kernelspec import describe_stderr
from kernelexec.provisioning.runtime.kernel_directory import PORTS, RuntimeDirectory
from kernelexec.provisioning.runtime.owned_directory import OwnedDirectory, new_root, sweep, swept_bases

T = TypeVar("T")
AsyncCall = Callable[[], Awaitable[T]]
#: The environment variable in which a server names the notebook of a kernel.
_NOTEBOOK = "JPY_SESSION_NAME"
_IN_LOG = " Its output is in the log of the program that started it."


class ManagedKernelDirectory:
    """The private directory of one manager, which outlives restarts and has a directory for each kernel process."""

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
        """Create the directory of a new kernel process; return the arguments of its launch and the settings of its provisioner.

        Of this process's environment the kernel gets the name of its notebook and the variables that the kernelspec names.

        Raises:
            InvalidConfig: the kernelspec holds an unknown option, or a transport that such kernels do not have.
            InvalidWorkDir: the kernel would see all of the home directory.
            KernelStartFailed: there is no directory for its sockets.
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
        """Create the directory of the next kernel process, and point the manager to its sockets."""
        manager = self._manager
        self._kernels += 1
        runtime = self._runtime = RuntimeDirectory(root / str(self._kernels))
        runtime.create(name=manager.kernel_name, key=manager.session.key.decode(), scheme=manager.session.signature_scheme)
        manager.transport, manager.ip = "ipc", str(root / "s")
        for name, port in PORTS.items():
            setattr(manager, name, port)
        manager.write_connection_file()
        return runtime

    async def wait_ready(self, wait_exit: AsyncCall[object], read_output: AsyncCall[str] | None = None) -> None:
        """Wait until the kernel serves, and link its sockets to the paths that the manager uses.

        ``wait_exit`` waits for its end; ``read_output`` returns its output if the application's own log does not have it.

        Raises:
            KernelStartFailed: the kernel ended, does not serve in time, or has replaced its sockets.
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
        """Link each socket's own inode, so that a file that the kernel puts in its place later is not reached."""
        self._unlink()
        for port in PORTS.values():
            link = Path(f"{self._manager.ip}-{port}")
            try:
                os.link(runtime.path / f"s-{port}", link, follow_symlinks=False)
            except OSError as exc:
                raise KernelStartFailed(f"The kernel's socket {port} cannot be used: {exc.strerror}.") from exc
            if not stat.S_ISSOCK(link.lstat().st_mode):
                raise KernelStartFailed(f"The kernel has replaced its socket {port} by another file.")

    def _unlink(self) -> None:
        for port in PORTS.values():
            Path(f"{self._manager.ip}-{port}").unlink(missing_ok=True)

    async def release(self, *, restart: bool) -> None:
        """Remove the directory of the kernel process; without a restart, that of the manager too."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            self._unlink()
            await anyio.to_thread.run_sync(runtime.remove)
        if not restart and self._root is not None:
            root, self._root = self._root, None
            await anyio.to_thread.run_sync(root.remove)


@contextmanager
def reraise_for_server() -> Iterator[None]:
    """Raise our errors as tornado's HTTPError, whose message a Jupyter server shows; it hides that of other errors."""
    try:
        yield
    except KernelexecError as exc:
        from tornado.web import HTTPError  # noqa: PLC0415 - only a failure needs it

        message = str(exc)

        class KernelNotStarted(KernelStartFailed, HTTPError):
            """A kernel did not start; a server answers the request for it with this."""

            def __init__(self) -> None:
                super().__init__(500, message, reason="The kernel was not started")

            def __str__(self) -> str:
                return message

        raise KernelNotStarted from exc


def _load_config(isolation: str, options: Mapping[str, Any], cwd: object) -> Config:
    """Return the settings of one kernel, whose workspace is the directory of its notebook."""
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
    if isolation == "container" and config.container.transport == "tcp":
        message = "container.transport='tcp': kernels of other programs are reached by unix sockets only. Leave the option out."
        raise InvalidConfig(message)
    return config
