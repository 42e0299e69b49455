r"""Time and output: budgets, bounds, and how to read on.

## Time

| budget | what it means | default |
| --- | --- | --- |
| `wait` | how long this call blocks; then the result so far comes back with status `running` and the cell goes on | no bound |
| `timeout` | how long the cell may run from its start, whatever it prints | 60 s |
| `grace` | how long each rung of the ladder may take | 1 s |

A cell over its timeout is ended by a ladder whose rungs, but the last, keep the state: `interrupt` (control channel),
`signal` (SIGINT from outside), `cancel` (a stuck top-level `await`), `command` (SIGKILL to what the cell started),
`kill` (every thread's stack goes into the result, then the kernel is replaced). The result names the rung.
`wait_for(execution_id, cursor=..., wait=...)` takes a running cell up again, `executions()` lists what can be taken up,
and a cell that still waits for its turn is cancelled by `interrupt(execution_id)` at once.

## Input

`input()` is an error at once unless the call says who answers; the time until the answer is not the cell's, and none
within `budgets.approval` (300 s) is an `EOFError`:

```python
from kernelexec import Executor, InputRequest

def answer(request: InputRequest) -> str:
    return "Ada" if request.prompt == "Name? " else ""

with Executor(isolation="local") as executor:
    result = executor.session("form").execute("print('Hello', input('Name? '))", on_input=answer)
    print(result.text.splitlines()[-1])  # Hello Ada
```

## Output

Each of stdout and stderr keeps 1 MiB in the result, head and tail; what is over goes to a private spill file, up to 256
MiB a cell: `read_output(execution_id, offset=..., limit=..., grep=...)`. Progress bars (`\r`) collapse to their last
state. Displays keep their media types; pictures and HTML tables are saved under `outputs/` of the workspace, and
`result.files` lists every file that the cell made or changed. Output of a thread or program after its cell has ended is
kept apart in `result.late`, and the running cell's `notes` say so. What a cell printed just before its kernel died is
in its result. Every session writes its notebook, `<name>.ipynb`, or the first free name beside it (`session.notebook`):
some milliseconds after each result, of many quick cells ten times a second; `session.save_notebook()` returns once all
are in it.

Shell magics work as in Jupyter: `!cmd`, `%%bash`, `%%sh`, `%sx` start in the kernel's directory and nothing of them
lasts. `execute_command` is a shell of the session: its `cd` and `export` last until the kernel is replaced. Both
stream, keep stdout and stderr apart, and run in a process group of their own that is ended as a whole.

A server, a watcher or a long job runs beside the cells, under the same rules and in the same place, until it is ended
or its kernel is (`lost`, then):

```python
from kernelexec import Executor

with Executor(isolation="local") as executor:
    session = executor.session("web")
    served = session.start_background("echo ready; sleep 300")
    session.execute("import time; time.sleep(0.2)")
    print(session.background_output(served.command_id).stdout.strip())  # ready
    print(session.kill_background(served.command_id).status)  # killed
```
"""
