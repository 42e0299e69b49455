"""What can be asked of a session beside running its cells, each part in a file of its own."""

from __future__ import annotations

from kernelexec.session.features.culling import Culling
from kernelexec.session.features.files import Filing
from kernelexec.session.features.limits import Limiting
from kernelexec.session.features.preinstall import Preinstalling
from kernelexec.session.features.prompts import Guiding
from kernelexec.session.features.retry import Retrying
from kernelexec.session.features.run_tests import Testing


class Asking(Culling, Guiding, Filing, Limiting, Preinstalling, Retrying, Testing):
    """All of them together."""
