r"""Tests, retries, statistics, guidance, and results that are found again.

## Tests, retries, statistics

```python
from kernelexec import Executor

with Executor(isolation="local") as executor:
    session = executor.session("toolbox")
    code = "def half(n):\n    return n / 2"
    report = session.run_tests(code, ["half(4) == 2", "half(1) == 1", "half('a')", "import os; os._exit(0)"])
    print(report.summary)  # 1 PASS, 1 FAIL, 2 ERROR
    print(report.cases[1].verdict, report.cases[3].message)  # FAIL It ended its process, with exit code 0.
    tried = session.execute_with_retry("1 / 0", lambda attempts: "print('mended')")
    print([(attempt.attempt, attempt.success) for attempt in tried.attempts])  # [(1, False), (2, True)]
    print(session.statistics.count, session.statistics.success_rate)  # 2 0.5
```

`run_tests` runs the code and each case behind it in processes of their own, forked from the kernel: they see the
session's variables and change none, and what raises, hangs or exits costs no other case. A case is an expression that
must be true (`None` is not, unless it is a call of something named `assert…`, `check…`, `expect…`, `test…` or `verify…`, or
a magic), statements with `assert`, or appends to `test_results`. It takes the session's turn, the rules, validators and
approver decide about it, the journal has its report and no notebook does. All processes that it started end with it. Files
on disk, the positions of open files and shared memory are the session's own: what a case does to them stays.

`execute_with_retry` asks `fix`, a plain or coroutine function, for the next version after each failure, `max_retries`
tries in all; success is the status, never a word in the text. `between="restore"` brings the variables back first,
`"restart"` begins with an empty kernel. `result.diagnosis` says of every failure its kind, a cause, hints, the lines of
cells that it came by, the package that brings a missing module, and that the network is off where that is why.

`session.statistics` has each of the newest thousand calls (time, timeout, profile and limits, processor time, peak of
memory, bytes of output) and all together (count, share that ended well, p50 and p95); `kernelexec log NAME
--statistics` shows the same of a journal.

## Results found again

```python
from kernelexec import Executor


def shown():
    with Executor(isolation="local", config={"cache": "../results-cache"}) as executor:
        session = executor.session("cached")
        results = [session.execute(cell) for cell in ("x = 1", "x * 10", "x = 2", "x * 10")]
        return [(result.text.strip(), result.cached) for result in results]


print(shown())  # [('', False), ('10', False), ('', False), ('20', False)]
print(shown())  # [('', False), ('10', True), ('', False), ('20', True)]
```

Off by default; `cache=True` keeps results in the user's cache directory. A result is stored only for a cell that
succeeded, bound no name, changed no file and, by its syntax, changed no object: it reads plain data (Python's types,
numpy, pandas) and calls builtins, methods and functions of earlier cells that only compute. So `f()` and
`df.describe()` can be stored, `items.append(1)`, `random.random()`, `open(...)`, imports and commands cannot. The key
is the environment (interpreter, packages, settings), all cells of the kernel so far, and the values of the variables
that the cell reads: a cell never gets a result of another state, in whatever process. A hit is returned without running
the cell. Nothing has to run later, but `_`, `Out` and the execution count do not know the cell. Sessions with `secrets`,
a kernel taken over from a dead owner, and a kernel after a snapshot, an installation or tests store nothing.

## Guidance

`session.guidance()` is text for a system prompt, made of the session as it is: where code runs, its system, Python and
packages, network, limits, virtual environment, prefix and rules, and what belongs into an answer (what results mean,
files by their names, the analysis itself). `session.debugging()` is a prompt that has a model mend the newest failed
cell, or one by its `execution_id`, in five steps: analyse, root cause, fix, corrected code, explain; with the code, its
output and the diagnosis. Over MCP they are the prompts `guidance` and `debug`, and the server's instructions have what
is known before a session is opened; `kernelexec guidance` prints the first.
"""
