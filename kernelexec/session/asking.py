"""What can be asked of a session beside running its cells, each part in a file of its own."""

from __future__ import annotations

from kernelexec.session.background import Background
from kernelexec.session.executions import Executions
from kernelexec.session.filing import Filing
from kernelexec.session.limiting import Limiting
from kernelexec.session.lookout import Lookout
from kernelexec.session.preinstalling import Preinstalling
from kernelexec.session.snapshots import Snapshots


class Asking(Background, Executions, Filing, Lookout, Limiting, Preinstalling, Snapshots):
    """All of them together."""
