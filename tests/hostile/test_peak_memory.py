"""What reads a kernel's bytes in the owner's process takes the memory that its limit names and 64 MiB, whatever they say.

Each reader runs in a process of its own, whose largest size is compared with that before.
"""

from __future__ import annotations

import concurrent.futures
import io
import json
import multiprocessing
import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kernelexec.kernel.wire.messages import MessageSession
from kernelexec.kernel.wire.zmtp import Multipart
from kernelexec.launcher.values import ValueDecoder, ValueRefused
from kernelexec.outputs.displays import WholeBundles, read_bundle
from kernelexec.records.notebook.recorder import Recorder
from kernelexec.results import DisplayData, Image, output_text
from kernelexec.results.media import decode_picture, is_whole_png
from kernelexec.results.model_answers import compact_tables, render_table
from kernelexec.results.readable import describe_widget
from kernelexec.results.session_contents import Completion, Variables
from kernelexec.results.views import make_bundle
from kernelexec.text import parse_untrusted_json
from tests.contract.records.test_recorder import executed
from tests.support.carried_values import file_of
from tests.support.night import named_cases
from tests.support.peak_memory import forget_peak, peak_bytes

Measure = Callable[[str], tuple[int, bool]]
MIB = 1024 * 1024
SLACK = 64 * MIB


@dataclass(frozen=True)
class Case:
    """What is read, how, and how many bytes it may take in addition to the slack."""

    make: Callable[[], Any]
    read: Callable[[Any], object]
    limit: int = 0
    is_refused: bool = False


def many(item: str, number: int = 1) -> Callable[[], str]:
    """A list of so many items, made when it is needed: it may be long."""
    return lambda: f"[{','.join([item] * number)}]"


def value_file(value: Callable[[], str], buffer: int = 0) -> Callable[[], memoryview]:
    """A file of values with one that is called x, and with one buffer."""

    return lambda: file_of(f'{{"values": {{"x": {value()}}}, "sizes": [{buffer}]}}', bytes(buffer))


def decode(limit: int) -> Callable[[memoryview], object]:
    def read(content: memoryview) -> object:
        try:
            return ValueDecoder(content, limit).decode()
        except ValueRefused:
            return None

    return read


def message(data: Callable[[], str]) -> Callable[[], Multipart]:
    """A signed message with that data."""

    def make() -> Multipart:
        session = MessageSession(b"key")
        _, [delimiter, _, *parts] = session.pack("display_data", {})
        frames = [*parts[:-1], f'{{"data": {data()}}}'.encode()]
        return Multipart((delimiter, session._sign(frames), *frames))  # as a kernel signs

    return make


def unpack(multipart: Multipart) -> object:
    read = MessageSession(b"key").unpack(multipart)
    return read if read.whole else None


def parse(text: str) -> object:
    try:
        return parse_untrusted_json(text)
    except ValueError:
        return None


def display(mime: str, value: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"data": {mime: value() if callable(value) else value}, "metadata": {}}


def notebook(data: Callable[[], str]) -> Callable[[], Path]:
    """A notebook as a recorder writes it, with a display that has this data."""

    def make() -> Path:
        path = Path("own.ipynb").absolute()
        recorder = Recorder(path, is_reserved=False)
        recorder(executed())
        recorder.write()
        text = path.read_text(encoding="utf-8")
        output = f'{{"output_type": "display_data", "metadata": {{}}, "data": {{"application/json": {data()}}}}}'
        path.write_text(text.replace('"outputs": []', f'"outputs": [{output}]'), encoding="utf-8")
        return path

    return make


def sparse_notebook() -> Path:
    path = Path("own.ipynb").absolute()
    with path.open("wb") as file:
        file.truncate(2**40)
    return path


