"""Questions that a cell asks by input(): the caller may take its time; silence is the end of a file, not of a kernel."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from kernelexec import ExecutionResult, Executor, InputRequest, InvalidRequest, Session
from tests.conftest import EVERY_WAY, executor_of
from tests.support.pace import BOUND, slow, until
from tests.support.secret_values import AWKWARD, MARK, shown
from tests.support.secret_values import config as with_secrets
from tests.support.takeovers import inherited, kill_after, session_owner

#: What runs in containers and namespaces in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = ("test_a_cell_is_answered_and_its_output_reads_like_the_dialogue[container]",)


class Answers:
    """Answers with one after the other, and keeps what was asked."""

    def __init__(self, *answers: Any) -> None:
        self.requests: list[InputRequest] = []
        self._answers = list(answers)

    def __call__(self, request: InputRequest) -> Any:
        self.requests.append(request)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def end_of_file(result: ExecutionResult) -> str:
    """Why a cell that asked has no answer."""
    assert result.error is not None
    assert (result.error.ename, result.state) == ("EOFError", "kept")
    return result.error.evalue


@pytest.fixture(scope="module", params=EVERY_WAY)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def local_executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    with executor_of("local", tmp_path_factory.mktemp("local")) as opened:
        yield opened


@pytest.fixture
def local(local_executor: Executor, request: pytest.FixtureRequest) -> Iterator[Session]:
    with local_executor.session(f"t{abs(hash(request.node.nodeid)) % 10**8}") as opened:
        yield opened


def test_a_cell_is_answered_and_its_output_reads_like_the_dialogue(session: Session) -> None:
    answers = Answers("Ada", "37")
    result = session.execute("name = input('Name? ')\nage = int(input('Age? '))\nprint(name, age + 1)", on_input=answers)
    assert result.text == "Name? Ada\nAge? 37\nAda 38\n"
    assert [request.prompt for request in answers.requests] == ["Name? ", "Age? "]
    assert {(item.execution_id, item.session, item.password) for item in answers.requests} == {
        (result.execution_id, session.name, False)
    }
    assert session.execute("name").text == "'Ada'"


def test_without_an_answering_client_it_is_an_error_at_once(session: Session) -> None:
    result = session.execute("input('Name? ')")
    assert result.error is not None
    assert (result.error.ename, result.state) == ("StdinNotImplementedError", "kept")


def test_a_password_is_not_shown(session: Session) -> None:
    answers = Answers("geheim")
    result = session.execute("import getpass; found = getpass.getpass('Key: '); len(found)", on_input=answers)
    assert (result.text, answers.requests[0].password) == ("Key: \n6", True)


def test_an_interrupt_ends_the_waiting(session: Session) -> None:
    for code in ("x = input()", "import asyncio\nawait asyncio.sleep(0)\nx = input()"):
        asked, end = threading.Event(), threading.Event()

        def ask(_request: InputRequest, asked: threading.Event = asked, end: threading.Event = end) -> None:
            asked.set()
            end.wait(BOUND)

        running = session.execute(code, on_input=ask, wait=0.01)
        assert asked.wait(BOUND)
        result = session.interrupt()  # which does not wait for an answer: there is none before its end
        end.set()
        assert result is not None
        assert (result.execution_id, result.interrupted, result.state) == (running.execution_id, "request", "kept")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "there is no answer"),
        (EOFError("closed for today"), "closed for today"),
        (ValueError("no"), "ValueError: no"),
        (5, "the answer must be text, not 5"),
    ],
)
def test_invalid_answers_to_input_are_an_end_of_file(answer: Any, reason: str, local: Session) -> None:
    assert end_of_file(local.execute("input('?')", on_input=Answers(answer))) == reason


def test_time_until_the_answer_is_not_the_cells(local: Session) -> None:
    def late(_request: InputRequest) -> str:
        time.sleep(slow(2) + 0.5)
        return "late, and in time"

    result = local.execute("print(input())", on_input=late, timeout=slow(2))
    assert (result.status, result.interrupted) == ("ok", None)
    result = local.execute("input(); import time; time.sleep(600)", on_input=Answers("at once"), timeout=1)
    assert (result.interrupted, result.state) == ("timeout", "kept")


def test_silence_has_a_bound_and_no_question_is_repeated(tmp_path: Path) -> None:
    with executor_of("local", tmp_path, budgets={"approval": 0.5, "timeout": slow(2)}) as executor:
        session, asked, end = executor.session(), [], threading.Event()

        def silent(request: InputRequest) -> None:
            asked.append(request)
            end.wait(BOUND)

        assert end_of_file(session.execute("input()", on_input=silent)) == "there was no answer within 0.5 s"
        stubborn = "while True:\n    try:\n        input()\n    except EOFError:\n        pass"
        result = session.execute(stubborn, on_input=silent)
        assert (result.interrupted, result.state) == ("timeout", "kept")
        assert len(asked) == 2
        assert session.execute("1 + 1").text == "2"
        end.set()


def test_threads_ask_too_and_forked_processes_do_not(local: Session) -> None:
    threads = """
import threading
from pathlib import Path
found, refused = [], []
def ask(n):
    try:
        found.append(input(f'q{n}'))
    except EOFError as error:
        refused.append(str(error))
        if len(refused) == 20: Path('refused').touch()
threads = [threading.Thread(target=ask, args=(n,)) for n in range(30)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""

    def late(request: InputRequest) -> str:
        until((local.workspace / "refused").exists)  # all have asked by then
        return request.prompt.upper()

    assert local.execute(threads, on_input=late).status == "ok"
    assert local.execute("len(found), set(refused), all(one[0] == 'Q' for one in found)").text == (
        "(10, {'too many input requests wait'}, True)"
    )
    forked = "import os, warnings\nwarnings.simplefilter('ignore')  # of forks beside threads\n"
    forked += "if not os.fork():\n    try: input()\n    except EOFError: os._exit(7)\nos.wait()[1] >> 8"
    assert local.execute(forked, on_input=Answers("never")).text == "7"


def test_a_question_shows_no_secret(tmp_path: Path) -> None:
    with executor_of("local", tmp_path / "workspaces", **with_secrets("local", tmp_path)) as executor:
        answers = Answers("yes")
        result = executor.session().execute("import os; input(os.environ['API_KEY'] + '?')", on_input=answers)
    assert AWKWARD not in answers.requests[0].prompt
    assert answers.requests[0].prompt == f"{MARK}?"
    assert shown(result.text) == []


def test_a_new_owner_answers_no_earlier_request(tmp_path: Path) -> None:
    code = "try:\n    input('Name? ')\nexcept EOFError as error:\n    print('no', error)"

    async def taken(path: Path) -> ExecutionResult:
        async with inherited(tmp_path, path) as session:
            actual = await session.wait_for(session.executions()[-1], wait=BOUND)
            assert actual.result is not None
            return actual.result

    with session_owner(tmp_path, "x = 1", code) as (owner, path):
        kill_after(owner, "asked Name?")
        result = anyio.run(taken, path)
    assert (result.status, result.state) == ("ok", "kept")
    assert result.text == "Name? no no client can answer\n"


def test_invalid_input_handlers_are_refused(local: Session) -> None:
    with pytest.raises(InvalidRequest, match="on_input=5"):
        local.execute("1", on_input=5)  # type: ignore[arg-type]


def test_other_languages_learn_that_no_client_answers(tmp_path: Path) -> None:
    with executor_of("local", tmp_path) as executor:
        session = executor.session()
        result = session.execute("read -p 'Name? ' name; echo \"<$name>\"", language="bash", on_input=Answers("never"))
    assert "<>" in result.text
