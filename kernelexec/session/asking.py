"""What can be asked of a session beside running its cells, each part in a file of its own."""

from __future__ import annotations

from kernelexec.session.culling import Culling
from kernelexec.session.filing import Filing
from kernelexec.session.guiding import Guiding
from kernelexec.session.limiting import Limiting
from kernelexec.session.preinstalling import Preinstalling
from kernelexec.session.retrying import Retrying
from kernelexec.session.testing import Testing


class Asking(Culling, Guiding, Filing, Limiting, Preinstalling, Retrying, Testing):
    """All of them together."""
