"""Shell commands in the kernel's place: streams apart, exit codes, what lasts, what goes in, and that a group ends as one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kernelexec import InvalidCode, InvalidWorkDir, Session
from tests.support.pace import BOUND, slow, until
from tests.support.remains import process_of

ALSO_CONFINED = ("test_the_exit_code_is_the_commands_own",)
ENDED = "return not path.exists() or path.read_text().rpartition(')')[2].split()[0] in 'ZX'"


def gone(pid: int, seconds: float = BOUND) -> bool:
    """Whether a process ends in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


CODES = {
    "exit 0": 0,
    "exit 7": 7,
    "false": 1,
    "no-such-program": 127,
    "/dev/null": 126,
    "kill -9 $$": 137,
    "kill -TERM $$": 143,
    "ls --no-such-option": 2,
    "exec sh -c 'exit 5'": 5,
    "(exit 3); exit $?": 3,
    "set -e; false; echo never": 1,
}


@pytest.mark.parametrize(("command", "code"), CODES.items(), ids=CODES)
@pytest.mark.shared_session
def test_the_exit_code_is_the_commands_own(session: Session, command: str, code: int) -> None:
    result = session.execute_command(command)
    assert (result.exit_code, result.status, result.state) == (code, "error" if code else "ok", "kept")
    assert session.execute("_exit_code").text == str(code)


@pytest.mark.shared_session
def test_stdout_and_stderr_are_apart_and_in_order_of_each(session: Session) -> None:
    result = session.execute_command("echo a; echo b >&2; echo c; echo d >&2")
    assert (result.stdout, result.stderr) == ("a\nc\n", "b\nd\n")


def test_output_comes_while_the_command_runs(session: Session) -> None:
    running = session.execute_command("mkfifo gate; echo first; read line < gate; echo $line", wait=0.001)
    assert running.status == "running"
    while not (progress := session.wait_for(running.execution_id, wait=0.05)).text:
        pass
    assert (progress.text, progress.status) == ("first\n", "running")
    (session.workspace / "gate").write_text("last\n")
    ended = session.wait_for(running.execution_id, cursor=progress.cursor, wait=BOUND)
    assert (ended.text, ended.status) == ("last\n", "ok")


def test_cd_and_export_last_for_the_next_command_only(session: Session) -> None:
    session.execute_command("mkdir sub && cd sub && export A='a b' B=$'two\\nlines \\u65e5' && unset HOME; f() { :; }; x=1")
    result = session.execute_command('pwd; printf "%s|%s|%s|%s|" "$A" "$B" "${HOME-none}" "${x-none}"; type f')
    assert result.stdout == f"{session.workspace}/sub\na b|two\nlines \u65e5|none|none|"
    assert result.work_dir == f"{session.workspace}/sub"
    assert "not found" in result.stderr
    assert session.execute("!pwd; echo ${A-none}").stdout == f"{session.workspace}\nnone\n"
    assert session.execute("import os; print(os.getcwd(), os.environ.get('A'))").text == f"{session.workspace} None\n"
    session.restart()
    assert session.execute_command('pwd; echo "${A-none}"').stdout == f"{session.workspace}\nnone\n"


@pytest.mark.shared_session
def test_a_command_has_no_arguments_of_its_own(session: Session) -> None:
    assert session.execute_command('echo "$# ${1-none} $0"').stdout == "0 none bash\n"


def test_a_command_may_take_its_path_away(session: Session) -> None:
    session.execute_command("cd /tmp; export A=1; PATH=/nowhere")
    assert session.execute_command("echo $PWD $A $PATH").stdout == "/tmp 1 /nowhere\n"


def test_a_command_with_a_trap_of_its_own_learns_what_does_not_last(session: Session) -> None:
    result = session.execute_command("trap 'echo bye' EXIT; cd /tmp")
    assert result.stdout == "bye\n"
    assert "do not last" in result.stderr


