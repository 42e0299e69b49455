"""The part of a model for clients that have none: a script that makes the calls itself."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from http.client import HTTPConnection
from typing import Any

from tests.clients.scenario import STEPS, Answer


async def play(tools: Sequence[str], call: Callable[[str, dict[str, object]], Awaitable[Answer]]) -> None:
    """Make the calls of the scenario by ``call``, and report the names of the tools and the answers."""
    answers: list[Answer] = []
    for step in STEPS:
        answers.append(await call(*step.call(answers)))
    _report({"tools": list(tools), "answers": [asdict(answer) for answer in answers]})


def read_blocks(content: Sequence[Any]) -> Answer:
    """Return what the content blocks of a tool's answer give a model."""
    texts = [block.text for block in content if block.type == "text"]
    return Answer("".join(texts), sum(block.type == "image" for block in content))


def _report(seen: dict[str, object]) -> None:
    connection = HTTPConnection(os.environ["MODEL"].removeprefix("http://"), timeout=60)
    connection.request("POST", "/answers", json.dumps(seen))
    connection.getresponse().read()
    connection.close()
