"""The types of the public API, as a caller's type checker sees them. mypy checks this module; nothing runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

from kernelexec import (
    Allow,
    Approval,
    ApprovalRequest,
    AsyncExecutor,
    AsyncFiles,
    AsyncSession,
    Attempts,
    BackgroundCommand,
    BackgroundOutput,
    Completion,
    Config,
    Deny,
    Diagnosis,
    Error,
    ExecutionResult,
    Executor,
    FileBytes,
    FileList,
    Files,
    FilesCopied,
    FilesDeleted,
    FileText,
    FileWritten,
    Image,
    Installation,
    LimitsSet,
    Output,
    OutputPage,
    Progress,
    Proposal,
    PythonEnvironment,
    Replay,
    Restored,
    Session,
    Snapshot,
    Statistics,
    Stats,
    TestReport,
    Timing,
    Variables,
)


def check_executor(directory: Path) -> None:
    executor = Executor("local", workspace=directory, config={"budgets": {"timeout": 5}})
    Executor(
        isolation="container", use_docker=["image"], config=Config(), hooks=[print], validators=[validate], approver=approve
    )
    assert_type(executor.config, Config)
    assert_type(executor.sessions(), tuple[str, ...])
    assert_type(executor.open_session("name"), Session | None)
    with executor as opened:
        assert_type(opened, Executor)
        assert_type(opened.session("name", work_dir=directory, notebook="a.ipynb"), Session)


def approve(request: ApprovalRequest) -> Approval:
    return Approval(approved=request.proposal.session == "trusted", reason="The session is not trusted.")


def validate(proposal: Proposal) -> Allow | Deny:
    return Deny("Commands are not allowed.") if proposal.kind == "command" else Allow()


def check_session(session: Session) -> None:
    assert_type(session.execute("1 + 1", timeout=1, wait=0.5, request_id="r", language="python"), ExecutionResult)
    assert_type(session.execute_command("ls", work_dir="sub", stdin="text"), ExecutionResult)
    assert_type(session.interrupt(), ExecutionResult | None)
    assert_type(session.executions(), tuple[str, ...])
    assert_type(session.wait_for("id", cursor=3), Progress)
    assert_type(session.read_output("id"), OutputPage)
    assert_type(session.start_background("serve"), BackgroundCommand)
    assert_type(session.background_commands(), tuple[BackgroundCommand, ...])
    assert_type(session.background_output("c1"), BackgroundOutput)
    assert_type(session.variables(), Variables)
    assert_type(session.environment(), PythonEnvironment)
    assert_type(session.complete("im"), Completion)
    assert_type(session.inspect("len"), str | None)
    assert_type(session.execute_with_retry("1 / 0"), Attempts)
    assert_type(session.run_tests("x = 1", ["x == 1"]), TestReport)
    assert_type(session.install("numpy"), Installation)
    assert_type(session.stats(), Stats)
    assert_type(session.statistics, Statistics)
    assert_type(session.replay, Replay | None)
    assert_type(session.set_limits(memory_bytes=2**30), LimitsSet)
    assert_type(session.connection_file, Path | None)
    assert_type(session.files, Files)
    snapshot = session.snapshot(["x"])
    assert_type(snapshot, Snapshot)
    assert_type(session.restore(snapshot), Restored)


def check_files(files: Files) -> None:
    assert_type(files.list(recursive=True), FileList)
    assert_type(files.read("a"), FileText)
    assert_type(files.read_bytes(Path("a")), FileBytes)
    assert_type(files.write("a", b"content"), FileWritten)
    assert_type(files.delete("a"), FilesDeleted)
    assert_type(files.exists("a"), bool)
    assert_type(files.upload(Path("a"), "b"), FilesCopied)
    with Path("a").open("wb") as file:
        assert_type(files.download("b", file), FilesCopied)


def check_result(result: ExecutionResult) -> None:
    assert_type(result.ok, bool)
    assert_type(result.text, str)
    assert_type(result.outputs, tuple[Output, ...])
    assert_type(result.images, tuple[Image, ...])
    assert_type(result.error, Error | None)
    assert_type(result.exit_code, int | None)
    assert_type(result.timing, Timing)
    assert_type(result.diagnosis, Diagnosis | None)
    assert_type(result.lost_names, tuple[str, ...])
    assert_type(result.raise_for_error(), ExecutionResult)
    assert_type(result.to_dict(), dict[str, Any])
    assert_type(ExecutionResult.from_json(result.to_json()), ExecutionResult)


async def check_async(executor: AsyncExecutor) -> None:
    async with executor as opened:
        session = await opened.session("name")
        assert_type(session, AsyncSession)
        assert_type(session.files, AsyncFiles)
        assert_type(await session.execute("1 + 1"), ExecutionResult)
        assert_type(await session.execute_command("ls"), ExecutionResult)
        assert_type(await session.variables(), Variables)
        assert_type(await session.snapshot(), Snapshot)
        assert_type(await session.files.read("a"), FileText)
