"""The part of a model for clients that have none: a script that makes the calls itself."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict

from tests.clients.scenario import STEPS, Answer


async def play(tools: Sequence[str], call: Callable[[str, dict[str, object]], Awaitable[Answer]]) -> None:
    """Make the calls of the scenario by ``call``, and report the names of the tools and the answers."""
    answers: list[Answer] = []
    for step in STEPS:
        answers.append(await call(*step.call(answers)))
    report = json.dumps({"tools": list(tools), "answers": [asdict(answer) for answer in answers]})
    request = urllib.request.Request(f"{os.environ['MODEL']}/answers", report.encode(), method="POST")
    with urllib.request.urlopen(request, timeout=60) as answered:
        answered.read()
