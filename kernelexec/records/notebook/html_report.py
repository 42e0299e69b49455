"""A notebook as a page of HTML, made by nbconvert.

A template of nbconvert is code of the process that uses it, and nbconvert looks for templates in the current directory and in
the user's own ones, where cells can write. So a report has only the templates that are installed with nbconvert, and these run
in Jinja's sandbox.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelexec.errors import InvalidRequest


def load_exporter() -> Callable[[str], str]:
    """Return a function that makes a page of a notebook's JSON text; raise ``InvalidRequest`` without nbconvert."""
    try:
        import nbformat  # noqa: PLC0415 - for a report only, as the next ones
        from jinja2.sandbox import SandboxedEnvironment  # noqa: PLC0415
        from nbconvert.exporters import HTMLExporter  # noqa: PLC0415
    except ImportError as exc:
        raise InvalidRequest("A report needs nbconvert, which is not installed: pip install nbconvert.") from exc
    installed = [str(path) for path in _template_roots() if (path / "nbconvert/templates/lab").is_dir()]
    if not installed:
        raise InvalidRequest("A report needs the templates of nbconvert, which are not installed: pip install nbconvert.")
    base: Any = HTMLExporter

    class ReportExporter(base):  # type: ignore[misc]
        """nbconvert's exporter, with its own templates only."""

        def get_prefix_root_dirs(self) -> list[str]:
            return installed

        def _create_environment(self) -> SandboxedEnvironment:
            unsafe = super()._create_environment()
            environment = SandboxedEnvironment(loader=unsafe.loader, extensions=list(unsafe.extensions))
            environment.globals.update(unsafe.globals)
            environment.filters.update(unsafe.filters)
            return environment

    def export(text: str) -> str:
        page: str = ReportExporter(extra_template_basedirs=[]).from_notebook_node(nbformat.reads(text, as_version=4))[0]
        return page

    return export


def _template_roots() -> list[Path]:
    """Return the directories of Jupyter's files that belong to this environment or to the system."""
    return [Path(prefix, "share/jupyter") for prefix in (sys.prefix, "/usr/local", "/usr")]
