"""``python <this directory> -f CONNECTION_FILE`` starts a kernel, also where the rest of kernelexec is not installed."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path[:] = [str(here.parent), *(entry for entry in sys.path if entry != str(here))]
app = import_module(f"{here.name}.app")
sys.path.remove(str(here.parent))

app.main(sys.argv[1:])
