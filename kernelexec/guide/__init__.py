"""The guide: what there is, in the words of its users; a page is the docstring of a module.

- `kernelexec.guide.places`: Where code runs: containers, this machine, idle kernels.
- `kernelexec.guide.containers`: Containers: what they are given, their options, images, root in them.
- `kernelexec.guide.local`: Kernels on this machine: what confines them, and what nothing stops there.
- `kernelexec.guide.rules`: Rules, validators and approval: what may run.
- `kernelexec.guide.secrets`: Secrets by reference: what kernels know and nobody is shown.
- `kernelexec.guide.jupyter`: Container kernels for JupyterLab, nbclient and papermill.
- `kernelexec.guide.output`: Time and output: budgets, bounds, and how to read on.
- `kernelexec.guide.toolbox`: Tests, retries, statistics, guidance, and results that are found again.
- `kernelexec.guide.environments`: Environments and packages: what commands find and cells import.
- `kernelexec.guide.languages`: Languages beside Python.
- `kernelexec.guide.looking`: Looking into a live session, from this process or another.
- `kernelexec.guide.memory`: What a session remembers, and how it is taken up again.
- `kernelexec.guide.files`: Files of a workspace without a cell.
- `kernelexec.guide.frameworks`: Adapters for AG2, AutoGen, smolagents, LangChain, Pydantic-AI, fastmcp and OpenTelemetry.
- `kernelexec.guide.configuration`: Configuration files in YAML.
- `kernelexec.guide.serving`: The server of MCP: who is served, over what, for how long.
- `kernelexec.guide.systems`: Other systems than Linux.
"""
