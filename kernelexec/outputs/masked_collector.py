"""A collector that masks secrets in its messages: streams piece by piece, other messages as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelexec.outputs.collector import Collector
from kernelexec.results import decode_base64
from kernelexec.rules.secrets.store import Masker, StreamMasker
from kernelexec.text import utf8_size

#: Binary formats are not searched: masking would corrupt them.
_BINARY = ("image/", "audio/", "video/", "font/", "application/pdf", "application/octet-stream", "application/zip")
_SVG = "image/svg+xml"


class StreamMasking:
    """The masking state of a cell's output, late output included: a secret may cross the cell's end."""

    def __init__(self, masker: Masker) -> None:
        self.received_bytes = 0
        self._masker = masker
        self._flows: dict[str, StreamMasker] = {}

    def mask_stream(self, name: str, text: str) -> str:
        """Take a piece of a stream and return the masked text that can be released now."""
        self.received_bytes += utf8_size(text)
        return self._flow(name).feed(text)

    def flush(self, *, except_name: str | None = None, is_last: bool = False) -> list[tuple[str, str]]:
        """Return the held-back text of all streams except ``except_name``: another output follows their text.

        ``is_last`` means the end of the output, where the mere beginning of a secret is masked too.
        """
        flows = [(name, flow) for name, flow in self._flows.items() if name != except_name and flow.holds_text]
        return [(name, flow.flush(is_last=is_last)) for name, flow in flows]

    def mask_content(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Return the masked content of any other message."""
        masked: dict[str, Any] = self._masker.mask_value(
            {name: value for name, value in content.items() if name != "data"}, keys=False
        )
        if isinstance(data := content.get("data"), dict):
            masked["data"] = {
                self._masker.mask_text(str(mime)): self._representation(str(mime), value) for mime, value in data.items()
            }
        if isinstance(metadata := content.get("metadata"), dict):
            masked["metadata"] = self._masker.mask_value(metadata)
        return masked

    def _flow(self, name: str) -> StreamMasker:
        flow = self._flows.get(name)
        if flow is None:
            flow = self._flows[name] = self._masker.stream_masker()
        return flow

    def _representation(self, mime: str, value: object) -> object:
        # The kernel chose the media type: text under the name of a picture would hide a secret, so it must be base64 too.
        binary = mime.startswith(_BINARY) and not mime.startswith(_SVG)
        if binary and isinstance(value, str) and decode_base64(value) is not None:
            return value
        return self._masker.mask_value(value)


class MaskedCollector(Collector):
    """Collector of outputs without secrets. The collectors of a cell's output and late output share one masking state."""

    def __init__(self, masking: StreamMasking, *args: Any, **options: Any) -> None:  # noqa: ANN401 - as of a collector
        super().__init__(*args, **options)
        self._masking = masking

    @property
    def received_bytes(self) -> int:
        """The size of the received stream text before masking, in bytes."""
        return self._masking.received_bytes

    def feed(self, msg_type: str, content: Mapping[str, Any]) -> None:
        """Handle an iopub message; the possible beginning of a secret is held back until the next characters decide."""
        if msg_type != "stream":
            self.flush(is_last=msg_type == "error")
            super().feed(msg_type, self._masking.mask_content(content))
            return
        name, text = "stderr" if content.get("name") == "stderr" else "stdout", content.get("text", "")
        self.flush(except_name=name)
        self._collect(name, self._masking.mask_stream(name, text if isinstance(text, str) else str(text)))

    def flush(self, *, except_name: str | None = None, is_last: bool = False) -> None:
        """Release held-back text: the request has ended, or another output follows."""
        for name, text in self._masking.flush(except_name=except_name, is_last=is_last):
            self._collect(name, text)

    def _collect(self, name: str, text: str) -> None:
        if text:
            super().feed("stream", {"name": name, "text": text})
