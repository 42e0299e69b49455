"""What the images that are built here are called."""

from __future__ import annotations

import re

#: What can be built by name: what kernels run in, the smallest first, and the server with its kernels.
NAMES = ("minimal", "data-science", "web", "ml", "agent", "server")
#: Whose images ours are: ``kernelexec/minimal``, and ``kernelexec/minimal-sudo`` with sudo.
OWNER = "kernelexec"
OURS = f"{OWNER}/"
_SUDO = "-sudo"
REFERENCE = re.compile(rf"{OURS}(?P<name>[a-z-]+?)(?P<sudo>{_SUDO})?(?P<tag>:[\w.-]+)?")
#: The image that ``kernelexec image build agent`` makes.
DEFAULT_IMAGE = f"{OWNER}/agent"


def with_sudo(image: str) -> str:
    """The image that has sudo in the place of one of ours; any other image is kept as it was named."""
    found = REFERENCE.fullmatch(image)
    if not found or found["sudo"] or found["name"] not in NAMES:
        return image
    return f"{OWNER}/{found['name']}{_SUDO}{found['tag'] or ''}"
