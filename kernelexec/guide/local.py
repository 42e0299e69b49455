r"""Kernels on this machine: what confines them, and what nothing stops there.

## Without a container

A local kernel, all that it starts, and every kernel that is forked, is confined before any cell runs, without root, by
what this Linux has: Landlock (5.13 or newer; 6.12 for signals), no new privileges, and for root no capability but
reading and writing others' files. `result.confinement` names the layers, `kernelexec doctor` shows them, what is
lacking is said by the first result's `notes`. `Config(confinement={"level": "required"})` starts no kernel where
something is lacking, `"off"` confines none.

```python
from kernelexec import Executor

with Executor("local", config={"confinement": {"network": False}}) as executor:
    session = executor.session("fenced")
    print(session.execute("open('/tmp/elsewhere', 'w')").error.ename)  # PermissionError
    print(session.execute("import tempfile; tempfile.TemporaryFile().write(b'here')").text.strip())  # 4
    print(session.execute_command("ls ~ > here; echo $?").stdout.strip())  # 0
    print(session.execute("import socket; socket.socket()").status)  # error
```

What stops what is the README's table of that name.

What nothing stops there: reading any other file that you can read; names and sizes of all files; `chmod`, `chown`,
times and extended attributes of your own files; unix sockets with a path (an engine's, a desktop's bus, other kernels',
which let no cell in but tell their output to who connects: unless `network=False`, which refuses every `connect`, so
also `multiprocessing.Manager`); terminals of yours, what is typed there and the answers to `--ask` included; the
priority of your processes; workspaces that were given as `work_dir`, to read; `/dev/shm`; the amount of memory,
processor time and disk. Rights to read are given for what was there when the kernel started: a file that comes later
beside something hidden (in your home, or in `/tmp` where private directories are there) cannot be read. Attacks on the
kernel of the machine are out of scope. What kernelexec itself is loaded from (its environment, your script's directory)
is not kept from a cell whose workspace it lies in: the first result says so, `level="required"` starts none there, and
bubblewrap and containers mount it read only. Do not nest sessions' `work_dir`s if one must not change what another
reads. Packages go into a virtual environment in the workspace, since the interpreter's own directory cannot be written:
see `session.install`.

`isolation="bubblewrap"`, where the package bubblewrap (0.8 or newer) is installed, puts the same kernel into namespaces
of its own too: no process, network (`confinement.network=True` shares the machine's), temporary file or shared memory
of anybody else; of homes, `/run`, `/srv` and other file systems only its workspace, the interpreter and what `readable`
and `writable` name. Each kernel is started by itself, without the fork server and idle kernels. Left are the machine's
kernel, the files outside of those directories, to read, and the amounts: no limit of memory and processors.
"""
