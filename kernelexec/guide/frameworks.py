r"""Adapters for AG2, AutoGen, smolagents, LangChain, Pydantic-AI, fastmcp and OpenTelemetry.

## AG2 and AutoGen

```python
from kernelexec.adapters.ag2 import CodeExecutor

said = {"role": "user", "content": "Let us see.\n```python\nprint(6 * 7)\n```"}
with CodeExecutor(code_execution_config={"use_docker": False, "timeout": 30}) as executor:
    config = executor.code_execution_config  # for UserProxyAgent(code_execution_config=config) and other agents
    print(executor.reply([said]).splitlines()[-1])  # Code output: 42
```

The dictionary is taken literally: an image, `docker_run_args`, `work_dir`, `last_n_messages`. Blocks of one
conversation share a session, so a timeout keeps what was computed; they may be Python, shell commands or any language
that the session has. A block whose first line is `# filename: x.py` is saved there too; pictures and pages become
files; `functions=[...]` can be imported by cells. `kernelexec.adapters.autogen` has the same as a component for
autogen-core 0.7 (`CodeExecutorAgent`, `PythonCodeExecutionTool`), with cancellation. The extras are `ag2` and
`autogen`.

## Other frameworks

```python
import json

from kernelexec import Executor
from kernelexec.adapters.tools import function_tools

with Executor(isolation="local") as executor:
    tools = {tool.name: tool for tool in function_tools(executor.session("tools"))}
    print(sorted(tools))  # ['execute_code', 'execute_command', 'read_output']
    print(list(tools["execute_code"].openai()["function"]["parameters"]["properties"]))  # ['code', 'timeout']
    print(tools["execute_code"].call(**json.loads('{"code": "6 * 7"}')).splitlines()[1])  # 42
```

- `kernelexec.adapters.tools`: functions with JSON Schemas, `openai()`, `anthropic()`; LangChain takes them by
  `StructuredTool.from_function(tool.call, ..., args_schema=dict(tool.parameters))`, Pydantic-AI by
  `Tool.from_schema(tool.call, tool.name, tool.description, dict(tool.parameters))`.
- `kernelexec.adapters.smolagents.PythonExecutor` (`pip install '.[smolagents]'`): `CodeAgent(executor=...)`; tools,
  variables and final answers as smolagents sends them.
- `kernelexec.adapters.sandbox.Sandbox` (`pip install '.[ag2-sandbox]'`): AG2 1.x behind its code and shell tools;
  `python -c` is a cell, so its state lasts. AG2 0.9 and 1.x do not fit into one environment.
- `kernelexec.adapters.code_mode.SandboxProvider`: a code mode with state for any fastmcp server,
  `CodeMode(sandbox_provider=SandboxProvider(session))`: code awaits the server's tools, also where it has no network. It is
  an ordinary cell that may `return` too. What it returns is JSON: DataFrames come as rows; what JSON cannot hold is an error.
- `kernelexec.adapters.tracing.Tracing` (`pip install '.[otel]'`): `Executor(hooks=[Tracing()])`, a span of OpenTelemetry for each
  cell, under the span of whoever sent it; what it took and what became of the state, and no code.
"""
