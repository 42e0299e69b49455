r"""Environments and packages: what commands find and cells import.

## Environments and packages

Commands (`execute_command`, `!cmd`, `%%bash`, `%sx`, node) find programs in this order: behind `programs.prefix` (`uv
run`, `conda run -n NAME`, put before each command as a whole; `PATH` is left alone), of `programs.venv`, of `.venv` in
the session's workspace (looked for at each command, so a cell may make it), of the machine. What a command exports or
activates itself stays. `programs.venv` that is missing is refused when the executor is made; in containers, where its
path is that in there, when the kernel starts.

Python cells keep their interpreter and import from the virtual environment too, behind what the interpreter has itself,
if it is of the same Python version. A `programs.venv` on this machine that has ipykernel and that kernels cannot write
runs them by its own interpreter; in containers `container.python` names one. With `programs.prefix_kernel=True` Python
cells on this machine run behind the prefix too, in the `python` that it finds (or the option `python`), which needs
ipykernel; it is confined before the prefix's program starts. The first result's `notes` say which it is,
`session.environment()` tells all of it.

```python
import zipfile
from kernelexec import Executor

METADATA = "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
FILES = {
    "tiny.py": "x = 42",
    "tiny-1.0.dist-info/METADATA": METADATA,
    "tiny-1.0.dist-info/WHEEL": WHEEL,
    "tiny-1.0.dist-info/RECORD": "",
}

with Executor("local", config={"confinement": {"network": False}}) as executor:
    session = executor.session("packages")
    (session.workspace / "wheels").mkdir(exist_ok=True)
    with zipfile.ZipFile(session.workspace / "wheels" / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in FILES.items():
            wheel.writestr(name, text)
    done = session.install("tiny==1.0", wheels="wheels")
    print(done.ok, *done.packages)  # True tiny 1.0
    print(session.execute("import tiny; tiny.x").text.strip())  # 42
    session.restart(fresh_venv=True)
    print(session.execute("import tiny").error.ename)  # ModuleNotFoundError
```

`session.install(packages, wheels=..., network=..., timeout=...)` fills `.venv` of the workspace (made where it is
missing; it sees what the interpreter has) by pip, beside the kernel, in a place like its own, also while a cell runs;
the state is kept, and cells find it at once. Relative paths count from the workspace. Without a network of the kernels'
own, `wheels` is a directory of wheels, or `network=True` (`"bridge"` in containers) a network for this installation
only: a process, or container, that sees nothing of the workspace gets the wheels (all that they need, also what is
there already), and another one without network installs them. A failure is a result: `exit_code`, `output`.
`.kernelexec/pylock.toml` of the workspace (PEP 751) then names all that the environment holds, with hashes where they
are known, else in its table `tool.kernelexec`; `session.rebuild(lock)` makes exactly that anew, also in another session,
or from another tool's `pylock.toml` for one environment. `session.restart(fresh_venv=True)`
empties it. What the interpreter of cells has in another version is not replaced for them: `notes` say so.
`programs.preinstall` (`system`, `python`, `npm`, in this order, 600 s each) is installed before a session's first cell;
what fails is said by the first result's `notes`.
"""
