"""A Docker engine of a test's own, which it may stop, kill and start again while other tests use the machine's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernelexec.docker.client import Engine
from kernelexec.errors import EngineUnavailable
from tests.support.pace import BOUND


class OwnEngine:
    """It needs root, and the programs of Docker's engine. ``host`` is for ``DOCKER_HOST``.

    What runs containers, containerd, is a process of its own: they outlive an engine that crashes.
    """

    def __init__(self, directory: Path) -> None:
        self.host = f"unix://{directory}/s"
        self._place = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._runs: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        directory = self._place
        if self._runs is None:
            (directory / "containerd.toml").write_text(
                f'version = 2\nroot = "{directory}/c-data"\nstate = "{directory}/c-state"\n'
                f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\naddress = "{directory}/c"\n'
            )
            self._runs = self._started("containerd", f"--config={directory}/containerd.toml")
        places = [f"--data-root={directory}/data", f"--exec-root={directory}/exec", f"--pidfile={directory}/pid"]
        (directory / "pid").unlink(missing_ok=True)
        # In a network of its own: an engine without a bridge would remove that of the machine's engine.
        command = ["unshare", "--net", "dockerd", "-H", self.host, f"--containerd={directory}/c", *places]
        self._process = self._started(*command, "--bridge=none", "--iptables=false", "--ip-masq=false")
        deadline = time.monotonic() + BOUND
        while not self.answers():
            assert self._process.poll() is None, (directory / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, "the engine did not come up"
            time.sleep(0.1)

    def _started(self, *command: str) -> subprocess.Popen[bytes]:
        with (self._place / "log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def answers(self) -> bool:
        before = os.environ.get("DOCKER_HOST")
        os.environ["DOCKER_HOST"] = self.host
        try:
            with Engine(timeout=int(BOUND)):
                return True
        except EngineUnavailable:
            return False
        finally:
            if before is None:
                del os.environ["DOCKER_HOST"]
            else:
                os.environ["DOCKER_HOST"] = before

    def stop(self, signum: int = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signum)
            process.wait(BOUND)

    def end(self) -> None:
        """Stop it with all that it runs."""
        if self._process is None:
            self.start()
        self.stop()
        if self._runs is not None:
            self._runs.terminate()
            self._runs.wait(BOUND)

    def take(self, image: str) -> None:
        """Have an image of the machine's own engine."""
        with Engine() as own:
            packed = own.api.get_image(image)
            file = self._place / "image.tar"
            with file.open("wb") as out:
                out.writelines(packed)
        with file.open("rb") as packed_file:
            environ = {**os.environ, "DOCKER_HOST": self.host}
            subprocess.run(["docker", "load", "-q"], stdin=packed_file, env=environ, check=True, stdout=subprocess.DEVNULL)
        file.unlink()


@contextmanager
def own_engine() -> Iterator[OwnEngine]:
    directory = Path(tempfile.mkdtemp(prefix="kxe-", dir="/tmp"))
    engine = OwnEngine(directory)
    try:
        engine.start()
        yield engine
    finally:
        engine.end()
        _unmount(directory)
        shutil.rmtree(directory, ignore_errors=True)


def _unmount(directory: Path) -> None:
    for line in reversed(Path("/proc/mounts").read_text().splitlines()):
        target = line.split()[1]
        if target.startswith(f"{directory}/"):
            subprocess.run(["umount", "-l", target], check=False)
