"""Results in notebooks and terminals: text, tables, pictures and errors in the order of the cell.

Kernels are not trusted. A notebook runs scripts of displays with the rights of the page, which can run any code in the caller's
kernel. So HTML of a cell is shown in frames with their own origin (``sandbox`` of HTML), which load nothing from elsewhere and
lead nowhere else. SVG is shown as a picture, where no browser runs scripts. Text is escaped. Markdown becomes HTML in a frame.
LaTeX without active commands is left to the notebook. Terminals get text, by rich.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kernelexec.results.outputs import DisplayData, Error, ExecuteResult, MimeBundle, Output, Stream, best_image, output_text
from kernelexec.text import escape_invisible

if TYPE_CHECKING:
    from rich.console import Group

#: Types rendered by a notebook's own code.
_RENDERED = re.compile(r"application/(?:json|geo\+json|vnd\.plotly\.v1\+json|vnd\.vega(?:lite)?\.v[\d.]+\+json)")
_MARKUP = frozenset(("text/html", "text/markdown"))
#: Commands of TeX for links, styles, names and extensions in MathJax.
_ACTIVE_TEX = re.compile(r"\\(?:href|url|class|cssId|style|data|require|unicode|html\w*|bbox|def|let|(?:re)?newcommand)\b")
#: The colours of a traceback's lines, readable on white and on black.
_RED, _MARKED, _ARROW = "#d0453f", "#0a8f4f", re.compile(r"-+> ?\d+")
#: JupyterLab shows `<pre>` of a display in a proportional font, and the marks of a traceback apart from their place.
_PRE = '<pre style="font-family:var(--jp-code-font-family,monospace)">'
_RASTER = re.compile(r"image/(?:png|jpeg|gif|webp)")
_POLICY = (
    "default-src 'none'; img-src data: blob:; media-src data: blob:; font-src data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline' 'unsafe-eval' blob: data:"
)
#: The style of JupyterLab's tables, since a page's style does not reach into a frame.
_STYLE = (
    "body{margin:0;font:13px sans-serif;color-scheme:light dark}"
    "table{border-collapse:collapse;font-size:13px}table,thead,tbody,tr,th,td{border:none}"
    "th,td{padding:.5em;text-align:right;vertical-align:middle}thead{border-bottom:1px solid #bdbdbd}"
    "tbody tr:nth-child(even){background:rgba(128,128,128,.08)}"
)
#: No policy covers calls (WebRTC), which can send anything to any address. Frames added by the page itself still can call.
_NO_CALLS = "<script>delete window.RTCPeerConnection;delete window.webkitRTCPeerConnection</script>"
_FRAME_HEAD = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">{_NO_CALLS}<style>{_STYLE}</style>'
#: Only the policy of the page around a frame can forbid other pages in the frame: so that page is a frame of ours too.
_OUTER_HEAD = (
    f"""<meta http-equiv="Content-Security-Policy" content="{_POLICY}; frame-src 'none'">"""
    "<style>html,body,iframe{margin:0;border:0;width:100%;height:100%;display:block;overflow:hidden}</style>"
)
#: The growth of an ampersand and of a quote by two escapes, the limit of a page's growth, and the text in place of such a page.
_AMPERSAND_GROWTH, _QUOTE_GROWTH, _GROWTH_MAX = 8, 9, 16_000_000
_TOO_LARGE = "<p>This HTML has too many quotes or references to be shown.</p>"
#: The height of a frame in pixels, from its lines or a chart's own height: a page cannot ask a frame of another origin.
_LINE, _ROW, _LOWEST, _HIGHEST = 24, 28, 48, 800
_LINE_TAGS = re.compile(r"<(?:p|li|br|h[1-6]|pre|div)\b", re.IGNORECASE)
_ROW_TAG = re.compile(r"<tr\b", re.IGNORECASE)
#: The tags around a table of pandas; they add no line.
_FRAME_OF_TABLE = re.compile(r"<div>\s*<style scoped>", re.IGNORECASE)
_HEIGHT = re.compile(r"""\bheight["']?\s*[:=]\s*["']?(\d{2,4})(?:px)?\b""", re.IGNORECASE)
_SCANNED_CHARS = 1_000_000
#: Its reader takes long for some texts.
_MARKDOWN_CHARS = 20_000
_LOADS = re.compile(r"<script[^>]{0,300}\bsrc\s*=", re.IGNORECASE)


def make_bundle(outputs: Iterable[Output], verdict: str | None = None) -> MimeBundle:
    """Return a display of all outputs and the verdict: plain text, and richer types if an output is more than text."""
    text = None if verdict is None else Stream("stderr", f"{verdict}\n")
    shown = (*outputs, *([] if text is None else [text]))
    bundle: MimeBundle = {"text/plain": output_text(shown)}
    match shown:
        case [DisplayData(data=data) | ExecuteResult(data=data) as single]:
            bundle |= {mime: content for mime, content in data.items() if _RENDERED.fullmatch(mime) or _RASTER.fullmatch(mime)}
            if isinstance(formula := data.get("text/latex"), str) and not _ACTIVE_TEX.search(formula):
                bundle["text/latex"] = formula
            if len(bundle) > 1:  # the notebook renders these types itself
                return bundle
            markup = _render(single)
        case _:
            markup = "\n".join(map(_render, shown))
    if any(map(_is_rich, shown)):
        bundle["text/html"] = markup
    return bundle


def _is_rich(output: Output) -> bool:
    if isinstance(output, Error):
        return True
    if isinstance(output, Stream):
        return False
    return not _MARKUP.isdisjoint(output.data) or best_image(output) is not None


def _render(output: Output) -> str:
    if isinstance(output, Error):
        return _render_error(output)
    if isinstance(output, Stream):
        return _render_text(output)
    markup, image = output.data.get("text/html"), best_image(output)
    # Scripts from elsewhere do not load in our frames: then a picture of the same object shows more than its HTML.
    if isinstance(markup, str) and (image is None or not _LOADS.search(markup[:_SCANNED_CHARS])):
        return render_frame(markup)
    markdown = output.data.get("text/markdown")
    if image is None and isinstance(markdown, str) and len(markdown) <= _MARKDOWN_CHARS:
        from markdown_it import MarkdownIt  # noqa: PLC0415 - few outputs need it

        return render_frame(MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown))
    return _render_text(output) if image is None else image.to_html()


