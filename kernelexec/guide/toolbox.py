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
print(shown())  # [('', True), ('10', True), ('', True), ('20', True)]
```

Off unless asked for (`cache=True` keeps results in the user's cache directory). A result is found where a kernel that
began alike (interpreter, packages, settings, variables, place) has run the same cells with the same outputs, in a
workspace with the same files, in whatever process, and only as far as every cell before it was found: all that is
found comes of one run, so it is never the value of another state. A cell that was found has not run yet: it runs, in order, before the first cell that is not found and before anybody looks at the kernel
(`variables`, `complete`, `snapshot`, `run_tests`, a command, a file that is written); one that ends otherwise then is
told and forgotten. Failures, timeouts, cut output, commands, what makes files, deletes, sends, or depends on the clock,
on unseeded chance, on the network, on other programs or on modules in the workspace as far as its text shows, and
sessions with `secrets`, are never kept; nor is anything while a link of the workspace leads to a directory outside. What else a cell reads outside
of the workspace and `context_paths`, and what a library draws by itself, is not seen.
Whoever attaches by `connection_file` sees the kernel as it is.

## Guidance

`session.guidance()` is text for a system prompt, made of the session as it is: where code runs, its system, Python and
packages, network, limits, virtual environment, prefix and rules, and what belongs into an answer (what results mean,
files by their names, the analysis itself). `session.debugging()` is a prompt that has a model mend the newest failed
cell, or one by its `execution_id`, in five steps: analyse, root cause, fix, corrected code, explain; with the code, its
output and the diagnosis. Over MCP they are the prompts `guidance` and `debug`, and the server's instructions have what
is known before a session is opened; `kernelexec guidance` prints the first.
"""
