r"""What a session remembers, and how it is taken up again.

## Memory of what happened

Every session keeps a journal, `.journals/<name>.jsonl` in the executor's workspace (`session.journal`), out of its
kernels' way: a line of JSON for each cell before it is sent and when it has ended, each refusal, each kernel that comes
or goes, written as it happens. A line is there as a whole or not at all; one that its writer was killed in (SIGKILL) is
passed over by who reads, and cut off by the next owner; 64 MiB are kept (`Config(capacity=...)`), the oldest quarter
goes first. Where the disk is full, cells run on and their results say that they are not recorded. `kernelexec log`
shows it. A second process with a session of the same name keeps `<name>@2.jsonl`. The commands `run`, `exec` and `repl`
keep none.

With a `request_id` a cell runs once, however often it is sent: a retry joins it while it runs, and gets its first
result later, also from another process after this one has died: with `state=lost` if the kernel that it ran in has
ended since. Where nobody can know what became of it (its owner was killed amid it, its lines are gone), the status is
`unknown` and it is not run again. What a journal no longer holds, a process that opens the session later cannot know:
there it is a new request. A request that the journal cannot take, on a full disk, is refused: without a `request_id`
the cell runs.

```python
import uuid
from kernelexec import Executor

with Executor(isolation="local") as executor:
    session, request_id = executor.session("counter"), uuid.uuid4().hex
    for attempt in range(20):
        session.execute("count = globals().get('count', 0) + 1", request_id=request_id)
    print(session.execute("count").text.strip())  # 1
```

## Resume

A notebook, a script with `# %%` cells, or an earlier session's journal is opened as a session: its cells are replayed
in order, and `session.replay` says of each what became of it: `repeated` (a cell that fails as it did before counts),
`failed`, `unsafe`, `unfinished` (it had been ended), `skipped` (it had never run).

```python
from kernelexec import Executor

with Executor(isolation="local") as executor:
    session = executor.session("work")
    session.execute("x = 40")
    session.execute("import os; os.remove('draft.txt')")

with Executor(isolation="local") as executor:
    again = executor.session("again", notebook=session.journal)
    print(again.execute("x + 2").text)  # 42
    print([cell.outcome for cell in again.replay.cells])  # ['repeated', 'unsafe']
```

Not repeated unless `repeat_unsafe=True`: what sends, deletes, moves, adds to files, writes to databases, starts
programs, asks for input or ends the kernel, every shell command that is not known to be harmless, and what is neither
Python nor shell. Only what the text shows is judged. A cell that ends the kernel ends the replay.

`session.snapshot()` saves variables, each pickled by the kernel into a file of its own under `.kernelexec/` of the
workspace, and says which could not be saved and why; `session.restore(snapshot)` loads them in a kernel, never in your
process. Objects that variables share come back as separate copies.
"""
