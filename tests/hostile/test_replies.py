"""A kernel may say anything of itself in the reply to a cell: the call returns, and the session goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kernelexec import Session
from kernelexec.launcher.protocol import ReplyMetadata
from tests.hostile.messages import VALUES
from tests.support.pace import slow
from tests.support.peak_memory import forget_peak, peak_bytes

ALSO_CONFINED = ()
#: Without it a reply counts as none.
FIELDS = sorted(ReplyMetadata.__annotations__.keys() - {"token"})
#: Puts a value in the place of a field of the next cell's reply, or of its content.
LIE = """
import json
kernel = get_ipython().kernel
if not hasattr(kernel, 'true_metadata'):
    kernel.true_metadata, kernel.true_send, kernel.lies = kernel.finish_metadata, kernel.session.send, {{}}
    def finish_metadata(parent, metadata, content):
        metadata = kernel.true_metadata(parent, metadata, content)
        lies = kernel.lies.pop(kernel.shell.execution_count - 1, None)
        if lies is not None:
            metadata['kernelexec'].update(lies)
        return metadata
    kernel.finish_metadata = finish_metadata
kernel.lies[kernel.shell.execution_count + 1] = {lie}
"""


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_of_the_wrong_kind_harms_no_call(session: Session, field: str) -> None:
    lies: list[Any] = [*VALUES, 2**63, 10**20, float("nan"), float("inf")]
    for lie in lies:
        session.execute(LIE.format(lie=f"json.loads({json.dumps({field: lie})!r})"), timeout=slow(20))
        result = session.execute("'fine'", timeout=slow(20))
        assert result.status in ("ok", "error"), lie
        assert isinstance(result.to_json(), str)
    session.restart()
    assert session.execute("40 + 2").text == "42"


def test_a_result_keeps_no_reply(session: Session) -> None:
    session.execute("1")
    before = forget_peak()
    for _ in range(25):
        session.execute(LIE.format(lie="{'work_dir': 'x' * 8_000_000}"), timeout=slow(20))
        assert session.execute("'fine'", timeout=slow(20)).ok
    assert peak_bytes() - before < 100 * 2**20
