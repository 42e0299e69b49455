"""Outputs of two runs of a notebook, with what the runners may write differently made equal."""

from __future__ import annotations

import copy
from typing import Any

import nbclient

from kernelexec.results import strip_ansi

#: What stands between the exceptions of a traceback.
CHAINED = ("the direct cause of the following exception:", "another exception occurred:")


def comparable_outputs(outputs: list[Any]) -> list[Any]:
    """Outputs without the marked lines of handled exceptions in tracebacks, and with each stream in one part."""
    actual: list[Any] = []
    for output in copy.deepcopy(outputs):
        if output.output_type == "stream" and "UserWarning: To exit: use" in output.text:
            continue  # IPython's advice for its own terminal, which is not given here
        if output.output_type == "error":
            output.traceback = "\n".join(output.traceback).split("\n\n")
            later = max((number for number, block in enumerate(output.traceback) if block.endswith(CHAINED)), default=0)
            # IPython 9.18 marks another line of an exception that was handled; see launcher/ipython/tracebacks
            output.traceback[:later] = [strip_ansi(block).partition("Cell In[")[0] for block in output.traceback[:later]]
        last = actual[-1] if actual else None
        if last and output.output_type == "stream" == last.output_type and output.name == last.name:
            last.text += output.text
        else:
            actual.append(output)
    for output in actual:
        if output.output_type == "stream":
            text = output.text.replace("\r\n", "\n")  # ipykernel runs !commands on a terminal, which adds returns
            output.text = nbclient.client._RGX_CARRIAGERETURN.sub("", text) if "\r" in text else text
    return actual
