"""A notebook as a page of HTML, made by nbconvert.

A template of nbconvert runs as code of the using process. nbconvert also looks for templates in the current directory and in
the user's own directories, where cells can write. So a report uses only the installed templates, in Jinja's sandbox.

The page is a file of the reader, scripts there have the rights of a local file, and outputs are not trusted. So HTML and
scripts of outputs stand in frames of their own, markup of Markdown is sanitized, and the page loads only the scripts and fonts
of formulas.
"""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kernelexec.errors import InvalidRequest
from kernelexec.results import DisplayData, output_text, strip_ansi
from kernelexec.results.views import render_frame

_SCRIPTS, _WIDGET = ("application/javascript", "text/javascript"), "application/vnd.jupyter.widget-view+json"
#: Number of escape sequences in a text above which all are removed.
_COLOURS_MAX = 2000
#: The elements that Markdown may become. A cell can rewrite its notebook, so HTML in Markdown would be a page of the cell.
_TAGS = frozenset(
    re.findall(
        r"\w+",
        """a abbr b blockquote br code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img kbd li mark ol p pre s small span
        strong sub summary sup table tbody td tfoot th thead tr u ul""",
    )
)
_ATTRIBUTES = {
    "*": ["class", "id", "title"],
    "a": ["href"],
    "img": ["src", "alt", "width", "height"],
    "ol": ["start"],
    "td": ["colspan", "rowspan", "style"],
    "th": ["colspan", "rowspan", "style"],
}


def load_exporter() -> Callable[[str], str]:
    """Return a function that converts a notebook's JSON text to a page; raise ``InvalidRequest`` without nbconvert."""
    try:
        import bleach  # noqa: PLC0415 - for a report only, as the next ones
        import nbformat  # noqa: PLC0415
        from bleach.css_sanitizer import CSSSanitizer  # noqa: PLC0415
        from jinja2.sandbox import SandboxedEnvironment  # noqa: PLC0415
        from nbconvert.exporters import HTMLExporter  # noqa: PLC0415
    except ImportError as exc:
        raise InvalidRequest("A report needs nbconvert, which is not installed: pip install nbconvert.") from exc
    installed = [str(path) for path in _template_roots() if (path / "nbconvert/templates/lab").is_dir()]
    if not installed:
        raise InvalidRequest("A report needs the templates of nbconvert, which are not installed: pip install nbconvert.")
    base: Any = HTMLExporter
    aligned = CSSSanitizer(allowed_css_properties=["text-align"])

    class ReportExporter(base):  # type: ignore[misc]
        """nbconvert's exporter, with its own templates only."""

        frames: frozenset[str] = frozenset()

        def get_prefix_root_dirs(self) -> list[str]:
            return installed

        # A private method of nbconvert, where its exporter makes the environment.
        def _create_environment(self) -> SandboxedEnvironment:
            unsafe = super()._create_environment()
            environment = SandboxedEnvironment(loader=unsafe.loader, extensions=list(unsafe.extensions))
            environment.globals.update(unsafe.globals)
            environment.filters.update(unsafe.filters)
            environment.filters["clean_html"] = self._sanitize
            return environment

        def _sanitize(self, markup: object) -> str:
            text = str(markup)
            if text in self.frames:  # our own frames, made before: the sanitizer would remove them
                return text
            cleaned: str = bleach.clean(
                text,
                tags=_TAGS,
                attributes=_ATTRIBUTES,
                protocols={"http", "https", "mailto", "data"},
                css_sanitizer=aligned,
            )
            return cleaned

    def export(text: str) -> str:
        notebook = nbformat.reads(text, as_version=4)
        exporter = ReportExporter(extra_template_basedirs=[], sanitize_html=True)
        exporter.frames = frozenset(_isolate(notebook))
        page: str = exporter.from_notebook_node(notebook)[0]
        return page.replace("<head>", f"<head>{_make_policy(exporter.mathjax_url)}", 1)

    return export


def _isolate(notebook: Any) -> list[str]:  # noqa: ANN401 - a node of nbformat
    """Replace content with scripts by frames, and return the frames."""
    frames = []
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type == "raw":
            cell.metadata.pop("raw_mimetype", None)  # else it is markup of the page
        for output in cell.get("outputs", ()):
            _limit_colours(output)
            if (data := output.get("data")) is None:
                continue
            if "text/plain" not in data:  # for types that a page does not show
                data["text/plain"] = output_text([DisplayData(dict(data))])
            scripts = [data.pop(mime) for mime in _SCRIPTS if mime in data]
            data.pop(_WIDGET, None)
            if scripts:
                data.setdefault("text/html", f"<script>{scripts[0]}</script>")
            if "text/html" in data:
                data["text/html"] = render_frame(str(data["text/html"]))
                frames.append(data["text/html"])
            if "text/vnd.mermaid" in data:  # the template shows it as it is
                data["text/vnd.mermaid"] = html.escape(str(data["text/vnd.mermaid"]))
    return frames


def _limit_colours(output: Any) -> None:  # noqa: ANN401 - a node of nbformat
    """Remove escape sequences from texts with many of them: nbconvert's time for them is quadratic."""
    if "text" in output:
        output["text"] = _strip_many(output["text"])
    if "traceback" in output:
        output["traceback"] = _strip_many("\n".join(output["traceback"])).split("\n")
    if isinstance(text := output.get("data", {}).get("text/plain"), str):
        output["data"]["text/plain"] = _strip_many(text)


def _strip_many(text: str) -> str:
    return strip_ansi(text) if text.count("\x1b") > _COLOURS_MAX else text


def _make_policy(mathjax_url: str) -> str:
    """Return the policy element of the page: only pictures of its own directory, and the scripts and fonts of formulas."""
    formulas = "https://" + urlsplit(mathjax_url).netloc
    policy = (
        f"default-src 'none'; img-src 'self' data: blob:; media-src data: blob:; font-src data: {formulas}; "
        f"style-src 'unsafe-inline' {formulas}; script-src 'unsafe-inline' 'unsafe-eval' blob: data: {formulas}; "
        "frame-src 'none'; form-action 'none'; base-uri 'none'"
    )
    return f'<meta http-equiv="Content-Security-Policy" content="{policy}">'


def _template_roots() -> list[Path]:
    """Return the directories of Jupyter's files in this environment and in the system, never the user's."""
    return [Path(prefix, "share/jupyter") for prefix in (sys.prefix, "/usr/local", "/usr")]
