"""The names of the images that are built here."""

from __future__ import annotations

import re

#: Images that can be built by name: images of kernels, the smallest first, and the server with its kernels.
NAMES = ("minimal", "data-science", "web", "ml", "agent", "server")
#: The owner in the names of our images: ``kernelexec/minimal``, and ``kernelexec/minimal-sudo`` with sudo.
OWNER = "kernelexec"
OURS = f"{OWNER}/"
_SUDO = "-sudo"
REFERENCE = re.compile(rf"{OURS}(?P<name>[a-z-]+?)(?P<sudo>{_SUDO})?(?P<tag>:[\w.-]+)?")
#: The image that ``kernelexec image build agent`` makes.
DEFAULT_IMAGE = f"{OWNER}/agent"


def sudo_variant(image: str) -> str:
    """Return the sudo variant of a ``kernelexec/...`` image; other images are returned unchanged."""
    reference = REFERENCE.fullmatch(image)
    if not reference or reference["sudo"] or reference["name"] not in NAMES:
        return image
    return f"{OWNER}/{reference['name']}{_SUDO}{reference['tag'] or ''}"
