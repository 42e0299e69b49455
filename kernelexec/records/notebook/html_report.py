"""A notebook as a page of HTML, made by nbconvert."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelexec.errors import InvalidRequest


def load_exporter() -> Callable[[str], str]:
    """Return a function that makes a page of a notebook's JSON text; raise ``InvalidRequest`` without nbconvert."""
    try:
        import nbformat  # noqa: PLC0415 - for a report only, as the next one
        from nbconvert.exporters import HTMLExporter  # noqa: PLC0415
    except ImportError as exc:
        raise InvalidRequest("A report needs nbconvert, which is not installed: pip install nbconvert.") from exc
    exporter: Any = HTMLExporter

    def export(text: str) -> str:
        page: str = exporter().from_notebook_node(nbformat.reads(text, as_version=4))[0]
        return page

    return export
