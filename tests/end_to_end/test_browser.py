"""Pages with outputs of hostile cells, in a real browser: nothing of them runs in the page, goes elsewhere or is sent."""

from __future__ import annotations

import http.server
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from kernelexec.records.notebook.html_report import load_exporter
from kernelexec.results import DisplayData
from kernelexec.results.views.notebook_view import make_bundle
from tests.support.pace import slow

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

#: Chromium as systems name it.
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
#: Scripts that go or send to an address, or would give the page itself another title.
SCRIPTS = {
    "location": "location = '{url}'",
    "location.href": "location.href = '{url}'",
    "replace": "location.replace('{url}')",
    "top": "top.location = '{url}'",
    "parent": "parent.location = '{url}'",
    "the parent's parent": "parent.parent.location = '{url}'",
    "open": "open('{url}')",
    "fetch": "fetch('{url}')",
    "a picture": "new Image().src = '{url}'",
    "a beacon": "navigator.sendBeacon('{url}')",
    "a socket": "new WebSocket('{url}'.replace('http', 'ws'))",
    "an event source": "new EventSource('{url}')",
    "a request": "var r = new XMLHttpRequest(); r.open('GET', '{url}'); r.send()",
    "a form": "document.write('<form action={url}></form>'); document.forms[0].submit()",
    "a link": "document.write('<a href={url}>x</a>'); document.links[0].click()",
    "a link to a new window": "document.write('<a target=_blank href={url}>x</a>'); document.links[0].click()",
    "a link of the top": "document.write('<a target=_top href={url}>x</a>'); document.links[0].click()",
    "a frame": "document.write('<iframe src={url}></iframe>')",
    "a script": "document.write('<script src={url}><' + '/script>')",
    "a module": "import('{url}')",
    "a worker": "new Worker(URL.createObjectURL(new Blob([`fetch('{url}')`])))",
    "a style": "document.write('<style>@import url({url});</style>')",
    "a font": "document.write('<style>@font-face {font-family: a; src: url({url})} p {font-family: a}</style><p>x')",
    "a hint": "document.write('<link rel=preload as=script href={url}><link rel=prefetch href={url}>')",
    "a base": "document.write('<base href={url}><img src=x>')",
    "the title of the page": "top.document.title = 'ran'",
    "the parent's document": "parent.parent.document.title = 'ran'",
    "the opener": "opener.document.title = 'ran'",
    "data": "location = `data:text/html,<script>location = '{url}'<` + '/script>'",
    "a blob": "location = URL.createObjectURL(new Blob([`<script>location = '{url}'<` + '/script>'], {type: 'text/html'}))",
    "javascript": "location = `javascript:location = '{url}'`",
    "the parent's frames": "parent.frames[0].location = '{url}'",
}
MARKUP = {
    "a refresh": "<meta http-equiv=refresh content='0;url={url}'>",
    "a picture of markup": "<img src={url}>",
    "an error of a picture": "<img src=x onerror=\"top.document.title = 'ran'\">",
    "a drawing": "<svg onload=\"top.document.title = 'ran'\"><image href={url} /><use href={url} /></svg>",
    "an object": "<object data={url}></object><embed src={url}>",
    "a video": "<video src={url} poster={url}></video><audio src={url}></audio>",
    "a background": "<body background={url} style='background: url({url})'>",
    "a frame with a page": (
        "<iframe srcdoc=\"<script>location = '{url}'; parent.parent.parent.document.title = 'ran'</script>\"></iframe>"
    ),
    "the end of the frame": '"></iframe><script>document.title = "ran"</script>',
    "the end of both frames": "&quot;&gt;</iframe>\"></iframe><script>document.title = 'ran'</script>",
}
DOCUMENTS = {**{name: f"<script>{script}</script>" for name, script in SCRIPTS.items()}, **MARKUP}


class Visits:
    """A server of this machine that notes the paths that are asked for."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.pages: dict[str, str] = {}
        visits = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                visits.paths.append(self.path)
                self.send_response(200)
                self.send_header("content-type", "text/html")
                self.end_headers()
                self.wfile.write(visits.pages.get(self.path, "elsewhere").encode())

            do_POST = do_GET  # noqa: N815 - as the library names it

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"


@pytest.fixture(scope="module")
def visits() -> Iterator[Visits]:
    served = Visits()
    thread = threading.Thread(target=served.server.serve_forever)
    thread.start()
    yield served
    served.server.shutdown()
    served.server.server_close()
    thread.join()


def look(address: str, profile: Path) -> str:
    """Return the title of a page and its elements, as Chromium has them after some seconds."""
    chromium = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert chromium is not None, "Chromium is not installed"
    words = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    words += [f"--user-data-dir={profile}", "--virtual-time-budget=4000", "--timeout=8000", "--dump-dom", address]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=slow(60)).stdout


def notebook_of(document: str) -> str:
    """A notebook that has a document in each type of output and as Markdown."""
    script = document.removeprefix("<script>").removesuffix("</script>")
    bundles = [
        {"text/html": document, "text/plain": "x"},
        {"application/javascript": script},
        {"image/svg+xml": f"<svg>{document}</svg>"},
        {"text/latex": document},
    ]
    outputs = [nbformat.v4.new_output("display_data", data=data) for data in bundles]
    cells = [nbformat.v4.new_markdown_cell(document), nbformat.v4.new_code_cell("x", outputs=outputs)]
    return str(nbformat.writes(nbformat.v4.new_notebook(cells=cells)))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_display_stays_in_its_frame(visits: Visits, tmp_path: Path, name: str) -> None:
    document = DOCUMENTS[name].replace("{url}", f"{visits.url}out?frame")
    view = make_bundle([DisplayData({"text/html": document, "text/plain": "x"})])["text/html"]
    visits.pages["/view"] = f"<title>own</title><body>{view}"
    report = tmp_path / "report.html"
    report.write_text(load_exporter()(notebook_of(document)), encoding="utf-8")
    for address in (f"{visits.url}view", report.as_uri()):
        visits.paths.clear()
        page = look(address, tmp_path / "profile")
        assert "<title>ran" not in page
        assert "<title>" in page
        assert [path for path in visits.paths if path.startswith("/out")] == []


def test_a_page_without_frames_is_found(visits: Visits, tmp_path: Path) -> None:
    visits.paths.clear()
    visits.pages["/view"] = f"<body><script>location = '{visits.url}out?page'</script>"
    look(f"{visits.url}view", tmp_path / "profile")
    assert "/out?page" in visits.paths
