"""Validators and approvers: their decisions are carried out, and silence is never a yes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kernelexec import (
    Allow,
    Approval,
    ApprovalRequest,
    Ask,
    AsyncExecutor,
    Deny,
    ExecutionFailed,
    ExecutionResult,
    Executor,
    Proposal,
    Rewrite,
    SecurityError,
    Session,
)
from kernelexec.errors import InvalidCode, InvalidRequest
from tests.support.command_line import COMMAND, LOCAL
from tests.support.mcp_clients import ERAS, connected, record_of, text_of
from tests.support.mcp_in_memory import InMemory
from tests.support.night import at_night, named_cases
from tests.support.pace import BOUND, slow
from tests.support.terminal import Terminal

COUNTING = "count = globals().get('count', 0) + 1"
AGREED, DENIED = Approval(approved=True), Approval(approved=False)


class Asked:
    """An approver that keeps what it was asked, and gives the next of its answers."""

    def __init__(self, *answers: Any) -> None:
        self.requests: list[ApprovalRequest] = []
        self._answers = list(answers)

    def __call__(self, request: ApprovalRequest, /) -> Any:
        self.requests.append(request)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def opened(tmp_path: Path, **options: Any) -> Executor:
    return Executor("local", workspace=tmp_path, **options)


def refused(result: ExecutionResult) -> str:
    """Why a cell did not run; nothing of it did."""
    assert (result.status, result.exit_code, result.text) == ("aborted", -1, "")
    assert result.diagnosis is not None
    assert result.diagnosis.kind == "refused"
    [note] = result.notes
    return note


def test_validators_decide_one_after_the_other(tmp_path: Path) -> None:
    seen: list[tuple[str, str, str, str]] = []

    def first(proposal: Proposal) -> Allow | Rewrite | None:
        seen.append((proposal.kind, proposal.language, proposal.source, threading.current_thread().name))
        return Rewrite(proposal.source.replace("1", "20"), "twenty is better") if "1" in proposal.source else Allow()

    async def second(proposal: Proposal) -> Deny | None:
        seen.append((proposal.kind, proposal.language, proposal.source, ""))
        return Deny("no letters") if "x" in proposal.source else None

    with opened(tmp_path, validators=[first, second]) as executor:
        session = executor.session()
        result = session.execute("1 + 2")
        assert result.text == "22"
        assert result.notes == ("A validator rewrote the cell: twenty is better.",)
        assert "no letters" in refused(session.execute("x = 2"))
        assert "no letters" in refused(session.execute_command("echo x"))
        assert session.execute("2").notes == ()
        assert session.execute_command("echo 1").stdout == "20\n"
        assert session.execute("console.log(1)", language="javascript").stdout == "20\n"
    assert [actual[:3] for actual in seen[:4]] == [
        ("code", "python", "1 + 2"),
        ("code", "python", "20 + 2"),
        ("code", "python", "x = 2"),
        ("code", "python", "x = 2"),
    ]
    assert ("command", "bash", "echo x") in [actual[:3] for actual in seen]
    assert ("command", "javascript", "console.log(1)") in [actual[:3] for actual in seen]


def test_errors_of_a_validator_are_denials(tmp_path: Path) -> None:
    def fails(_proposal: Proposal) -> None:
        raise ValueError("it holds a plan")

    with opened(tmp_path, validators=[fails]) as executor:
        result = executor.session().execute("1")
        assert "ValueError: it holds a plan" in refused(result)
        with pytest.raises(SecurityError, match="it holds a plan") as caught:
            result.raise_for_error()
        assert not caught.value.may_have_run


DECISIONS = {"reason": (Ask(5), Ask(None), Deny(5), Rewrite("1", 5)), "source": (Rewrite(None), Rewrite(b"1"))}  # type: ignore[arg-type]
FIELDS = {repr(each): (field, each) for field, decisions in DECISIONS.items() for each in decisions}


@pytest.mark.parametrize(("field", "decision"), named_cases(FIELDS, {repr(Ask(5)), repr(Rewrite(b"1"))}))  # type: ignore[arg-type]
def test_a_decision_with_a_field_of_another_type_is_a_denial(
    field: str, decision: Ask | Deny | Rewrite, tmp_path: Path
) -> None:
    with opened(tmp_path, approver=Asked(AGREED), validators=[lambda _: decision]) as executor:
        expected = f"A validator denies it: it returned {decision!r}; its {field} must be str"
        assert expected in refused(executor.session().execute("1"))


ENDINGS = (SystemExit("gone"), KeyboardInterrupt("gone"), asyncio.CancelledError("gone"), BaseException("gone"))


def _raising(ending: BaseException, *, waits: bool) -> Callable[[object], Any]:
    """A function of one thing, plain or not, that ends as functions do not."""

    def ends(_given: object) -> bool:
        raise ending

    async def ends_later(settings: object) -> bool:
        await anyio.lowlevel.checkpoint()
        return ends(settings)

    return ends_later if waits else ends


RAISED = {
    f"{part}, {type(ending).__name__}{', coroutine' if waits else ''}": (part, ending, waits)
    for part in ("approver", "validator")
    for ending in ENDINGS
    for waits in (False, True)
}
#: Each part, each exception, and both kinds of functions.
OF_EACH_KIND = {
    "approver, SystemExit",
    "approver, KeyboardInterrupt, coroutine",
    "approver, CancelledError, coroutine",
    "validator, KeyboardInterrupt",
    "validator, CancelledError, coroutine",
    "validator, BaseException",
}


@pytest.mark.parametrize(("part", "ending", "waits"), named_cases(RAISED, OF_EACH_KIND))
def test_raised_errors_end_only_the_cell(part: str, ending: BaseException, waits: bool, tmp_path: Path) -> None:  # noqa: FBT001
    raising = _raising(ending, waits=waits)
    options = {"approver": raising} if part == "approver" else {"validators": [raising]}
    with opened(tmp_path, config={"rules": {"ask": "always"}}, **options) as executor:
        for name in ("a", "a", "b"):
            problem = refused(executor.session(name).execute("1", approver=None))
            assert f"{type(ending).__name__}: gone" in problem
        with pytest.raises(SecurityError, match=type(ending).__name__):
            executor.session("a").start_background("sleep 60")


def test_an_approver_that_cancels_its_own_task_refuses(tmp_path: Path) -> None:
    async def cancels(_request: ApprovalRequest) -> bool:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await anyio.lowlevel.checkpoint()
        return True

    with opened(tmp_path, approver=cancels, config={"rules": {"ask": "refused"}}) as executor:
        session = executor.session()
        assert "CancelledError" in refused(session.execute_command("sudo true"))
        assert session.execute("1").text == "1"


@pytest.mark.parametrize("expected", [True, *at_night("yes", 1), object()])
def test_invalid_decisions_are_denials(expected: Any, tmp_path: Path) -> None:
    with opened(tmp_path, validators=[lambda _: expected]) as executor:
        assert "must return Allow, Ask, Deny, Rewrite or None" in refused(executor.session().execute("1"))


def test_a_rewritten_cell_is_judged_by_the_rules(tmp_path: Path) -> None:
    with opened(tmp_path, validators=[lambda _: Rewrite("!rm -rf /")]) as executor:
        assert "rule 'rm-root'" in refused(executor.session().execute("1"))


def test_a_cell_that_was_rewritten_into_none_is_an_error(tmp_path: Path) -> None:
    with opened(tmp_path, validators=[lambda _: Rewrite("  ")]) as executor:
        session = executor.session()
        with pytest.raises(InvalidCode, match="A validator rewrote the cell into code that cannot run"):
            session.execute("1")


def test_a_rewritten_request_is_known_by_what_was_asked(tmp_path: Path) -> None:
    with opened(
        tmp_path, validators=[lambda proposal: Rewrite(f"count = globals().get('count', 0) + 1\n{proposal.source}")]
    ) as ex:
        session = ex.session()
        for _ in range(3):
            assert session.execute("count", request_id="once").text == "1"
        with pytest.raises(InvalidRequest, match="another cell"):
            session.execute("count + 1", request_id="once")
    with opened(tmp_path) as executor:
        assert executor.session().execute("count", request_id="once").text == "1"


YES: dict[str, Callable[[], Any]] = {
    "a plain function": lambda: lambda _: True,
    "with a reason": lambda: lambda _: Approval(approved=True, reason="fine"),
    "a coroutine function": lambda: _agree,
    "a validator's decision": lambda: lambda _: Allow(),
}
NO: dict[str, tuple[Callable[[], Any], str]] = {
    "no": (lambda: lambda _: False, "It was not approved"),
    "no, with a reason": (lambda: lambda _: Approval(approved=False, reason="not today"), "not today"),
    "a validator's decision": (lambda: lambda _: Deny("not today"), "It was not approved: not today."),
    "nothing": (lambda: lambda _: None, "the approver returned None; it must return Approval, Allow, Deny, True or False"),
    "a word": (lambda: lambda _: "yes", "the approver returned 'yes'; it must return"),
    "a word in an approval": (lambda: lambda _: Approval("no"), "'no', reason=''); its approved must be bool"),  # type: ignore[arg-type]
    "a number as a reason": (lambda: lambda _: Approval(True, 5), "the approver returned"),  # type: ignore[arg-type]  # noqa: FBT003
    "a number in a decision": (lambda: lambda _: Deny(5), "returned Deny(reason=5); its reason must be str"),  # type: ignore[arg-type]
    "an exception": (lambda: Asked(RuntimeError("gone")), "RuntimeError: gone"),
    "no answer": (lambda: _never, "no answer within 0.2 s"),
    "no answer, and a thread": (lambda: lambda _: time.sleep(1), "no answer within 0.2 s"),
    "nobody": (lambda: None, "there is no approver"),
}
LIKE_ANOTHER_NO = {"no", "a validator's decision", "a word in an approval", "a number as a reason"}


async def _agree(_request: ApprovalRequest) -> bool:
    await anyio.lowlevel.checkpoint()
    return True


async def _never(_request: ApprovalRequest) -> bool:
    await anyio.sleep_forever()
    return True


@pytest.mark.parametrize("approver", named_cases(YES, {"a plain function", "a coroutine function"}))
def test_an_approved_cell_runs_and_says_so(approver: Callable[[], Any], tmp_path: Path) -> None:
    with opened(tmp_path, approver=approver(), config={"rules": {"ask": "always"}}) as executor:
        result = executor.session().execute("1 + 1")
        assert result.text == "2"
        assert result.notes[0].startswith("It was approved")


@pytest.mark.parametrize(("approver", "problem"), named_cases(NO, NO.keys() - LIKE_ANOTHER_NO))
def test_all_answers_but_an_approval_are_denials(approver: Callable[[], Any], problem: str, tmp_path: Path) -> None:
    options = {"rules": {"ask": "always"}, "budgets": {"approval": 0.2 if "no answer" in problem else BOUND}}
    with opened(tmp_path, approver=approver(), config=options) as executor:
        assert problem in refused(executor.session().execute("1 + 1"))


def test_approvers_are_asked_only_about_refused_cells(tmp_path: Path) -> None:
    asked = Asked(AGREED, DENIED)
    rules = {"ask": "refused", "blocked_commands": ["echo"]}
    with opened(tmp_path, approver=asked, config={"rules": rules}) as executor:
        session = executor.session("a")
        assert session.execute("1").notes == ()
        assert session.execute_command("echo approved").stdout == "approved\n"
        assert "rule 'blocked-commands'" in refused(session.execute("!echo denied"))
    first, second = asked.requests
    assert first.proposal == Proposal("a", "command", "bash", "echo approved")
    assert second.proposal == Proposal("a", "code", "python", "!echo denied")
    assert "blocked by 'echo'" in first.reasons[0]


@pytest.mark.parametrize("cell", [*at_night("!chmod 600 a"), "import os\nassert os.system('chmod 600 a') == 0"])
def test_cells_approved_against_the_rules_may_start_refused_programs(cell: str, tmp_path: Path) -> None:
    with opened(tmp_path, approver=Asked(AGREED), config={"rules": {"ask": "refused"}}) as executor:
        session = executor.session()
        assert session.execute("open('a', 'w').close()").ok
        assert session.execute(cell).ok
        for _ in range(2):
            result = session.execute("import os\nos.system(''.join(['ch', 'mod 600 a']))")
            assert result.error is not None
            assert "rule 'chmod'" in result.error.evalue


def test_cells_approved_for_other_reasons_are_held_to_the_rules(tmp_path: Path) -> None:
    asked = Asked(AGREED)
    with opened(tmp_path, approver=asked, config={"rules": {"ask": "always"}}) as executor:
        result = executor.session().execute("import os\nos.system(''.join(['ch', 'mod 600 a']))")
        assert result.error is not None
        assert "rule 'chmod'" in result.error.evalue
    assert asked.requests


def test_a_validator_has_the_approver_asked(tmp_path: Path) -> None:
    asked = Asked(AGREED)
    with opened(tmp_path, approver=asked, validators=[lambda _: Ask("it sends mail")]) as executor:
        assert executor.session().execute("1").text == "1"
    assert asked.requests[0].reasons == ("it sends mail",)


def test_a_call_brings_an_approver_of_its_own(tmp_path: Path) -> None:
    executors, calls = Asked(DENIED), Asked(AGREED, AGREED)
    with opened(tmp_path, approver=executors, config={"rules": {"ask": "always"}}) as executor:
        session = executor.session()
        assert session.execute("1", approver=calls).ok
        assert session.execute_command("true", approver=calls).ok
        refused(session.execute("1"))


def test_waiting_for_an_answer_counts_in_no_budget_of_the_cell(tmp_path: Path) -> None:
    timeout = slow(2)
    waited = timeout + 0.5

    def hesitant(_request: ApprovalRequest) -> bool:
        time.sleep(waited)
        return True

    with opened(tmp_path, approver=hesitant, config={"rules": {"ask": "always"}}) as executor:
        session = executor.session()
        begun = time.monotonic()
        result = session.execute("'done'", timeout=timeout)
        assert result.text == "'done'"
        assert result.timing.run + waited <= time.monotonic() - begun


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[tuple[Session, threading.Event]]:
    """A session whose approver has been asked when the event is set, and does not answer."""
    was_asked = threading.Event()

    async def silent(_request: ApprovalRequest) -> bool:
        was_asked.set()
        await anyio.sleep_forever()
        return True

    with opened(tmp_path, approver=silent, config={"rules": {"ask": "always"}}) as executor:
        yield executor.session(), was_asked


def test_a_cell_that_waits_for_an_answer_can_be_cancelled(asking: tuple[Session, threading.Event]) -> None:
    session, was_asked = asking
    running = session.execute("1", wait=0.01)
    assert running.status == "running"
    assert was_asked.wait(BOUND)
    ended = session.interrupt(running.execution_id)
    assert ended is not None
    assert (ended.status, ended.notes) == ("aborted", ("Cancelled during its approval.",))


def test_a_validator_that_is_waited_for_can_be_cancelled(tmp_path: Path) -> None:
    was_asked = threading.Event()

    async def silent(_proposal: Proposal) -> None:
        was_asked.set()
        await anyio.sleep_forever()

    with opened(tmp_path, validators=[silent]) as executor:
        session = executor.session()
        running = session.execute("1", wait=0.01)
        assert was_asked.wait(BOUND)
        ended = session.interrupt(running.execution_id)
        assert ended is not None
        assert ended.notes == ("Cancelled during its approval.",)
        session.execute("1", wait=0.01)


def test_a_cancelled_caller_waits_no_longer(tmp_path: Path) -> None:
    async def cancelled() -> None:
        asked = anyio.Event()

        async def silent(_request: ApprovalRequest) -> bool:
            asked.set()
            return await _never(_request)

        async with AsyncExecutor("local", workspace=tmp_path, approver=silent, config={"rules": {"ask": "always"}}) as executor:
            session = await executor.session()
            starting = asyncio.create_task(session.start_background("sleep 60"))
            await asked.wait()
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            assert await session.background_commands() == ()

    asyncio.run(cancelled())


def test_a_session_closes_while_a_cell_waits_for_an_answer(asking: tuple[Session, threading.Event]) -> None:
    session, was_asked = asking
    session.execute("1", wait=0.01)
    assert was_asked.wait(BOUND)
    session.close()


SILENT = """
import asyncio, sys, threading
from kernelexec import AsyncExecutor