def test_variables_set_by_code_reach_commands(session: Session) -> None:
    session.execute("import os; os.environ['FROM_CODE'] = 'yes'; os.makedirs('there', exist_ok=True)")
    assert session.execute_command("echo $FROM_CODE").stdout == "yes\n"


def test_a_work_dir_counts_for_one_command(session: Session) -> None:
    session.execute_command("mkdir -p one two && cd one")
    assert session.execute_command("pwd", work_dir="two").stdout == f"{session.workspace}/two\n"
    assert session.execute_command("pwd").stdout == f"{session.workspace}/one\n"


def test_a_directory_that_is_gone_is_reported_and_left(session: Session) -> None:
    session.execute_command("mkdir -p gone && cd gone && rmdir ../gone")
    result = session.execute_command("pwd")
    assert result.stdout == f"{session.workspace}\n"
    assert "is gone" in result.stderr


@pytest.mark.parametrize("work_dir", ["missing", "..", "/", "file", "link", "a\0b"])
@pytest.mark.shared_session
def test_a_work_dir_that_is_no_good_is_refused_before_anything_runs(session: Session, work_dir: str) -> None:
    (session.workspace / "file").write_text("x")
    (session.workspace / "link").unlink(missing_ok=True)
    (session.workspace / "link").symlink_to("/etc")
    with pytest.raises(InvalidWorkDir):
        session.execute_command("touch ran", work_dir=work_dir)
    assert not (session.workspace / "ran").exists()


@pytest.mark.shared_session
def test_stdin_goes_in_and_ends(session: Session) -> None:
    text = "one\ntwo \u65e5\n" * 50_000
    result = session.execute_command("sha256sum; wc -c < /dev/null", stdin=text)
    import hashlib  # noqa: PLC0415 - only here

    assert result.stdout.split()[0] == hashlib.sha256(text.encode()).hexdigest()
    assert session.execute_command("cat; echo end").stdout == "end\n"
    assert session.execute_command("head -c 3", stdin="x" * 4_000_000).stdout == "xxx"


@pytest.mark.parametrize("command", ["", " \n", "a\0b", "\ud800", "x" * (5 * 1024 * 1024)])
@pytest.mark.shared_session
def test_a_command_that_no_shell_could_take_is_refused(session: Session, command: str) -> None:
    with pytest.raises(InvalidCode):
        session.execute_command(command)


@pytest.mark.parametrize("size", [99_000, 101_000, 1_000_000])
def test_a_command_may_be_long(session: Session, size: int) -> None:
    result = session.execute_command(f": {'x' * size}\ncd /tmp && export LONG={size}\necho end")
    assert (result.stdout, result.exit_code) == ("end\n", 0)
    assert session.execute_command("pwd; echo $LONG").stdout == f"/tmp\n{size}\n"


@pytest.mark.shared_session
def test_here_documents_quotes_and_unicode(session: Session) -> None:
    command = "cat <<'END'\n$not 'a' \"b\" `c` \\d \u65e5\nEND\necho \"it's $((6 * 7))\""
    assert session.execute_command(command).stdout == "$not 'a' \"b\" `c` \\d \u65e5\nit's 42\n"


@pytest.mark.shared_session
def test_bytes_that_are_no_text_are_replaced(session: Session) -> None:
    result = session.execute_command(r"printf 'a\xff\xe6\x97\xa5b'; printf '\xe6\x97' >&2")
    assert (result.stdout, result.stderr) == ("a\ufffd\u65e5b", "\ufffd")


def test_a_child_in_the_background_does_not_hold_the_command_up(session: Session) -> None:
    result = session.execute_command("sleep 600 & echo $!")
    assert (result.exit_code, result.interrupted) == (0, None)
    child = process_of(session, int(result.stdout))
    assert Path(f"/proc/{child}").exists()
    session.close()
    assert gone(child)


