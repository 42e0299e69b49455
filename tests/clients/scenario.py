"""What each client does: the calls of a model, and what the model must read in their answers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_FRAME = 'import pandas\nframe = pandas.DataFrame({"city": ["Ulm", "Bonn"], "people": [128, 335]})\nframe'
_PICTURE = "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2])\nplt.show()"
_LONG = 'import time\nprint("begun")\ntime.sleep(3)\nprint("slept")'
_ID = re.compile(r"execution_id=?[\"': ]*([0-9a-f-]{8,36})")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model got for one call."""

    text: str
    pictures: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """A call of the model; ``words`` must be in the answer's text, ``pictures`` tells whether it has one."""

    title: str
    tool: str
    arguments: dict[str, Any]
    words: tuple[str, ...]
    pictures: bool = False

    def call(self, before: Sequence[Answer]) -> tuple[str, dict[str, Any]]:
        """Return the tool and its arguments, which may name the execution of the call before."""
        if self.tool != "wait_execution":
            return self.tool, self.arguments
        match = _ID.search(before[-1].text) if before else None
        return self.tool, {"execution_id": "unknown" if match is None else match[1]}

    def lacks(self, answer: Answer | None) -> list[str]:
        """Return what the model did not get."""
        if answer is None:
            return ["the answer"]
        text = _unescape(answer.text)
        lacking = [word for word in self.words if word not in text]
        return lacking + (["the picture"] if self.pictures and not answer.pictures else [])


STEPS = (
    Step("frame", "execute_code", {"code": _FRAME}, ("[ok · ", "state kept]", "Bonn")),
    Step("same session", "execute_code", {"code": 'int(frame["people"].sum())'}, ("[ok · ", "463")),
    Step("picture", "execute_code", {"code": _PICTURE}, ("[ok · ",), pictures=True),
    Step("failing cell", "execute_code", {"code": "1 / 0"}, ("[error · ", "state kept]", "ZeroDivisionError")),
    Step("long cell", "execute_code", {"code": _LONG, "wait": 0.5}, ("[running", "execution_id")),
    Step("wait", "wait_execution", {}, ("[ok · ", "slept")),
)


def _unescape(text: str) -> str:
    """Return a text that an adapter may have written as JSON, once or twice, as the model reads it."""
    for _ in range(2):
        if "\\u00b7" in text or '\\"' in text or "\\n" in text:
            text = re.sub(r"\\u[0-9a-f]{4}|\\[nt\"\\]", lambda match: json.loads(f'"{match[0]}"'), text)
    return text
