"""``sys.stdout`` and ``sys.stderr`` as files: what is written to them, by whatever layer, is output of the cell, in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelexec import Executor, Session


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Executor("local", workspace=tmp_path_factory.mktemp("workspaces")) as executor:
        opened = executor.session()
        opened.execute(IMPORTS)
        yield opened


IMPORTS = "import codecs, faulthandler, io, os, shutil, subprocess, sys"
WRITERS = {
    "a child with stdout": "subprocess.run(['echo', 'mark'], stdout=sys.stdout); None",
    "a child's stderr": "subprocess.run(['sh', '-c', 'echo mark >&2'], stderr=sys.stdout); None",
    "both of a child": ("subprocess.run(['sh', '-c', 'echo mark >&2'], stdout=sys.stdout, stderr=subprocess.STDOUT); None"),
    "os.write": "os.write(sys.stdout.fileno(), b'mark\\n'); None",
    "os.dup": "file = os.fdopen(os.dup(sys.stdout.fileno()), 'w'); file.write('mark\\n'); file.close()",
    "bytes": "sys.stdout.buffer.write(b'mark\\n'); None",
    "raw bytes": "sys.stdout.buffer.raw.write(b'mark\\n'); None",
    "halves of a character": "[sys.stdout.buffer.write(bytes([b])) for b in 'mark ü\\n'.encode()]; None",
    "a text layer": "print('mark', file=io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8', line_buffering=True))",
    "a text layer in its place": (
        "sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8')\nprint('mark')\nsys.stdout.flush()"
    ),
    "a codec's writer": "codecs.getwriter('utf-8')(sys.stdout.buffer).write('mark\\n')",
    "reconfigured": "sys.stdout.reconfigure(encoding='utf-8', errors='replace', line_buffering=True); print('mark')",
    "os.system": "os.system('echo mark'); None",
    "shutil": "shutil.copyfileobj(io.BytesIO(b'mark\\n'), sys.stdout.buffer)",
}


@pytest.mark.parametrize("code", WRITERS.values(), ids=WRITERS)
def test_writes_to_the_stream_files_are_output_of_the_cell(session: Session, code: str) -> None:
    result = session.execute(code, timeout=20)
    assert result.status == "ok", result.text
    assert "mark" in result.stdout
    assert session.execute("print('next')").stdout == "next\n"


def test_the_parts_come_in_order(session: Session) -> None:
    three = "print('a'); os.write(sys.stdout.fileno(), b'b\\n'); sys.stdout.buffer.write(b'c\\n')"
    code = f"for n in range(1000):\n    {three}"
    assert session.execute(code).stdout == "a\nb\nc\n" * 1000


def test_a_text_layer_that_is_deleted_closes_nothing(session: Session) -> None:
    session.execute("layer = io.TextIOWrapper(sys.stdout.buffer)\nlayer.close()\ndel layer")
    result = session.execute("print(6 * 7); print('e', file=sys.stderr); sys.stdout.closed, sys.stdout.buffer.closed")
    assert (result.stdout, result.stderr) == ("42\n", "e\n")
    assert "(False, False)" in result.text


def test_a_fault_handler_writes_to_stderr(session: Session) -> None:
    result = session.execute("faulthandler.dump_traceback(sys.stderr)")
    assert "most recent call first" in result.stderr


def test_code_that_looks_for_a_terminal_finds_none(session: Session) -> None:
    code = "sys.stdout.isatty(), os.isatty(sys.stdout.fileno()), sys.stdout.encoding.lower(), sys.stdout.writable()"
    assert session.execute(code).text == "(False, False, 'utf-8', True)"
