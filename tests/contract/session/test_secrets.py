"""Secrets that are given by reference are in kernels, and nowhere that anybody looks: whatever a cell does."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor, InvalidConfig, Session
from kernelexec.events import Event
from kernelexec.kernel.wire.messages import MessageSession
from kernelexec.outputs import Collector
from kernelexec.session import AsyncSession
from tests.conftest import EVERY_KIND, KINDS
from tests.support.pace import slow, until
from tests.support.secret_values import AWKWARD, MARK, NAME, NAME_MARK, config, shown, written

NAMES = "import os, sys\ns, n = os.environ['API_KEY'], os.environ['NAME_LIKE']"
BEGIN = f"from IPython.display import *\n{NAMES}"
SWALLOW = "while True:\n        try:\n            time.sleep(60)\n        except BaseException:\n            pass"

#: What runs in containers in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = (
    "test_no_cell_shows_a_secret",
    "test_kernels_have_the_values_themselves",
    "test_late_output_of_a_thread_is_masked",
    "test_a_literal_in_a_cell_reaches_only_the_kernel",
    "test_progress_shows_nothing_while_a_cell_runs",
)
#: What cells do, each in one line or some; every one of them would show a secret.
CELLS: dict[str, str] = {
    "prints": "print('a', s, 'b')",
    "prints on stderr": "print(s, file=sys.stderr)",
    "raises": "raise ValueError(s)",
    "raises its repr": "raise KeyError(s)",
    "raises from within": "def f(x):\n    raise RuntimeError(f'no {x!r}')\nf(s)",
    "raises in a line that has it": f"x = {AWKWARD!r}; y = {NAME}; 1 / 0",
    "raises in a line that computes with it": f"{NAME} = 0\n1 / {NAME}",
    "raises a group": "raise ExceptionGroup('g', [ValueError(s), TypeError(n)])",
    "names an exception": "raise type(n, (Exception,), {})('of that name')",
    "does not compile": "compile(f'{s} = = 1', n, 'exec')",
    "ends with it": "s",
    "ends with a collection": "{s: [s, (s.encode(), {s})], 'n': n}",
    "prints in two": "print(s[:5], end='')\nprint(s[5:])",
    "prints single characters": "for c in s:\n    print(c, end='', flush=True)",
    "writes by turns": "print(s[:7], end='', flush=True)\nsys.stderr.write('x')\nprint(s, flush=True)",
    "writes to the descriptor": "os.write(1, s.encode())",
    "displays html": "display(HTML(f'<b>{s}</b>'))",
    "displays escaped html": "import html\ndisplay(HTML(f'<b title=\"{html.escape(s)}\">x</b>'))",
    "displays svg": "display(SVG(f'<svg xmlns=\"http://www.w3.org/2000/svg\"><text>{n}</text></svg>'))",
    "displays json": "display(JSON({'a': [{s: s}], 'n': n}))",
    "displays markdown": "display(Markdown(f'# {s}'))",
    "displays latex": "display(Latex(f'$ {s} $'))",
    "displays any type": "display({'application/x-own+json': {s: n}, f'text/{n}': s}, raw=True)",
    "displays text as a picture": "display({'image/png': s, 'text/plain': 'x'}, raw=True)",
    "displays metadata": "display({'text/plain': 'x'}, raw=True, metadata={s: {'n': s}})",
    "updates a display": "h = display('x', display_id=True)\nh.update(s)",
    "names a display": "display('x', display_id=n)\nupdate_display(n, display_id=n)",
    "updates a display of before": "h.update(HTML(s))",
    "clears": "print(s)\nclear_output(wait=True)\nprint(s)",
    "encodes": "import base64, binascii, json, urllib.parse as u\nfor shift in range(3):\n"
    "    for f in (base64.b64encode, base64.urlsafe_b64encode, base64.encodebytes):\n"
    "        print(f(b'x' * shift + s.encode()).decode(), f(b'x' * shift + s.encode() + b'yz' * 40))\n"
    "print(s.encode().hex(), s.encode().hex().upper(), u.quote(s), u.quote(s, safe=''), u.quote_plus(s))\n"
    "print(json.dumps({'k': s}), json.dumps(json.dumps(s)), repr(s), ascii(s), s.encode())",
    "asks what is there": "%env\n",
    "warns": "import warnings, logging\nwarnings.warn(s)\nlogging.warning('%r', s)",
    "colours": "print(f'{s[:6]}\\x1b[01;31m\\x1b[K{s[6:9]}\\x1b[m\\x1b[K{s[9:]}')",
    "is traced": '%%bash\nset -x\necho "$API_KEY" $NAME_LIKE\nx=$API_KEY',
    "is a command": '!echo "$API_KEY"; echo "$NAME_LIKE" >&2; exit 3',
    "has a child": "import subprocess\nprint(subprocess.run(['env'], capture_output=True, text=True).stdout)",
    "writes a file of that name": "open(n, 'w').close()\nos.remove(n)\nopen(n + '.txt', 'w').close()",
    "asks for help": "s?",
    "cuts": "print(f'{n[:-2]}...', [f'{s[:-3]}...'], f'{n[:8]}\\u2026')",
}


@dataclass
class Watched:
    """A session, and all that was heard of it."""

    executor: Executor
    session: Session
    logs: Path
    outputs: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def run(self, code: str, **options: Any) -> Any:
        return self.session.execute(code, on_output=lambda output: self.outputs.append(repr(output)), **options)

    def check(self, *more: str | bytes) -> None:
        """Nothing of a secret is in what was heard, or written by anybody but the cells."""
        self.session.save_notebook()
        assert shown(*self.outputs, *map(repr, self.events), *more) == []
        assert self.session.journal is not None
        assert self.session.notebook is not None
        files = [self.session.journal, self.session.notebook, self.session.workspace / "outputs", self.logs]
        assert written(*files) == {}


@pytest.fixture(scope="module", params=EVERY_KIND)
def watched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    location = tmp_path_factory.mktemp("secrets")
    events: list[Event] = []
    settings = config(request.param, location, log_dir=location / "logs", output={"stream_bytes": 4000})
    with Executor(request.param, workspace=location / "ws", config=settings, hooks=[events.append]) as executor:
        session = executor.session("a")
        assert session.execute(BEGIN).ok
        yield Watched(executor, session, location / "logs", events=events)


@pytest.mark.parametrize("code", CELLS.values(), ids=CELLS)
def test_no_cell_shows_a_secret(watched: Watched, code: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    watched.run("h = display('y', display_id=True)" if "h.update(HTML" in code else "None")
    result = watched.run(code)
    watched.check(result.to_json(), repr(result), result.text, result.stdout, result.stderr, caplog.text)
    page = watched.session.read_output(result.execution_id)
    assert shown(page.text) == []
    assert "[secret " in result.to_json() or code.startswith("h.update")


def test_kernels_have_the_values_themselves(watched: Watched) -> None:
    code = "import hashlib\nprint(len(s), *(hashlib.sha256(value.encode()).hexdigest() for value in (s, n)))"
    actual = watched.run(code)
    digests = (hashlib.sha256(value.encode()).hexdigest() for value in (AWKWARD, NAME))
    assert actual.stdout.split() == [str(len(AWKWARD)), *digests]
    actual = watched.session.execute_command('printf %s "$API_KEY" | wc -c')
    assert actual.stdout.split() == [str(len(AWKWARD.encode()))]


def test_output_keeps_its_order_and_nothing_is_lost(watched: Watched) -> None:
    code = "print('S', end='', flush=True)\nsys.stderr.write('e')\nsys.stderr.flush()\ndisplay('d')\nprint('S3', end='')"
    result = watched.run(code)
    assert [getattr(output, "text", "display") for output in result.outputs] == ["S", "e", "display", "S3"]


def test_late_output_of_a_thread_is_masked(watched: Watched) -> None:
    code = "import os, threading, time\ndef late():\n    while not os.path.exists('go'):\n        time.sleep(0.01)\n"
    code += "    print(s[3:])\n    print(s)\nthreading.Thread(target=late).start()\nprint(s[:3], end='')"
    first = watched.run(code)
    assert watched.session.execute_command("touch go").ok

    def late() -> str:
        result = watched.session.wait_for(first.execution_id).result
        assert result is not None
        return "".join(output.text for output in result.late if hasattr(output, "text"))

    until(lambda: late().count("\n") == 2)
    progress = watched.session.wait_for(first.execution_id)
    assert progress.result is not None
    watched.check(progress.result.to_json(), repr(progress))
    assert late().splitlines() == [MARK, MARK]


def test_a_cut_shows_no_half(watched: Watched) -> None:
    for before in range(2000 - len(AWKWARD) - 20, 2001, 3):
        result = watched.run(f"sys.stdout.write('x' * {before} + s + 'y' * 2990 + s + 'z' * {before % 40} + s + 'w' * 1990)")
        assert result.truncated
        offset: int | None = 0
        pages = []
        while offset is not None:
            page = watched.session.read_output(result.execution_id, offset=offset, limit=997)
            pages.append(page.text)
            offset = page.next_offset
        actual = watched.session.read_output(result.execution_id, grep="S3cr|secret").text
        for text in ("".join(pages), actual, result.text):
            assert not any(AWKWARD[at : at + 5] in text for at in range(len(AWKWARD) - 5))
        assert "".join(pages).count(MARK) == 3


def test_looks_show_names_in_the_place_of_values(watched: Watched) -> None:
    watched.run("x, d, longer = s, {n: [s, 'x' * 35 + s]}, 'x' * 190 + s\nglobals()[n] = 1\nx[0]")
    actual = watched.session.variables()
    assert shown(repr(actual), json.dumps(actual.to_dict())) == []
    texts = {variable.name: variable.text for variable in actual}
    assert MARK in texts["x"]
    assert NAME_MARK in texts["d"]
    assert texts[NAME_MARK] == "1"
    assert not any(AWKWARD[at : at + 4] in text for text in texts.values() for at in range(len(AWKWARD) - 4))
    assert NAME_MARK in watched.session.names
    assert MARK in str(watched.session.inspect("x"))
    assert watched.session.complete("d['").matches
    assert shown(repr(watched.session.complete("d['")), repr(watched.session.complete("tok_"))) == []
    snapshot = watched.session.snapshot(["x", "d"])
    assert shown(repr(snapshot)) == []
    watched.run("del globals()[n]")
    watched.check()


def test_a_literal_in_a_cell_reaches_only_the_kernel(watched: Watched) -> None:
    result = watched.run(f"y = {AWKWARD!r}\nassert y == s\nprint(y == s)\n{{}}[y]  # {NAME}")
    assert result.stdout == "True\n"
    assert result.error is not None
    assert result.error.ename == "KeyError"
    assert result.diagnosis is not None
    assert MARK in "".join(result.error.traceback)
    command = watched.session.execute_command(f'test {NAME} = "$NAME_LIKE" && echo same; cat', stdin=f"{AWKWARD}\n")
    assert command.stdout.splitlines() == ["same", MARK]
    watched.check(result.to_json(), command.to_json())


def test_lines_of_a_cell_with_a_magic_are_masked_in_its_diagnosis(watched: Watched) -> None:
    result = watched.run(f"%%time\n1 / 0  # {NAME}")
    assert result.diagnosis is not None
    assert result.diagnosis.line_text == f"1 / 0  # {NAME_MARK}"
    assert [call.text for call in result.diagnosis.calls] == ["%%time", f"1 / 0  # {NAME_MARK}"]
    watched.check(result.to_json())


def test_a_refusal_quotes_nothing(watched: Watched) -> None:
    result = watched.session.execute_command(f"rm -rf / {NAME}")
    assert result.status == "aborted"
    with pytest.raises(ValueError, match=r"work_dir|directory") as refused:
        watched.session.execute_command("true", work_dir=NAME)
    with pytest.raises(ValueError, match="NUL"):
        watched.run(f"{NAME}\0")
    watched.check(result.to_json(), repr(result), str(refused.value))


def test_a_request_that_is_sent_again_is_known_by_what_is_recorded(watched: Watched) -> None:
    code = f"print(1, {NAME!r})"
    first = watched.run(code, request_id="once")
    again = watched.run(code, request_id="once")
    assert again.execution_id == first.execution_id
    watched.check(first.to_json())


def test_progress_shows_nothing_while_a_cell_runs(watched: Watched) -> None:
    code = "print(s, flush=True)\nprint(s[:9], end='', flush=True)\nopen('said', 'w').close()\nimport time\ntime.sleep(600)"
    running = watched.run(code, wait=0.01, timeout=600)
    assert running.status == "running"
    until((watched.session.workspace / "said").exists)
    until(lambda: watched.session.wait_for(running.execution_id, wait=0.1).text)
    progress = watched.session.wait_for(running.execution_id, wait=0.5)  # by when the half would have come too
    assert (progress.status, progress.text) == ("running", f"{MARK}\n")
    ended = watched.session.interrupt(running.execution_id)
    assert ended is not None
    watched.check(running.to_json(), repr(progress), ended.to_json())
    assert ended.stdout == f"{MARK}\n{MARK}"


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_dead_kernel_s_last_words_are_masked_and_the_next_one_has_the_secrets(kind: str, tmp_path: Path) -> None:
    settings = config(kind, tmp_path, log_dir=tmp_path / "logs", checkpoints="named", budgets={"grace": 0.3})
    with Executor(kind, workspace=tmp_path / "ws", config=settings) as executor:
        session = executor.session("a")
        session.execute(f"{NAMES}\nglobals()[n] = 1")
        result = session.execute("print(s, s[:9], end='')\nos.kill(os.getpid(), 9)")
        assert result.state == "lost"
        assert NAME_MARK in result.lost_names
        assert result.stdout == f"{MARK} {MARK}"
        after = session.execute(f"{NAMES}\nprint(s)")
        assert after.stdout == f"{MARK}\n"
        assert NAME_MARK in "".join(after.notes)
        stuck = session.execute(f"import time\ndef {NAME}():\n    {SWALLOW}\n{NAME}()", timeout=slow(2))
        assert stuck.ended_by == "kill"
        assert session.execute(f"{NAMES}\nn").ok
        session.save_notebook()
        assert shown(*(actual.to_json() for actual in (result, after, stuck))) == []
        assert written(tmp_path / "logs", tmp_path / "ws" / ".journals", session.workspace) == {}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_an_idle_kernel_is_reported_when_a_session_takes_it(kind: str, tmp_path: Path) -> None:
    settings = config(kind, tmp_path, pool={"size": 1, "policy": "wait"})
    if "container" in settings:
        settings["container"] = {**settings["container"], "layout": "classic"}
    with Executor(kind, workspace=tmp_path / "ws", config=settings) as executor:
        result = executor.session("a").execute("import os\nprint(os.environ['API_KEY'])\nos.environ['NAME_LIKE']")
        assert result.stdout == f"{MARK}\n"
        assert NAME_MARK in result.text
        assert result.notes == ()


def test_a_value_is_read_again_for_every_kernel_and_old_ones_stay_masked(tmp_path: Path) -> None:
    values = iter(["first-value", "second-value"])
    with Executor("local", workspace=tmp_path, config={"secrets": {"KEY": lambda: next(values)}}) as executor:
        session = executor.session("a")
        assert session.execute("import os\nlen(os.environ['KEY'])").text.strip() == "11"
        session.restart()
        assert session.execute("import os\nlen(os.environ['KEY'])").text.strip() == "12"
        assert session.execute("'first-' + 'value second-' + 'value'").text.strip() == "'[secret KEY] [secret KEY]'"
        with pytest.raises(InvalidConfig, match=r"secrets\.KEY: its function raised StopIteration"):
            session.restart()


def test_a_copy_of_a_kernel_is_where_it_was_and_has_the_secrets_of_its_cells_or_newer_ones(tmp_path: Path) -> None:
    secrets = {"KEY": lambda: "first-value", "NEW": (tmp_path / "new").read_text, "GONE": lambda: "third-value"}
    (tmp_path / "new").write_text("old-value")
    with Executor("local", workspace=tmp_path, config={"secrets": secrets, "checkpoints": "named", "quiet": True}) as executor:
        session = executor.session("a")
        change = "import os; os.mkdir('sub'); os.chdir('sub'); os.environ['KEY'] = 'chosen'; del os.environ['GONE']"
        assert session.execute(change).ok
        checkpoint = session.checkpoint()
        (tmp_path / "new").write_text("newer-value")
        look = "os.path.basename(os.getcwd()), os.environ['KEY'], len(os.environ['NEW']), 'GONE' in os.environ"
        session.restore(checkpoint)
        assert session.execute(look).value == ("sub", "chosen", 11, False)
        assert session.execute("os._exit(3)").state == "restored"
        assert session.execute(look).value == ("sub", "chosen", 11, False)
        with session.branch("b") as branch:
            assert branch.execute(look).value == ("sub", "chosen", 11, False)
            assert branch.execute("os.environ['NEW']").text == "'[secret NEW]'"


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_secret_that_is_missing_is_reported_before_any_kernel_starts(kind: str, tmp_path: Path) -> None:
    events: list[Event] = []
    settings = KINDS[kind] | {"secrets": {"KEY": {"file": tmp_path / "none"}}}
    with Executor(kind, workspace=tmp_path / "ws", config=settings, hooks=[events.append]) as executor:
        with pytest.raises(InvalidConfig, match=r"secrets.KEY: the file .*/none cannot be read"):
            executor.session("a")
        assert executor.sessions() == ()
        (tmp_path / "none").write_text("there-by-now")
        assert executor.session("a").execute("import os\nprint(os.environ['KEY'])").stdout == "[secret KEY]\n"
    assert [type(event).__name__ for event in events[:3]] == ["SessionOpened", "SessionClosing", "SessionClosed"]


def test_without_secrets_the_way_of_a_cell_is_as_it_was(tmp_path: Path) -> None:
    created: list[Callable[..., Collector]] = []

    def note(session: AsyncSession) -> None:
        created.append(session._queue.runner._make_collector_factory())
        assert session._context.masking.secrets is None
        kernel = session._supervisor.kernel
        assert kernel is not None
        assert kernel.secrets is None
        assert type(kernel.client.session) is MessageSession

    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session("a")
        session.execute("1")
        note(session._target)
        assert session.mask(AWKWARD) == AWKWARD
    assert created == [Collector]