asked = threading.Event()

def silent(*_):
    asked.set()
    threading.Event().wait()

async def main():
    config = {"quiet": True, "preload": ()}
    executor = await AsyncExecutor("local", workspace=sys.argv[1], config=config, validators=[silent]).open()
    running = asyncio.create_task((await executor.session("a")).execute("1"))
    await asyncio.to_thread(asked.wait)
    await executor.close()
    print((await running).status)

asyncio.run(main())
"""


def test_a_validator_that_does_not_return_keeps_no_program_from_its_end(tmp_path: Path) -> None:
    words = [sys.executable, "-c", SILENT, str(tmp_path)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=BOUND, check=False)
    assert (ended.returncode, ended.stdout) == (0, "aborted\n"), ended.stderr


def test_cells_keep_their_order_while_one_waits_for_an_answer(tmp_path: Path) -> None:
    async def in_order() -> None:
        go = anyio.Event()

        async def first_waits(request: ApprovalRequest) -> bool:
            if "first" in request.proposal.source:
                await go.wait()
            return True

        async with AsyncExecutor("local", workspace=tmp_path, approver=first_waits, config={"rules": {"ask": "always"}}) as ex:
            session = await ex.session()
            first = await session.execute("x = 'first'", wait=0.01)
            second = await session.execute("x += ' second'; x", wait=0.2)
            assert (first.status, second.status) == ("running", "running")
            go.set()
            actual = await session.wait_for(second.execution_id)
            assert actual.result is not None
            assert actual.result.text == "'first second'"

    anyio.run(in_order)


def test_the_journal_names_the_approver(tmp_path: Path) -> None:
    with opened(tmp_path, approver=Asked(AGREED, DENIED), config={"rules": {"ask": "always"}}) as executor:
        session = executor.session("a")
        session.execute("1")
        session.execute("2")
        journal = session.journal
    assert journal is not None
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    finished = next(line for line in lines if line["event"] == "finished")
    aborted = next(line for line in lines if line["event"] == "aborted")
    assert finished["notes"][0].startswith("It was approved")
    assert (aborted["decision"], aborted["rule"], aborted["code"]) == ("refused", "rule 'approval'", "2")


@pytest.mark.parametrize(
    "options",
    [{"validators": [1]}, {"validators": "x"}, {"validators": len}, {"approver": "me"}],
    ids=["one", "text", "function", "approver"],
)
def test_validators_and_approvers_must_be_callable(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(options))):
        opened(tmp_path, **options)


def test_a_failed_cell_is_no_security_error(tmp_path: Path) -> None:
    with opened(tmp_path) as executor, pytest.raises(ExecutionFailed) as caught:
        executor.session().execute("1/0").raise_for_error()
    assert not isinstance(caught.value, SecurityError)


ANSWERS = {"yes": (True, True), "no": (False, False), "declined": (None, False)}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("answer", "runs"), named_cases(ANSWERS, {"yes", "declined"}))
def test_a_client_is_asked_over_mcp(era: str, answer: bool | None, runs: bool, tmp_path: Path) -> None:  # noqa: FBT001
    from fastmcp.client.elicitation import ElicitResult  # noqa: PLC0415 - only where MCP is installed

    questions: list[str] = []

    async def elicited(message: str, response_type: Any, params: Any, _context: Any) -> Any:
        questions.append(message)
        if answer is None:
            return ElicitResult(action="decline")
        name = next(iter(params.requested_schema["properties"]))
        return ElicitResult(action="accept", content={name: answer})

    with connected(InMemory(tmp_path, "--ask", "refused"), era, elicitation_handler=elicited) as agent:
        assert agent.text("execute_code", code="1 + 1") == "2"
        assert questions == []
        code = agent.call("execute_code", code="!sudo --version; echo ran")
        command = agent.call("execute_command", command="sudo --version; echo ran")
        assert len(questions) == 2
        assert "sudo --version; echo ran" in questions[0]
        assert "rule 'sudo'" in questions[0]
        actual = command.structured_content
        assert actual is not None
        assert ("ran" in text_of(code).splitlines()) == runs
        assert actual["exit_code"] == (0 if runs else -1)
        assert record_of(code)["status"] == ("ok" if runs else "aborted")


@pytest.mark.parametrize("era", ERAS)
def test_a_client_that_cannot_be_asked_refuses(era: str, tmp_path: Path) -> None:
    with connected(InMemory(tmp_path, "--ask", "always"), era) as agent:
        expected = agent.call("execute_code", code="1 + 1")
        assert "cannot be asked" in text_of(expected)
        assert record_of(expected)["status"] == "aborted"


@pytest.mark.parametrize(("typed", "status"), [("y\n", 0), pytest.param("n\n", 126, marks=pytest.mark.nightly), ("\n", 126)])
def test_a_person_is_asked_at_the_terminal(typed: str, status: int, tmp_path: Path) -> None:
    words = [COMMAND, "exec", "print(6 * 7)  # \x1b[2K", *LOCAL, "--ask", "always"]
    with Terminal(words, cwd=tmp_path) as terminal:
        terminal.expect(r"Run this python cell\? \[y/N\]")
        assert "\\x1b[2K" in terminal.text
        terminal.send(typed)
        assert terminal.process.wait(BOUND) == status


def test_without_a_terminal_every_answer_is_no(tmp_path: Path) -> None:
    import subprocess  # noqa: PLC0415

    words = [COMMAND, "exec", "print(6 * 7)", *LOCAL, "--ask", "always"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, start_new_session=True, timeout=60, check=False)
    assert done.returncode == 126
    assert "no terminal" in done.stderr
    assert "42" not in done.stdout
