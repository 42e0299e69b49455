"""``python <this directory> -f CONNECTION_FILE`` starts a kernel, also where the rest of kernelexec is not installed.

``python <this directory> --guard COMMAND...`` starts another kernel's command, and ends it with its owner; with
``--guard-alone`` instead, where signals are for the guard alone, it hands them on.

``python <this directory> --confined COMMAND...`` confines itself and becomes a command that starts a kernel of ours.

``python <this directory> --forkserver FD MODULE...`` imports the modules and forks kernels for who has the other end of FD;
``--warden SOCKET -f CONNECTION_FILE`` forks one, and then others for who listens at the socket, in a container.

``python <this directory> --errand DIRECTORY`` does once what a file there says, and ends.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

here = Path(__file__).resolve().parent
sys.path[:] = [entry for entry in sys.path if entry != str(here)]
# The package is found here and not on the path, where its neighbours would hide modules of the standard library.
package = sys.modules[here.name] = ModuleType(here.name)
package.__path__ = [str(here)]
programs = {
    "--guard": "guard",
    "--guard-alone": "guard",
    "--confined": "exec_confined",
    "--forkserver": "forkserver",
    "--warden": "container_init",
    "--errand": "one_shot",
}
chosen = programs.get("".join(sys.argv[1:2]), "app")
program = import_module(f"{here.name}.launch.{chosen}")

if chosen == "guard":
    program.main(sys.argv[2:], alone=sys.argv[1] == "--guard-alone")
else:
    program.main(sys.argv[1:] if chosen == "app" else sys.argv[2:])
