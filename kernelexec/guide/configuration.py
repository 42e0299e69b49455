r"""Configuration files in YAML.

## Configuration files

```python
from pathlib import Path

from kernelexec import Executor
from kernelexec.dialects.agents import read_agents

file = Path("agents.yaml")
file.write_text("defaults: {isolation: local}\nagents: [{id: analyst, budgets: {timeout: 20}}, {id: builder}]\n")
agents = read_agents(file)
print(list(agents))  # ['analyst', 'builder']
with Executor(config=agents["analyst"]) as executor:
    print(executor.session("analyst").execute("6 * 7").text)  # 42
```

Every option of `Config` can stand in a file, for one agent or for several, with a `code_execution_config` beside them;
thirteen examples are in `notebooks/configs`. Files in MassGen's form are taken by their own keys. A key that is not
known is an error that names the nearest.

```console
kernelexec config check agents.yaml      # where each agent's code would run, or what is wrong; nothing is started
kernelexec config schema                 # the JSON Schema, for editors
```
"""
