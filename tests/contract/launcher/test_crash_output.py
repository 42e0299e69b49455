"""What a kernel wrote and could not send any more: noted by the launcher, read by the driver."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import pytest

from kernelexec import Session
from kernelexec.config import OutputLimits
from kernelexec.kernel import Execution
from kernelexec.kernel.execution import undelivered_output
from kernelexec.launcher.output.kept_output import CrashBuffer
from kernelexec.launcher.protocol import CRASH_HALF_BYTES as HALF_BYTES
from kernelexec.outputs import Collector, Displays
from kernelexec.results import Stream
from tests.support.pace import slow

#: What runs in containers and namespaces in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = ("test_output_before_a_death_is_in_the_result[container-os._exit(3)]",)
#: The tests lose the state, so no cell has a checkpoint.
CHECKPOINTS = "named"
OUT, ERR = False, True
ALPHABET = ["a", "\u00e9", "\u65e5", "\U0001f389", "\n"]


def heard(path: Path, received: int, msg_id: str = "m_1") -> str:
    return "".join(text for _, _, text in undelivered_output(path.read_bytes(), msg_id, received))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "words"


def test_undelivered_output_keeps_its_order_and_stream(path: Path) -> None:
    words = CrashBuffer(str(path))
    words.begin({"msg_id": "m_1"})
    words.add(OUT, b"one ")
    words.add(ERR, b"two ")
    words.add(OUT, "\u65e5".encode())
    content = path.read_bytes()
    assert undelivered_output(content, "m_1", 0) == [(0, "stdout", "one "), (0, "stderr", "two "), (0, "stdout", "\u65e5")]
    assert undelivered_output(content, "m_1", 4) == [(0, "stderr", "two "), (0, "stdout", "\u65e5")]
    assert undelivered_output(content, "m_1", 6) == [(0, "stderr", "o "), (0, "stdout", "\u65e5")]
    assert undelivered_output(content, "m_1", 11) == []
    assert undelivered_output(content, "m_1", 99) == []


def test_crash_output_counts_after_the_end_of_the_connection(path: Path) -> None:
    words = CrashBuffer(str(path))
    words.begin({"msg_id": "m_1"})
    words.add(OUT, b"one")
    content = path.read_bytes()

    async def run() -> str:
        collector = Collector(OutputLimits(), displays=Displays())
        execution = Execution("m_1", collector, Collector(OutputLimits(), displays=Displays()), lambda: 0.0)
        execution.finish("disconnected")
        execution.on_crash_output(content)
        return "".join(output.text for output in collector.outputs() if isinstance(output, Stream))

    assert asyncio.run(run()) == "one"


def test_lost_statistics_are_counted(path: Path) -> None:
    words = CrashBuffer(str(path))
    words.begin({"msg_id": "m_1"})
    for n in range(3 * HALF_BYTES // 100):
        words.add(bool(n % 2), b"x" * 100)
    actual = undelivered_output(path.read_bytes(), "m_1", 1000)
    assert actual[0][0] > 0
    assert [lost for lost, _, _ in actual[1:]] == [0] * (len(actual) - 1)
    assert 1000 + sum(lost + len(text) for lost, _, text in actual) == 3 * HALF_BYTES // 100 * 100


def test_another_cell_hears_nothing(path: Path) -> None:
    words = CrashBuffer(str(path))
    words.begin({"msg_id": "m_1"})
    words.add(OUT, b"x" * 100_000)
    assert heard(path, 0, "m_2") == ""
    words.begin({"msg_id": "m_2"})
    assert heard(path, 0, "m_1") == heard(path, 0, "m_2") == ""


def test_any_pieces_are_heard_to_their_last_byte(path: Path) -> None:
    rng = random.Random(1)  # noqa: S311 - a reproducible test, no secret
    words = CrashBuffer(str(path))
    for cell in range(15):
        words.begin({"msg_id": f"m_{cell}"})
        whole = ""
        for _ in range(rng.randrange(60)):
            text = "".join(rng.choices(ALPHABET, k=rng.choice([1, 50, 3000, 30_000])))
            words.add(rng.random() < 0.3, text.encode())
            whole += text
        size = len(whole.encode())
        received = max(0, size - rng.randrange(HALF_BYTES - 1000))
        assert heard(path, received, f"m_{cell}") == whole.encode()[received:].decode("utf-8", "ignore")


def test_random_crash_buffers_yield_only_text() -> None:
    rng = random.Random(2)  # noqa: S311 - a reproducible test, no secret
    for _ in range(100):
        head = b"m_1".ljust(64, b"\0") + rng.randbytes(4)
        content = (head + rng.randbytes(rng.randrange(HALF_BYTES))).ljust(HALF_BYTES, rng.choice([b"\0", b"\xff", b"\x01"]))
        actual = undelivered_output(content + rng.randbytes(rng.randrange(3 * HALF_BYTES)), "m_1", rng.randrange(5))
        assert all(name in ("stdout", "stderr") and text for _, name, text in actual)
    assert undelivered_output(b"", "m_1", 0) == undelivered_output(b"\0" * 100, "m_1", 0) == []


def test_without_a_path_nothing_is_noted() -> None:
    words = CrashBuffer(None)
    words.begin({"msg_id": "m_1"})
    words.add(OUT, b"x")


def test_a_link_in_the_place_of_the_file_is_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    path.symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        CrashBuffer(str(path))


@pytest.mark.parametrize(
    "end", ["os._exit(3)", f"os.kill(os.getpid(), {int(signal.SIGKILL)})", "import ctypes; ctypes.string_at(0)"]
)
def test_output_before_a_death_is_in_the_result(session: Session, end: str) -> None:
    session.execute("import os, sys")
    result = session.execute(f"print('out'); print('err', file=sys.stderr)\nfor n in range(1000): print(n)\n{end}")
    assert result.state == "lost"
    assert result.stdout == "out\n" + "".join(f"{n}\n" for n in range(1000))
    assert result.stderr == "err\n"


@pytest.mark.nightly
def test_output_before_a_kill_is_in_the_result(session: Session) -> None:
    code = "while True:\n    try:\n        print('stubborn'); time.sleep(60)\n    except BaseException: pass"
    session.execute("import time")
    result = session.execute(code, timeout=slow(2))
    assert (result.ended_by, result.state) == ("kill", "lost")
    assert result.stdout.startswith("stubborn\n")
