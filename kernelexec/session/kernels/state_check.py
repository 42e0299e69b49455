"""The check of a kernel's state after a cell: does the kernel confirm it, or at least answer?"""

from __future__ import annotations

from kernelexec.kernel import Execution, Kernel
from kernelexec.session.kernels.verdict import Verdict


async def confirm_state(kernel: Kernel, execution: Execution, verdict: Verdict, grace: float) -> bool:
    """Return whether the kernel confirms its state, or at least answers within ``grace`` seconds; a note says why not."""
    if execution.end == "complete" and kernel.confirms_state(execution):
        return True
    if execution.end in ("complete", "incomplete"):
        if await kernel.client.wait_until_quiet(execution, grace):
            if execution.end == "incomplete":
                verdict.notes.append("The kernel never reported the end of the cell, but answers again.")
            return True
        verdict.notes.append("The kernel no longer answered after the cell and was killed.")
    elif execution.end == "disconnected" and not await has_ended(kernel, grace):
        verdict.cause = "killed" if kernel.is_unreachable else None  # also if the cell was interrupted before
        subject = "The container engine does not answer, and its" if kernel.is_unreachable else "The"
        act = "did not read its messages" if kernel.client.is_overrun else "closed its sockets"
        verdict.notes.append(f"{subject} kernel {act}: it counts as killed.")
    return False


async def has_ended(kernel: Kernel, grace: float) -> bool:
    """Return whether a kernel that is about to end is reported as dead."""
    return await kernel.wait_exit(grace * 2) or await kernel.wait_report()
