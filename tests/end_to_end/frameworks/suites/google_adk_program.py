"""Agents of the ADK with a scripted model, whose code runs in sessions; prints what they and the artifact service got."""

from __future__ import annotations

import asyncio
import copy
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.code_executors.base_code_executor import BaseCodeExecutor
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, File
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from kernelexec import Executor
from kernelexec.adapters.google_adk import SessionCodeExecutor


class Scripted(BaseLlm):  # type: ignore[misc] # the ADK is in no environment of the tests
    """A model that answers with the given texts, one after the other."""

    texts: list[str] = []  # noqa: RUF012 - copied by pydantic

    async def generate_content_async(self, *_: Any, **__: Any) -> AsyncIterator[LlmResponse]:
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=self.texts.pop(0))]))


async def converse(executor: BaseCodeExecutor, session_id: str, *codes: str, data: bytes | None = None) -> dict[str, Any]:
    """Run an agent that sends these cells; return the results that it got, and the artifacts."""
    model = Scripted(model="scripted")
    model.texts[:] = [*(f"```python\n{code}\n```" for code in codes), "done"]
    runner = InMemoryRunner(LlmAgent(name="agent", model=model, code_executor=executor), app_name="app")
    keys = {"app_name": "app", "user_id": "user", "session_id": session_id}
    await runner.session_service.create_session(**keys)
    parts = [types.Part(text="go"), *([types.Part.from_bytes(data=data, mime_type="text/csv")] if data else [])]
    results: list[Any] = []
    message = types.Content(role="user", parts=parts)
    async for event in runner.run_async(user_id="user", session_id=session_id, new_message=message):
        outcomes = (part.code_execution_result for part in event.content.parts or [] if event.content)
        results += [[outcome.outcome.name, outcome.output] for outcome in outcomes if outcome]
    names = await runner.artifact_service.list_artifact_keys(**keys)
    artifacts = {name: await runner.artifact_service.load_artifact(filename=name, **keys) for name in names}
    kinds = {name: [part.inline_data.mime_type, len(part.inline_data.data)] for name, part in artifacts.items() if part}
    return {"results": results, "artifacts": kinds}


async def main() -> None:
    kind, workspace, image = sys.argv[1:]
    answers: dict[str, Any] = {}
    with Executor(kind, workspace=workspace, config={"container": {"image": image}}) as executor:
        stateful = SessionCodeExecutor(executor, optimize_data_file=True, timeout_seconds=100)
        figure = "import matplotlib.pyplot as plt\nplt.plot([1, 2]);\nopen('user:n.csv', 'w').write('n\\n1\\n')"
        codes = ("import warnings\nx = 41; warnings.warn('careful')", f"print(x + 1)\n{figure}", "x / 0")
        answers["first"] = await converse(stateful, "one", *codes, data=b"n,m\n1,2\n")
        answers["again"] = await converse(stateful, "one", "x", "import os; os._exit(1)", "'x' in globals()")
        answers["other"] = await converse(stateful, "two", "'x' in globals()")
        answers["slow"] = await converse(SessionCodeExecutor(executor, timeout_seconds=1), "one", "import time; time.sleep(60)")
        fresh = SessionCodeExecutor(executor, stateful=False)
        answers["fresh"] = await converse(fresh, "three", "x = 1", "'x' in globals()")
        answers["open"] = len(executor.sessions())
        answers["copied"] = copy.deepcopy(stateful) is stateful
        outside = CodeExecutionInput("1", input_files=[File("../outside", b"")], execution_id="one")
        answers["refused"] = stateful.execute_code(None, outside).stderr
    answers["closed"] = stateful.execute_code(None, CodeExecutionInput("1", execution_id="one")).stderr
    print(json.dumps(answers))


asyncio.run(main())
