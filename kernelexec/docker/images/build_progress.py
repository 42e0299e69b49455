"""Messages of a build, folded into lines to show and the reason of a failure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping

_STEP = re.compile(r"Step (?P<step>\d+/\d+) : (?P<order>.*)")
_MADE = re.compile(r" ---> (?P<id>[0-9a-f]{12})")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TAIL = 20
_LINE_CHARS = 500
_HINTS = (
    (
        ("CERTIFICATE_VERIFY_FAILED", "certificate verify failed", "certificate is NOT trusted", "x509:"),
        "A certificate authority of your network is missing: give it by --extra-ca FILE, or take this machine's by --host-ca.",
    ),
    (
        ("Temporary failure in name resolution", "Could not resolve", "Network is unreachable", "failed to create endpoint"),
        "The build has no network: try --network host, or build offline by --wheels from a base that has all Debian packages.",
    ),
    (("No matching distribution found",), "The index, or the wheels' directory, does not have it for this Python."),
    (("No space left on device",), "Free some space where the container engine keeps its images."),
    (("exec format error",), "The base image is of another architecture than this machine emulates."),
    (("pull access denied", "manifest unknown", "not found: manifest"), "Name a base that is there by --base-image."),
)


class BuildLog:
    """The messages of one build; a bounded part of them is kept."""

    def __init__(self) -> None:
        self.step = ""
        """The current step, such as ``3/19 RUN ...``."""
        self.error = ""
        """The reason of a failure."""
        self.created_images: list[str] = []
        """The short ids of intermediate images that this build created."""
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._rest = ""
        self._new = False

    def add(self, message: Mapping[str, object]) -> list[str]:
        """Fold one message; return the lines of it to show while the build runs."""
        if "error" in message:
            self.error = str(message["error"]).strip()
        if "stream" not in message:
            return []
        *lines, self._rest = (self._rest + str(message["stream"])).split("\n")
        self._rest = self._rest[-_LINE_CHARS:]
        return [shown for line in lines if (shown := self._line(_ANSI.sub("", line).rstrip()))]

    def failure(self) -> str:
        """Return the reason of the failure, the last output, and a hint."""
        output = "\n".join(f"  {line}" for line in self._tail)
        hint = next((hint for marks, hint in _HINTS if any(mark in output + self.error for mark in marks)), "")
        where = f" at step {self.step}" if self.step else ""
        parts = (f"{where}: {self.error or 'the engine ended it without a reason'}", output, hint)
        return "\n".join(part for part in parts if part)

    def _line(self, line: str) -> str | None:
        if step := _STEP.match(line):
            self.step = f"{step['step']} {' '.join(step['order'].split())}"
            self._tail.clear()
            self._new = not step["order"].startswith("FROM ")
            return f"[{step['step']}] {' '.join(step['order'].split())[:_LINE_CHARS]}"
        if line == " ---> Using cache":
            self._new = False
        elif match := _MADE.fullmatch(line):
            self.created_images += [match["id"]] if self._new else []
        elif line.strip() and not line.startswith((" ---> ", "Removing intermediate container ")):
            self._tail.append(line[:_LINE_CHARS])
        return None
