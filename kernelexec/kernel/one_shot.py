"""One question to a kernel that another process owns: a control connection of our own, under a name of its own."""

from __future__ import annotations

import secrets
from typing import Any

import anyio

from kernelexec.config import MIB
from kernelexec.errors import KernelConnectionFailed, KernelNotAnswering
from kernelexec.kernel.client import Link
from kernelexec.kernel.wire.connect import Dialing
from kernelexec.provisioning import RuntimeDirectory

_MESSAGE_BYTES = 16 * MIB


async def ask_kernel(runtime: RuntimeDirectory, msg_type: str, content: dict[str, Any], *, patience: float) -> dict[str, Any]:
    """The content of the reply to a control request, within ``patience`` seconds. The owner and its cells notice nothing.

    Raises:
        KernelNotAnswering: the kernel is gone, or does not answer in time.
    """
    connection = runtime.connection()
    if connection is None:
        raise KernelNotAnswering("The kernel is gone: its connection file cannot be read.")
    # A second client of the same name would get the owner's replies.
    link = Link(connection.key, secrets.token_hex(16).encode(), _MESSAGE_BYTES, lambda _: None)
    said = None
    try:
        with anyio.move_on_after(patience):
            await link.connect(Dialing(connection, None, said=True), only="control")
            said = await link.ask("control", msg_type, content, patience=patience)
    except KernelConnectionFailed as exc:
        message = f"The kernel cannot be reached: {exc}."
        raise KernelNotAnswering(message) from exc
    finally:
        link.close()
    if said is None:
        message = f"The kernel did not answer within {patience:.1f} s: it may hold the interpreter's lock in C code."
        raise KernelNotAnswering(message)
    return said
