"""Output that programs, children and descriptors bring: whole, bounded, in the cell that it belongs to, also in odd cases."""

from __future__ import annotations

import pytest

from kernelexec import Session

#: What runs in containers and namespaces in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = ()


def memory_of(session: Session) -> int:
    """The kernel's memory in MiB."""
    return int(session.execute("import psutil; print(psutil.Process().memory_info().rss >> 20)").stdout)


@pytest.mark.parametrize("cell", ["x = !yes hello & sleep .1", "%%bash --out x\nyes hello & sleep .1"])
def test_a_captured_command_is_over_when_it_ends_whatever_it_leaves_behind(session: Session, cell: str) -> None:
    assert session.execute(cell).status == "ok"
    before = memory_of(session)
    session.execute("import time; time.sleep(1)")  # so that what is still taken in could be seen
    assert memory_of(session) < before + 50
    assert (
        session.execute("print(set(x if isinstance(x, list) else x.split()) - {'hell', 'hel', 'he', 'h'})").stdout
        == "{'hello'}\n"
    )


def test_a_command_whose_background_child_floods_ends_in_order(session: Session) -> None:
    result = session.execute_command("yes & sleep 0.1")
    assert (result.status, result.exit_code, result.interrupted) == ("ok", 0, None)


def test_children_that_print_at_once_lose_nothing(session: Session) -> None:
    code = "import os\nface, children = chr(0x1F600) * 390, []\nfor c in range(4):\n    children.append(os.fork())\n"
    code += "    if not children[-1]:\n        for n in range(50): print(f'{c}-{n}{face}\\n', end='')\n        os._exit(0)\n"
    code += "for pid in children: os.waitpid(pid, 0)"
    result = session.execute(code)
    expected = sorted(f"{c}-{n}" for c in range(4) for n in range(50))
    assert sorted(result.stdout.replace("\N{GRINNING FACE}", "").split()) == expected
    assert result.stdout.count("\N{GRINNING FACE}") == 4 * 50 * 390


def test_errors_and_displays_of_a_forked_child_are_text(session: Session) -> None:
    code = "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nelse:\n"
    code += "    display({'text/plain': 'shown'}, raw=True)\n    1 / 0"
    result = session.execute(code)
    assert (result.status, result.stdout) == ("ok", "shown\n")
    assert "ZeroDivisionError" in result.stderr


def test_exit_codes_are_true_where_children_are_ignored(session: Session) -> None:
    session.execute("import signal; before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)")
    assert session.execute_command("echo a; exit 7").exit_code == 7
    assert session.execute("!exit 5").exit_code == 5
    assert session.execute("signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN").text == "True"


def test_a_descriptor_that_was_saved_in_an_earlier_cell_leads_to_its_own(session: Session) -> None:
    session.execute("import os, subprocess\nsaved = os.dup(1)\np = subprocess.Popen(['sleep', '600'])")
    session.execute("f = open('f', 'w'); os.dup2(f.fileno(), 1); os.system('echo to the file'); os.dup2(saved, 1);")
    for _ in range(2):
        assert session.execute("os.system('echo here');").stdout == "here\n"
    assert (session.workspace / "f").read_text() == "to the file\n"


def test_a_descriptor_that_was_closed_is_open_for_the_next_cell(session: Session) -> None:
    session.execute("import os; os.close(1); os.close(2)")
    result = session.execute("os.system('echo out; echo err >&2');")
    assert (result.stdout, result.stderr) == ("out\n", "err\n")


def test_a_descriptor_that_the_cell_sent_elsewhere_stays_there(session: Session) -> None:
    session.execute("import os; f = open('f', 'w'); os.dup2(f.fileno(), 1);")
    session.execute("os.system('echo later');")
    assert (session.workspace / "f").read_text() == "later\n"


def test_prints_do_not_wait_for_programs_that_flood(session: Session) -> None:
    session.execute("import subprocess\nfor _ in range(2): subprocess.Popen(['yes'])")
    result = session.execute("import sys\nfor n in range(20_000): print(n, file=sys.stderr)")
    assert result.stderr == "".join(f"{n}\n" for n in range(20_000))


def test_output_of_an_earlier_cells_pool_is_in_the_running_cell(session: Session) -> None:
    session.execute("import multiprocessing as m\npool = m.get_context('fork').Pool(1)")
    second = session.execute("pool.map(print, ['worked']);")
    assert (second.stdout, second.notes) == ("worked\n", ())
    assert session.execute("pool.terminate()").notes == ()


def test_nothing_is_missing_between_two_streams_before_a_death(session: Session) -> None:
    code = "import os, sys\nfor n in range(3000):\n    print(n, 'x' * 60)\n"
    code += "    if n % 3 == 0: print('e', file=sys.stderr)\nos._exit(3)"
    result = session.execute(code)
    assert [int(line.split()[0]) for line in result.stdout.splitlines()] == list(range(3000))
    assert (result.exit_code, result.truncated, result.stderr) == (3, False, "e\n" * 1000)


def test_a_command_that_could_not_save_its_changes_says_so(session: Session) -> None:
    assert "do not last" in session.execute_command("ulimit -n 5; true").stderr
    assert session.execute_command("exec true").stderr == ""