def test_late_output_of_a_child_stays_with_its_command(session: Session) -> None:
    first = session.execute_command("mkfifo gate; (read line < gate; echo late) & echo now")
    assert first.stdout == "now\n"
    second = session.execute_command("echo go > gate; echo second")
    until(lambda: (session.wait_for(first.execution_id).result or first).late)
    late = (session.wait_for(first.execution_id).result or first).late
    assert [output.text for output in late if hasattr(output, "text")] == ["late\n"]
    assert second.stdout == "second\n"


def test_a_timeout_ends_the_whole_group(session: Session) -> None:
    result = session.execute_command("sleep 601 & sleep 602 & (sleep 603; :) & echo $!; jobs -p; wait", timeout=slow(2))
    assert (result.exit_code, result.interrupted, result.state) == (124, "timeout", "kept")
    pids = [int(line) for line in result.stdout.split()]
    assert len(pids) == 4
    session.execute(f"import pathlib\ndef ended(pid):\n    path = pathlib.Path(f'/proc/{{pid}}/stat')\n    {ENDED}")
    session.execute(f"import time\nwhile not all(map(ended, {pids})): time.sleep(0.01)").raise_for_error()


@pytest.mark.shared_session
def test_a_command_leads_a_group_of_its_own(session: Session) -> None:
    ids = session.execute_command("cut -d' ' -f1,5,6 /proc/$$/stat").stdout.split()
    assert len(set(ids)) == 1
    assert session.execute("import os; os.getpgid(0)").text.strip() != ids[0]


MAGICS = {
    "!echo a; echo b >&2": ("a\n", "b\n", 0),
    "!exit 3": ("", "", 3),
    "%%bash\necho a\necho b >&2\nexit 4": ("a\n", "b\n", 4),
    "%%sh\necho $0": ("sh\n", "", 0),
    "%%bash -s x y\necho $1 $2": ("x y\n", "", 0),
    "%%bash --no-raise-error\nexit 5": ("", "", 5),
    "x = !echo one; echo two\nprint(list(x))": ("['one', 'two']\n", "", 0),
    "print(get_ipython().getoutput('echo a', split=False))": ("a\n\n", "", 0),
    "%sx echo listed": ("", "", 0),
    "!!echo listed": ("", "", 0),
    "%%bash --out found\necho caught": ("", "", 0),
    "%%bash --bg\ntrue": ("", "", 0),
    "%%script python3\nprint('scripted')": ("scripted\n", "", 0),
    "name = 'value'\n!echo {name} $name": ("value value\n", "", 0),
    "import os; _ = os.system('echo by hand')": ("by hand\n", "", 0),
    "import subprocess; _ = subprocess.run(['echo', 'child'])": ("child\n", "", 0),
}


@pytest.mark.parametrize(("code", "expected"), MAGICS.items(), ids=MAGICS)
@pytest.mark.shared_session
def test_shell_magics_work_as_in_jupyter(session: Session, code: str, expected: tuple[str, str, int]) -> None:
    result = session.execute(code)
    stdout, stderr, exit_code = expected
    assert (result.stdout, result.stderr, result.exit_code) == (stdout, stderr, exit_code), result.text
    if "listed" in code:
        assert result.text == "['listed']"
    if "--out found" in code:
        assert session.execute("found").text == "'caught\\n'"


@pytest.mark.shared_session
def test_a_command_after_code_that_failed_has_its_own_exit_code(session: Session) -> None:
    session.execute("!exit 9")
    assert session.execute("1 / 0").exit_code == 1
    assert session.execute("1").exit_code == 0
    assert session.execute_command("true").exit_code == 0


@pytest.mark.shared_session
def test_commands_find_the_kernels_interpreter_environment(session: Session) -> None:
    result = session.execute_command('echo "$TERM $NO_COLOR $PAGER"; test -t 1 || echo no terminal')
    assert result.stdout == "dumb 1 cat\nno terminal\n"
    assert "KERNELEXEC_LAUNCH" not in session.execute_command("env").stdout
    assert os.environ.get("KERNELEXEC_LAUNCH") is None
