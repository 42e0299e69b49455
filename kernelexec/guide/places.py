r"""Where code runs: containers, this machine, idle kernels.

## Where code runs

In containers, unless you choose otherwise. **With Docker**, build the image once, then use it:

```console
kernelexec image build agent                  # Python, the data stack, git, node, a compiler; minimal, data-science, web and ml are smaller
kernelexec exec '1 + 1' --isolation container # the same as without --isolation, but that it also counts inside of a container
```

```python
from kernelexec import Executor

with Executor("container", config={"container": {"image": "kernelexec/data-science"}}) as executor:
    session = executor.session("analysis")
    session.execute("import pandas as pd\nframe = pd.DataFrame({'n': [20, 22]})")
    print(session.execute("frame.n.sum().item()").text.strip())  # 42
    print(session.execute("import os; os.listdir('/sys/class/net')").text.strip())  # ['lo']
```

**Without Docker**, or for code that you would run by hand: `isolation="local"` (or `use_docker=False`, or
`KERNELEXEC_USE_DOCKER=0` for all; `AUTOGEN_USE_DOCKER` is honoured too). Where no engine answers and nothing was
chosen, construction fails before anything runs, with the cause and these ways out; there is no silent fallback. Local
code runs **as you**, behind a fence where Linux has one: see "Without a container" below. The environment is scrubbed
of what looks like a secret (by name and by value; `Config(environment=...)` names exceptions), the kernel has its own
session and process group, resource limits (`Config(limits=...)`), private sockets (0700), and everything it started
ends with it. It is convenience, not a wall. Local kernels are forked from a process of their executor that imports
ahead what they need, and numpy, pandas and matplotlib where they are there (`Config(preload=...)`): they share its
memory and nothing that can be written. `Config(fork_server=False)` starts each by itself.

**Idle kernels** can serve before anybody asks: `Config(pool={"size": 4})` keeps so many, and a session takes one, with
its directory, environment and name.

```python
from kernelexec import Executor

with Executor("local", config={"pool": {"size": 2, "policy": "wait"}}) as executor:
    print(executor.session().execute("6 * 7").text.strip())  # 42
```

They are replaced in the background, when they die, and after `max_age` (3600 s), as long as they together take no more
than `memory_bytes` (a quarter of the machine's). Where none is ready, `policy` says what a session does: `temporary`
starts a kernel for it, `wait` waits for the next one, `fail_fast` raises `CapacityReached`. In containers that needs
`container.layout="classic"`. Idle kernels are for sessions whose workspace is new and made by us: others start cold,
and their first result's `notes` say so.

**In a container already**, kernels run in it (`isolation: "container-host"` in results), unless `isolation="container"`
or `KERNELEXEC_FORCE_CONTAINER=1` asks for containers of their own. `kernelexec doctor` says what is in force here, why,
and what works.
"""
