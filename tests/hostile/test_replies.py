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
FINE = "'fine'"
#: Puts values in the place of fields of the next replies to such cells, one for each of them.
LIE = """
import json
kernel = get_ipython().kernel
if not hasattr(kernel, 'true_metadata'):
    kernel.true_metadata, kernel.lies = kernel.finish_metadata, []
    def finish_metadata(parent, metadata, content):
        metadata = kernel.true_metadata(parent, metadata, content)
        if kernel.lies and parent['content']['code'] == "'fine'":
            metadata['kernelexec'].update(kernel.lies.pop(0))
        return metadata
    kernel.finish_metadata = finish_metadata
kernel.lies[:] = {lies}
"""


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.shared_session
def test_a_field_of_the_wrong_kind_harms_no_call(session: Session, field: str) -> None:
    lies: list[Any] = [*VALUES, 2**63, 10**20, float("nan"), float("inf")]
    session.execute(LIE.format(lies=f"json.loads({json.dumps([{field: lie} for lie in lies])!r})"), timeout=slow(20))
    for lie in lies:
        result = session.execute(FINE, timeout=slow(20))
        assert result.status in ("ok", "error"), lie
        assert isinstance(result.to_json(), str)
    assert session.execute("kernel.lies == []").text == "True"
    session.restart()
    assert session.execute("40 + 2").text == "42"


def test_a_result_keeps_no_reply(session: Session) -> None:
    session.execute("1")
    before = forget_peak()
    session.execute(LIE.format(lies="[{'work_dir': 'x' * 8_000_000}] * 16"), timeout=slow(20))
    for _ in range(16):
        assert session.execute(FINE, timeout=slow(20)).ok
    assert session.execute("kernel.lies == []").text == "True"
    assert peak_bytes() - before < 100 * 2**20
