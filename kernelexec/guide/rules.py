r"""Rules, validators and approval: what may run.

## Rules

Rules are manners: they keep an agent from what it did not mean to do. They see what a cell says, not what a program
does; the container is the wall. A cell that they refuse never runs: `status` is `aborted`, `exit_code` -1, and
`diagnosis` and `notes` name the rule, the command and what would be allowed.

Dangerous commands are refused unless `Config(rules={"dangers": False})`: `rm -rf` of `/`, of a directory of the system
or of a home, `mv` to `/dev/null`, `dd`, writes to disks, fork bombs, `mkfs` and its like; and, unless `container.sudo`
is on, `sudo`, `su`, `chown` and `chmod`. `rules.allowed_commands` and `rules.blocked_commands` (`--allowed-commands`,
`--blocked-commands`) are regular expressions, matched from the beginning of each simple command; `match="prefix"`
matches the whole text only.

Commands are told by bash's grammar, in `execute_command`, `!cmd`, `%%bash`, `%sx`, `%system`, `os.system` and
`subprocess` with plain words; also behind `env`, `xargs`, `sh -c`, `find -exec`, pipes and `$( )`. Where only the
running shell can know which program is meant, or what a shell is to run (`curl … | sh`), the cell is refused. What code
starts without saying so beforehand (`os.system`, `subprocess`, `os.exec…`, `os.posix_spawn`, `pty`, magics that code
calls) is judged when it does, by an audit hook that asks the kernel's owner: `PermissionError`, and a note. Scripts in
files, what a started program starts, forked children and compiled code are not seen.

`rules.code="tutorial"` refuses in Python what AG2's tutorials refuse, judged on the syntax tree: importing `os`,
`subprocess`, `sys`, `requests`, `urllib`, `socket` and `http`, and using `exec`, `eval`, `open`, `file`, `__import__`,
`globals` and `locals`; `rules.forbidden_modules` and `rules.forbidden_names` add more, or stand alone.

What rules do not decide, you can: **validators** are functions of each cell, called one after the other before it runs,
that allow, deny, rewrite it or have somebody asked; an **approver** is who is asked, about what they want to know,
about what the rules refuse (`rules.ask="refused"`), or about every cell (`"always"`). Both may be plain or coroutine
functions. What they raise, and no answer within `budgets.approval` (300 s), is a no; waiting for them counts in no
budget of the cell. A cell that was approved against the rules may start what they refuse. `raise_for_error()` raises
`SecurityError` for what was refused.

```python
from kernelexec import Ask, Deny, Executor, Rewrite


def careful(proposal):
    if "password" in proposal.source:
        return Deny("it asks for a password")
    if "requests" in proposal.source:
        return Ask("it uses the network")
    return Rewrite(proposal.source.replace("colour", "color")) if "colour" in proposal.source else None


with Executor("local", validators=[careful], approver=lambda request: False) as executor:
    session = executor.session("careful")
    print(session.execute("'the colour'").text.strip())  # 'the color'
    print(session.execute("password = 1").status)  # aborted
    print(session.execute("import requests").diagnosis.kind)  # refused
```

On the command line `--ask refused` or `--ask always` asks you at the terminal, whatever stdin is; `kernelexec mcp --ask
...` asks the client's user by elicitation, in both revisions of the protocol that have it.
"""