def picture(width: int, height: int, depth: int, colour: int) -> Callable[[], Image]:
    """A PNG of one colour, whose content is small."""

    def make() -> Image:
        row = b"\0" + bytes((width * depth * {0: 1, 2: 3, 3: 1, 6: 4}[colour] + 7) // 8)
        packer, body = zlib.compressobj(), bytearray()
        for _ in range(height):
            body += packer.compress(row)
        body += packer.flush()
        file = io.BytesIO()
        file.write(b"\x89PNG\r\n\x1a\n")
        palette = [(b"PLTE", bytes(768)), (b"tRNS", bytes(256))] if colour == 3 else []
        header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
        for kind, data in [(b"IHDR", header), *palette, (b"IDAT", bytes(body)), (b"IEND", b"")]:
            file.write(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)))
        return Image("image/png", file.getvalue())

    return make


ARRAY = '{{"$": "ndarray", "dtype": "|u1", "shape": [{}], "buffer": 0}}'
SPAN = "<table><tr><td colspan=100000 rowspan=100000>x</td></tr></table>"
CASES: dict[str, Case] = {
    "a value of empty lists": Case(value_file(many("[]", 2_000_000)), decode(0), is_refused=True),
    "a value of dictionaries": Case(value_file(many("{}", 450_000)), decode(128 * MIB), 128 * MIB),
    "a value of numbers": Case(value_file(many("1e300", 300_000)), decode(0)),
    "an array": Case(value_file(many(ARRAY.format(16 * MIB)), 16 * MIB), decode(0)),
    "an array of bits": Case(value_file(many(ARRAY.format(16 * MIB).replace("u1", "b1")), 16 * MIB), decode(0)),
    "an array that is larger than its buffer": Case(value_file(many(ARRAY.format(2**40)), 8), decode(0), is_refused=True),
    "arrays of one buffer": Case(value_file(many(ARRAY.format(MIB), 900), MIB), decode(0), is_refused=True),
    "a message of empty lists": Case(message(many("[]", 9_000_000)), unpack, is_refused=True),
    "a message of dictionaries": Case(message(many("{}", 120_000)), unpack),
    "a message of keys": Case(message(lambda: "{" + ",".join(f'"{n}":0' for n in range(249_000)) + "}"), unpack),
    "JSON in a text": Case(many("[]", 9_000_000), parse, is_refused=True),
    "nested JSON in a text": Case(lambda: '{"a":' * 200_000, parse, is_refused=True),
    "JSON with signs in its texts": Case(lambda: '["' + "[]," * 1_000_000 + '"]', parse),
    "a chart of any shape": Case(
        lambda: {
            "application/vnd.plotly.v1+json": {"data": [{"y": {"shape": [3_000_000_000, "x"], "bdata": "", "dtype": "f8"}}]}
        },
        lambda data: output_text([DisplayData(data)]),
    ),
    "a chart of many traces": Case(
        lambda: {"application/vnd.plotly.v1+json": {"data": [{"name": "x" * 100}] * 200_000}},
        lambda data: output_text([DisplayData(data)]),
    ),
    "a widget of a huge number": Case(
        lambda: {"w": {"_model_name": "IntSliderModel", "value": 10**400, "max": 10**4000}}, lambda w: describe_widget(w, "w")
    ),
    "widgets in one another": Case(
        lambda: {str(n): {"_model_name": "VBoxModel", "children": [f"IPY_MODEL_{n + 1}"] * 100} for n in range(1_000)},
        lambda widgets: describe_widget(widgets, "0"),
    ),
    "a table of wide cells": Case(lambda: SPAN * 20_000, render_table, is_refused=True),
    "a table for an answer": Case(
        lambda: [DisplayData({"text/html": SPAN * 20_000, "text/plain": "x"})], lambda c: [*compact_tables(c)]
    ),
    "tags": Case(lambda: "<a>" * 4_000_000, lambda html: output_text([DisplayData({"text/html": html})])),
    "character references": Case(lambda: "&amp;" * 2_000_000, lambda html: output_text([DisplayData({"text/html": html})])),
    "a display of a long text": Case(
        display("text/plain", lambda: "x" * 14 * MIB), lambda c: read_bundle(c, 14 * MIB), 28 * MIB
    ),
    "a display of lists": Case(display("application/json", lambda: [[]] * 249_000), lambda c: WholeBundles(c).within(14 * MIB)),
    "a display of kinds": Case(
        lambda: {"data": {f"a/{n}": "x" * 100 for n in range(100_000)}, "metadata": {}},
        lambda c: WholeBundles(c).within(14 * MIB),
    ),
    # The markup and what its escaping adds, in the frame, in the page around it and in the frame around that.
    "a notebook's frame": Case(
        lambda: [DisplayData({"text/html": "&x" * 990_000 + "x" * 12 * MIB})], make_bundle, 3 * 30 * MIB
    ),
    "a notebook's frame of references": Case(lambda: [DisplayData({"text/html": "&" * 14 * MIB})], make_bundle),
    "a notebook of empty lists": Case(notebook(many("[]", 30_000_000)), Recorder.of, 128 * MIB, is_refused=True),
    "a notebook of numbers": Case(notebook(many("0", 1_900_000)), Recorder.of, 128 * MIB),
    "a notebook of a long text": Case(notebook(lambda: '["' + "x" * 60 * MIB + '"]'), Recorder.of, 4 * 64 * MIB),
    "a notebook of nothing": Case(sparse_notebook, Recorder.of, 128 * MIB, is_refused=True),
    "variables": Case(
        lambda: {"variables": [{"name": "x" * 10**4, "type": "y" * 10**4, "text": "z" * 10**5}] * 10_000, "total": 10**9},
        lambda reply: Variables.from_reply(reply, 1000),
    ),
    "completions": Case(
        lambda: {"cursor_start": 0, "cursor_end": 0, "matches": ["x" * 10_000] * 100_000},
        lambda reply: Completion.from_reply(reply, "", 0),
    ),
    "a picture of too many": Case(
        picture(12_000, 12_000, 1, 0), lambda image: decode_picture(image, 100, 100), is_refused=True
    ),
    **{
        f"a picture {name}": Case(picture(8000, 8000, depth, colour), lambda image: decode_picture(image, 100, 100), 256 * MIB)
        for name, depth, colour in [("of bits", 1, 0), ("in grey", 16, 0), ("in colours", 8, 2), ("with a palette", 8, 3)]
    },
    "a picture with transparency": Case(picture(8000, 8000, 8, 6), lambda image: decode_picture(image, 100, 100), 256 * MIB),
    "a PNG of a false length": Case(
        lambda: b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 2**32 - 1) + b"IDAT" + bytes(100), is_whole_png
    ),
}


#: A picture with transparency takes the most of them: it stands for the others in the gate, as a notebook of numbers does.
AT_NIGHT = {
    "a picture of bits",
    "a picture in grey",
    "a picture in colours",
    "a picture with a palette",
    "a notebook of a long text",
}


def measure(name: str) -> tuple[int, bool]:
    """Return by how many bytes a process grows at most while it reads that, and whether it refused it."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            with tempfile.TemporaryDirectory() as directory:
                os.chdir(directory)
                case = CASES[name]
                content = case.make()
                before = forget_peak()
                kept = case.read(content)
                os.write(writing, json.dumps([peak_bytes() - before, kept is None]).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    grown, is_refused = json.loads(text)
    return grown, is_refused


@pytest.fixture(scope="module")
def measured() -> Iterator[Measure]:
    """Measures in a process without threads, which may be forked."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        yield lambda name: pool.submit(measure, name).result()


@pytest.mark.parametrize("name", named_cases({name: name for name in CASES}, CASES.keys() - AT_NIGHT))
def test_a_reader_takes_no_more_than_its_limit_and_the_slack(measured: Measure, name: str) -> None:
    grown, is_refused = measured(name)
    assert is_refused is CASES[name].is_refused
    assert grown <= CASES[name].limit + SLACK
