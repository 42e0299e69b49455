r"""Secrets by reference: what kernels know and nobody is shown.

## Secrets

Values are given by reference: a configuration holds names, never values. They are read when a kernel starts, set as
variables of that kernel before its first cell, and masked as `[secret NAME]` in whatever comes out again: results,
`on_output`, pages, notebook, journal, logs, hooks, saved displays, answers of MCP and of the command line.

```python
import os

from kernelexec import Executor

os.environ["SOURCE_OF_KEY"] = "sk-live-0f9a8b7c6d"
secrets = {"API_KEY": {"env": "SOURCE_OF_KEY"}}  # or {"file": "/run/secrets/key"}, or a function that returns a str

with Executor("local", config={"secrets": secrets}) as executor:
    session = executor.session("client")
    print(session.execute("import os; print(len(os.environ['API_KEY']))").text.strip())  # 18
    print(session.execute("print(os.environ['API_KEY'])").text.strip())  # [secret API_KEY]
    print(session.execute_command("echo $API_KEY | base64").stdout.strip())  # [secret API_KEY]Cg==
```

On the command line: `--secret API_KEY=env:SOURCE_OF_KEY`, `--secret API_KEY=file:/run/secrets/key` (`run`, `exec`,
`repl`, `mcp`).

A missing or unfit one (under 4 visible characters, over 64 KiB, a file that is no regular one, another user's link) is
told before any kernel starts, and shows nothing of a value. Every value that was read stays masked for the executor's
life. Forms that are found: as it is, base64 (both alphabets, at any place of a longer text, over broken lines), hex,
URL, JSON, Python, HTML and quoting of shells, CSV and SQL, line by line, with terminal colours between, in pieces of a
stream, and its beginning before an ellipsis. Values go by the kernel's own control channel (to kernels of other
languages by a pipe): no command line, no file, no `docker inspect`, no fork server and no first environment of a
kernel's process has them; what a cell starts inherits them.

It is for accidents, not against code that means to tell: whoever reverses a value, or prints it with spaces, is not
stopped; choose `network="none"` for that. Not looked into: pictures (a plot drawn as PNG shows what it shows; as SVG
text is masked, glyph outlines are not), files that cells write themselves, snapshots, HTML that parts a value by tags.
A value that a cell's own source holds reaches the kernel and is masked everywhere else; replayed from a notebook or
journal, such a cell is "unsafe", since its text is not recorded (`kernelexec run` keeps the sources of the executed
notebook as they were). A kernel that is taken over has the values that its owner gave it: if the new owner's differ by
then, those are not masked. `kernelexec variables` asks a living kernel from another process, which knows no secrets;
`session.files` gives its caller names and contents as they are. Whoever can read a session's private directory (0700)
sees the newest raw text of a running cell there (`words`).

`environment.env_file` names a file of lines `NAME=VALUE`, which goes under everything else; `environment.pass_all=True`
hands on all variables of this process, and says so. Both, as `environment.set`, are seen by who may ask the container
engine; secrets are not.
"""
