r"""Files of a workspace without a cell.

## Files

An agent's files can be listed, read, written and deleted without a cell, also while one runs: `session.files`, four
tools of MCP, `kernelexec files`.

```python
from kernelexec import Executor, FileRefused

with Executor(isolation="local") as executor:
    session = executor.session("drafts")
    session.files.write("notes/plan.md", "1. read the data\n")
    session.execute("open('notes/found.md', 'w').write('by a cell')")
    print(session.files.list("notes").paths)  # ('notes/found.md', 'notes/plan.md')
    print(session.files.read("notes/plan.md", limit=6).next_offset)  # 6
    print(len(session.files.read_bytes("notes/plan.md", limit=6).content))  # 6
    try:
        session.files.delete("notes", recursive=True)
    except FileRefused as refused:
        print(refused)  # notes holds 1 file that has not been read: notes/found.md. Read before deleting.
    session.files.read("notes/found.md")
    print(session.files.delete_many("notes/*.md").deleted)  # ('notes/found.md', 'notes/plan.md')
```

A path is relative to the workspace, or absolute in it or in a context path, as kernels see it. It is opened when it is
used, by Linux itself beneath that directory (`openat2`; elsewhere part by part): no link is followed in any part of it,
whoever swaps names meanwhile; `..`, `~`, pipes, devices, hard links and what is mounted below are refused, with the
reason. A name is its bytes. A read is 1 MiB at most and says where to read on; a write is there as a whole or not at
all (`append=True` adds). `Config(files=...)` has the bounds.

Deleted is only what these operations have read or made (`files.read_before_delete`), or what tools make again:
`__pycache__`, `*.log`, `build` and 18 more. The workspace itself, `.git`, `.env`, `venv`, `node_modules` and the like
stay. `delete_many(include, exclude)` says what went and what did not, and why. `session.files.tracker` is what was
read; clear it at each turn of a conversation if you want it to count for one. What a cell reads or makes, it does not
know. A person's `kernelexec files delete` need not have read anything.

`Config(context_paths=[{"path": "data"}, {"path": "shared", "permission": "write", "protected_paths": ["golden"]}])`:
directories or files that kernels see besides their workspace, to read unless said otherwise, as other agents' outputs;
of those in each other the deeper counts. Containers have them at their own paths, or at `/context/<name>`; they and
bubblewrap mount what is protected over what can be written. On this machine Landlock gives rights to all beside a
protected path: nothing new is made, removed or renamed in the directories that it is in. A path in the workspace cannot
be read only there. What is hidden (keys, other sessions) stays hidden in a context path, for file operations too.

`--context data --context shared:rw` names them on the command line. `Config(allowed_paths=[...])`, or
`--allowed-paths`: where a session's `work_dir` may lie, links resolved.
"""
