"""Pages with outputs of hostile cells, in a real browser: nothing of them runs in the page, goes elsewhere or is sent."""

from __future__ import annotations

import http.server
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from kernelexec.records.notebook.html_report import load_exporter
from kernelexec.results import DisplayData
from kernelexec.results.views import make_bundle
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
    "assign": "location.assign('{url}')",
    "a navigation": "navigation.navigate('{url}')",
    "the history": "history.pushState({}, '', '{url}')",
    "a later fetch": "setTimeout(() => fetch('{url}', {mode: 'no-cors', keepalive: true}), 500)",
    "a download": "document.write('<a download href={url}>x</a>'); document.links[0].click()",
    "a ping": "document.write('<a ping={url} href=#x>x</a>'); document.links[0].click()",
    "a link of a drawing": (
        "document.write('<svg><a href={url}><text y=9>x</text></a></svg>');"
        "document.querySelector('a').dispatchEvent(new MouseEvent('click'))"
    ),
    "a button of a form": (
        "document.write('<form target=_top><button formaction={url}>x</button></form>');"
        "document.querySelector('button').click()"
    ),
    "a service worker": "navigator.serviceWorker.register('{url}')",
    "a shared worker": "new SharedWorker('{url}')",
    "a worklet": "new OfflineAudioContext(1, 1, 8000).audioWorklet.addModule('{url}'); CSS.paintWorklet.addModule('{url}')",
    "a transport": "new WebTransport('{url}'.replace('http:', 'https:'))",
    "a policy of its own": (
        "document.write(`<meta http-equiv=Content-Security-Policy content=\"img-src 'none'; report-uri {url}\"><img src=/x>`)"
    ),
}
MARKUP = {
    "a connection ahead": "<link rel=preconnect href={url}>",
    "a page ahead": '<script type=speculationrules>{"prefetch": [{"source": "list", "urls": ["{url}"]}]}</script>',
    "a page made ahead": '<script type=speculationrules>{"prerender": [{"source": "list", "urls": ["{url}"]}]}</script>',
    "a style sheet": "<link rel=stylesheet href={url}><link rel=icon href={url}><link rel=manifest href={url}>",
    "sources": "<picture><source srcset={url}><img></picture><input type=image src={url}>",
    "a track": "<video controls src='data:video/mp4,x'><track default src={url}></video>",
    "pictures of a style": "<p style='cursor: url({url}); content: url({url}); background: image-set(url({url}) 1x)'>x",
    "an old background": "<table background={url}><tr><td background={url}>x</table>",
    "a frame of javascript": "<iframe src=\"javascript:top.document.title = 'ran'\"></iframe>",
    "a fenced frame": "<fencedframe src={url}></fencedframe><portal src={url}></portal>",
    "an animated link": (
        "<svg><a><animate attributeName=href begin=0s to=\"javascript:top.document.title = 'ran'\" /><text>x</text></a></svg>"
    ),
    "an opened part": "<details open ontoggle=\"top.document.title = 'ran'\">x</details>",
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
#: A call through a relay, which is told a name.
CALL = """<script>
var servers = [{urls: '{url}'.replace('http://', 'turn:').split('/')[0] + '?transport=tcp', username: 'data', credential: 'x'}]
var c = new RTCPeerConnection({iceServers: servers, iceTransportPolicy: 'relay'})
c.createDataChannel('x'); c.createOffer().then(o => c.setLocalDescription(o))
</script>"""
DOCUMENTS = {**{name: f"<script>{script}</script>" for name, script in SCRIPTS.items()}, **MARKUP}


class Server(http.server.ThreadingHTTPServer):
    """A server of this machine with one page, which counts what is sent to it; a connection alone sends nothing."""

    def __init__(self, host: str) -> None:
        self.page, self.requests = "", 0
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def parse_request(self) -> bool:
                server.requests += 1
                return super().parse_request()

            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/html")
                self.end_headers()
                self.wfile.write(server.page.encode())

            do_POST = do_GET  # noqa: N815 - as the library names it

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__((host, 0), Handler)
        self.url = f"http://{host}:{self.server_port}/"


def outer_address() -> str:
    """An address of this machine; not that of the loopback, if there is one: browsers make no calls to that."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        try:
            unsent.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(unsent.getsockname()[0])


def served(host: str) -> Iterator[Server]:
    with Server(host) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    yield from served("127.0.0.1")


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Server]:
    yield from served(outer_address())


def command(profile: Path, *words: str) -> list[str]:
    chromium = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert chromium is not None, "Chromium is not installed"
    own = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", f"--user-data-dir={profile}")
    return [chromium, *own, *words]


def look(address: str, profile: Path) -> str:
    """Return the title of a page and its elements, as Chromium has them after some seconds."""
    words = command(profile, "--virtual-time-budget=4000", "--timeout=8000", "--dump-dom", address)
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=slow(60)).stdout


def keep_open(address: str, profile: Path) -> None:
    """Have a page open for some seconds: calls are not made in the time of ``look``, which does not pass by itself."""
    words = command(profile, "--remote-debugging-port=0", address)
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as browser:
        time.sleep(slow(4))
        browser.terminate()


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


def pages(document: str, own: Server, directory: Path) -> tuple[str, str]:
    """The addresses of a notebook's view of a document, and of a report of it."""
    view = make_bundle([DisplayData({"text/html": document, "text/plain": "x"})])["text/html"]
    own.page = f"<title>own</title><body>{view}"
    report = directory / "report.html"
    report.write_text(load_exporter()(notebook_of(document)), encoding="utf-8")
    return own.url, report.as_uri()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_display_stays_in_its_frame(own: Server, elsewhere: Server, tmp_path: Path, name: str) -> None:
    for address in pages(DOCUMENTS[name].replace("{url}", elsewhere.url), own, tmp_path):
        elsewhere.requests = 0
        page = look(address, tmp_path / "profile")
        assert "<title>ran" not in page
        assert "<title>" in page
        assert elsewhere.requests == 0


def test_a_display_makes_no_calls(own: Server, elsewhere: Server, tmp_path: Path) -> None:
    for address in pages(CALL.replace("{url}", elsewhere.url), own, tmp_path):
        elsewhere.requests = 0
        keep_open(address, tmp_path / "profile")
        assert elsewhere.requests == 0


def test_requests_of_a_page_without_frames_are_seen(own: Server, elsewhere: Server, tmp_path: Path) -> None:
    for document, visit in ((DOCUMENTS["location"], look), (CALL, keep_open)):
        elsewhere.requests = 0
        own.page = f"<body>{document}".replace("{url}", elsewhere.url)
        visit(own.url, tmp_path / "profile")
        assert elsewhere.requests > 0