def _render_error(error: Error) -> str:
    """Return a traceback with the colours of its marked lines and of the exception."""
    lines = []
    for line in output_text([error]).splitlines():
        colour = _MARKED if _ARROW.match(line) else _RED if error.ename and line.startswith(error.ename) else ""
        text = html.escape(line)
        lines.append(f'<span style="color:{colour}">{text}</span>' if colour else text)
    return f"{_PRE}{chr(10).join(lines)}</pre>"


def _render_text(output: Output) -> str:
    return f"{_PRE}{html.escape(output_text([output]))}</pre>"


def render_frame(markup: str) -> str:
    """Return a frame with the HTML. Scripts there run with an origin of their own, load nothing and lead nowhere."""
    if _AMPERSAND_GROWTH * markup.count("&") + _QUOTE_GROWTH * markup.count('"') > _GROWTH_MAX:
        markup = _TOO_LARGE
    page = _OUTER_HEAD + _frame(_FRAME_HEAD + markup)
    return _frame(page, f' width="100%" height="{_height(markup)}" frameborder="0"')


def _frame(page: str, attributes: str = "") -> str:
    # In an attribute in quotes only these two signs have a meaning; `html.escape` would let every tag grow too.
    content = page.replace("&", "&amp;").replace('"', "&quot;")
    return f'<iframe sandbox="allow-scripts" srcdoc="{content}"{attributes}></iframe>'


def _height(markup: str) -> int:
    head = markup[:_SCANNED_CHARS]
    stated = [int(pixels) for pixels in _HEIGHT.findall(head)] if "<script" in head.lower() else []
    rows, lines = (sum(1 for _ in tags.finditer(head)) for tags in (_ROW_TAG, _LINE_TAGS))
    lines += (not rows) - (_FRAME_OF_TABLE.match(head) is not None)
    room = _ROW * rows + _LINE * lines + (_ROW // 2 if rows else 0)
    return min(max(_LOWEST, room if not stated else 0, *stated), _HIGHEST)


def make_renderable(text: str, verdict: str, *, ok: bool) -> Group:
    """Return a result for rich; markup and control characters of the cell are shown as text."""
    from rich.console import Group  # noqa: PLC0415 - imported where it is needed only
    from rich.text import Text  # noqa: PLC0415 - as above

    shown = [Text(escape_invisible(text.rstrip("\n")))] if text.strip() else []
    return Group(*shown, Text(verdict, style="dim" if ok else "red"))
