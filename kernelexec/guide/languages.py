r"""Languages beside Python.

## Languages

```python
from kernelexec import Executor

with Executor(isolation="local") as executor:
    session = executor.session("mixed")
    session.execute("let n: number = 20", language="typescript")
    print(session.execute("n += 1; n * 2", language="typescript").text)  # 42
    code = "console.log(JSON.parse(require('fs').readFileSync(0)).n)"
    print(session.execute(code, language="javascript", stdin='{"n": 7}').text)  # 7
```

`language` is `python`, or the name or language of a kernelspec that `jupyter kernelspec list` shows (`pip install deno`
and `deno jupyter --install` for TypeScript, bash_kernel for bash, R, …): its kernel stays beside the Python one, with a
state and epochs of its own (`result.language`), and all cells of a session still run one at a time. Without such a
kernelspec `bash` and `sh` are `execute_command`, and `javascript` runs through node as a command, with `stdin`, where
the session's shell is; nothing of it lasts. What these kernels are not:

- Our launcher is not in them. `state=kept` means that the kernel's process answers after the cell; `unknown`, that a
  program which it had started before it served (the shell of bash_kernel) has ended. Names that were lost, CPU time and
  memory are not known; exit codes are 0 or 1.
- The ladder has two rungs: the interrupt that the kernelspec names, then `kill`. bash_kernel keeps its state after a
  timeout; deno 2.9 ends at the interrupt, so its state is lost, and the result says so.
- What a background job of bash_kernel prints comes with the next bash cell: its shell reads one pipe.
- deno 2.9 publishes output after it has said that the cell has ended. It is heard out until it has nothing more to say
  between two answers, 10 s at most; a single output of several MB may still come late, or with the next cell.
- Kernels in Python use unix sockets; the others listen on ports of a random loopback address (127.x.y.z), which the
  first result's `notes` say. Their requests are signed, but any user of this machine could read their output there. A
  kernelspec whose kernel knows better says `"metadata": {"kernelexec": {"transport": "ipc"}}`.
"""
