r"""Looking into a live session, from this process or another.

## Looking into a live session

```python
from kernelexec import Executor

with Executor(isolation="local") as executor:
    session = executor.session("analysis")
    session.execute("x = [1, 2, 3]\nimport time; time.sleep(60)", wait=0.5)
    print([variable.text for variable in session.variables(names=["x"])])  # ['[1, 2, 3]']
    session.interrupt()
    print(session.complete("x.app").matches[0])  # .append
    print(session.is_complete("def f():"))  # ('incomplete', '    ')
```

`variables()` works while a cell runs, and runs no code of the user's: values of built-in types, arrays and tables are
shown in short, of everything else the type. `complete`, `inspect` and `is_complete` are answered where cells run, so
they wait for the running cell, 4 s at most unless told otherwise. What is not answered in time, or has no living
kernel, raises `KernelNotAnswering`. `session.connection_file` lets any Jupyter client attach to the same kernel
(`jupyter console --existing FILE`); what it defines is known to the session too.
"""
