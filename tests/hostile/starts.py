"""Kernels that never come up as they should: each is a program in the place of the interpreter."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

_HEAD = f"#!{sys.executable}\n" + textwrap.dedent(
    """
    import json, os, signal, socket, subprocess, sys, time
    from pathlib import Path
    connection = json.loads(Path(sys.argv[-1]).read_text())
    order = json.loads(os.environ["KERNELEXEC_LAUNCH"])
    sockets = [Path(f"{connection['ip']}-{port}") for port in range(1, 6)]
    victim = os.environ.get("VICTIM", "")

    def say_ready(text=None):
        fd = os.open(order["ready"], os.O_WRONLY)
        os.write(fd, (text or json.dumps({"pid": os.getpid()})).encode() + b"\\n")

    def listen(answer=b""):
        servers = []
        for path in sockets:
            server = socket.socket(socket.AF_UNIX)
            server.bind(str(path))
            server.listen()
            servers.append(server)
        return servers

    def serve(servers, answer):
        import selectors
        selector = selectors.DefaultSelector()
        for server in servers:
            selector.register(server, selectors.EVENT_READ)
        kept = []
        while True:
            for key, _ in selector.select():
                peer, _ = key.fileobj.accept()
                kept.append(peer)
                peer.sendall(answer)
    """
)

#: Name to (what the program does, what the error says).
STARTS: dict[str, tuple[str, str]] = {
    "it exits": ("sys.stderr.write('cannot find my head'); sys.exit(3)", "exit code 3.*cannot find my head"),
    "it crashes": ("os.kill(os.getpid(), signal.SIGSEGV)", "crashed, exit code 139"),
    "it never says that it serves": ("time.sleep(600)", "did not serve within"),
    "it says so and dies": ("say_ready(); sys.exit(0)", "exit code 0|Connection refused|No such file|ended while"),
    "it says garbage": ("say_ready('}' * 5000); time.sleep(600)", "No such file"),
    "it serves nothing": ("say_ready(); time.sleep(600)", "No such file"),
    "its sockets are plain files": ("[p.write_text('x') for p in sockets]; say_ready(); time.sleep(600)", "is not a socket"),
    "its sockets are links to a victim": (
        "[p.symlink_to(victim) for p in sockets]; say_ready(); time.sleep(600)",
        "is not a socket",
    ),
    "its sockets are a victim's by another name": (
        "[os.link(victim, p) for p in sockets]; say_ready(); time.sleep(600)",
        "served by process",
    ),
    "another process serves its sockets": (
        "if os.fork() == 0:\n    servers = listen(); say_ready()\n    time.sleep(600)\ntime.sleep(600)",
        "served by process",
    ),
    "nobody answers": ("servers = listen(); say_ready(); time.sleep(600)", "did not serve within"),
    "it speaks another protocol": (
        "servers = listen(); say_ready(); serve(servers, b'HTTP/1.1 400 no\\r\\n\\r\\n')",
        "not ZMTP",
    ),
    "it speaks the protocol of long ago": (
        "servers = listen(); say_ready(); serve(servers, b'\\xff' + bytes(8) + b'\\x7f' + b'\\x01' + bytes(53))",
        "speaks ZMTP 1",
    ),
    "it wants secrets": (
        "servers = listen(); say_ready(); serve(servers, b'\\xff' + bytes(8) + b'\\x7f\\x03\\x00CURVE' + bytes(47))",
        "another security mechanism",
    ),
    "it greets and falls silent": (
        "servers = listen(); say_ready(); serve(servers, b'\\xff' + bytes(8) + b'\\x7f\\x03\\x00NULL' + bytes(48))",
        "did not serve within",
    ),
    "it hangs up": (
        "servers = listen(); say_ready(); servers[1].accept()[0].close(); time.sleep(600)",
        "no handshake|closed",
    ),
    "it stops itself": ("os.kill(os.getpid(), signal.SIGSTOP)", "did not serve within"),
}


def program(directory: Path, body: str) -> str:
    """Write an executable that does this instead of being a kernel."""
    path = directory / "python"
    path.write_text(f"{_HEAD}\n{body}\n")
    path.chmod(0o755)
    return str(path)
