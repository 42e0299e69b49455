"""A collector that secrets do not reach: what it is fed is masked first, streams as they flow, all else as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelexec.outputs.collector import Collector
from kernelexec.results import decode_base64
from kernelexec.secrets.masker import Masker, StreamMasker
from kernelexec.text import utf8_size

#: What is not text, and is not looked into: to change one byte of it would spoil it.
_BINARY = ("image/", "audio/", "video/", "font/", "application/pdf", "application/octet-stream", "application/zip")
_DRAWN = "image/svg+xml"


class Veil:
    """What masks the output of one cell, in time and late: a secret may lie across its end."""

    def __init__(self, masker: Masker) -> None:
        self.received_bytes = 0
        self._masker = masker
        self._flows: dict[str, StreamMasker] = {}

    def stream(self, name: str, text: str) -> str:
        """What can be given out of a stream by now."""
        self.received_bytes += utf8_size(text)
        return self._flow(name).feed(text)

    def held(self, *, but: str | None = None) -> list[tuple[str, str]]:
        """What was held back of the streams, ``but`` one: something comes that has its place behind it."""
        return [(name, flow.flush()) for name, flow in self._flows.items() if name != but and flow.holds_text]

    def content(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """The content of any other message."""
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
        binary = mime.startswith(_BINARY) and not mime.startswith(_DRAWN)
        if binary and isinstance(value, str) and decode_base64(value) is not None:
            return value
        return self._masker.mask_value(value)


class MaskedCollector(Collector):
    """The outputs of one request without secrets. One that collects what comes late shares the veil of what came in time."""

    def __init__(self, veil: Veil, *args: Any, **options: Any) -> None:  # noqa: ANN401 - as of a collector
        super().__init__(*args, **options)
        self._veil = veil

    @property
    def received_bytes(self) -> int:
        """How much text of streams came, as it was before it was masked."""
        return self._veil.received_bytes

    def feed(self, msg_type: str, content: Mapping[str, Any]) -> None:
        """Take one iopub message; what may be the beginning of a secret is kept until it is known not to be."""
        if msg_type != "stream":
            self.settle()
            super().feed(msg_type, self._veil.content(content))
            return
        name, text = "stderr" if content.get("name") == "stderr" else "stdout", content.get("text", "")
        self.settle(but=name)
        self._give(name, self._veil.stream(name, text if isinstance(text, str) else str(text)))

    def settle(self, *, but: str | None = None) -> None:
        """Keep nothing back: the request has ended, or something else follows."""
        for name, text in self._veil.held(but=but):
            self._give(name, text)

    def _give(self, name: str, text: str) -> None:
        if text:
            super().feed("stream", {"name": name, "text": text})
