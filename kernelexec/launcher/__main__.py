"""The launcher's command line: ``python <this directory> ...``, also where the rest of kernelexec is not installed.

- ``-f CONNECTION_FILE`` runs a kernel.
- ``--guard COMMAND...`` runs the command of another kernel and ends the kernel with its owner. With ``--guard-alone`` instead,
  only the guard gets signals, and hands them on to its group.
- ``--confined COMMAND...`` confines this process and executes a command to start one of our kernels.
- ``--forkserver FD`` imports modules and forks kernels on request of the process at the other end of FD.
- ``--container-init SOCKET -f CONNECTION_FILE`` forks one kernel, and others on request of the process listening at SOCKET.
- ``--relay DIRECTORY`` connects its standard streams with the sockets of a kernel in the directory.
- ``--one-shot DIRECTORY`` does one task, described by a file in the directory, and ends.
- ``--user-command NAMES COMMAND`` runs a shell command as this process's user, with the user's own HOME, USER and LOGNAME
  unless they are among the comma-separated names; ``--end-command MARK`` ends all processes of a command.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

here = Path(__file__).resolve().parent
sys.path[:] = [entry for entry in sys.path if entry != str(here)]
# The package is found here and not on the path, where its neighbours would hide modules of the standard library.
package = sys.modules[here.name] = ModuleType(here.name)
package.__path__ = [str(here)]
# First of all: a parent may have blocked or ignored SIGINT and SIGTERM, and all programs below inherit that.
import_module(f"{here.name}.platform").reset_signals()
protocol = import_module(f"{here.name}.protocol")
programs = {
    protocol.GUARD_FLAG: "launch.guard",
    protocol.GUARD_ALONE_FLAG: "launch.guard",
    protocol.CONFINED_FLAG: "sandbox.confinement",
    protocol.FORKSERVER_FLAG: "launch.forkserver",
    protocol.CONTAINER_INIT_FLAG: "launch.container_init",
    protocol.RELAY_FLAG: "launch.relay",
    protocol.ONE_SHOT_FLAG: "launch.one_shot_task",
    protocol.USER_COMMAND_FLAG: "processes.command",
    protocol.END_COMMAND_FLAG: "processes.command",
}
flag, *arguments = sys.argv[1:] or [""]
name = programs.get(flag, "launch.kernel_app")
collects_garbage = gc.isenabled()
gc.disable()  # collections find little while modules are imported
program = import_module(f"{here.name}.{name}")
if collects_garbage:
    gc.enable()

if name == "launch.guard":
    program.main(arguments, alone=flag == protocol.GUARD_ALONE_FLAG)
elif name == "processes.command":
    program.main(flag, arguments)
else:
    program.main(sys.argv[1:] if name == "launch.kernel_app" else arguments)
