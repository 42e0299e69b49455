"""LangChain's standard tests for sandboxes, on a session, and on a backend that only calls the shell."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests

from kernelexec import Executor
from kernelexec.adapters.deepagents import SessionSandbox

CONFIG = {"rules": {"dangers": False}, "container": {"image": os.environ["SUITE_IMAGE"]}}


class TestSessionSandbox(SandboxIntegrationTests):  # type: ignore[misc] # it is in no environment of the tests
    root = ""

    @property
    def sandbox_root_dir(self) -> str:
        return f"{self.root}/files"

    @pytest.fixture(scope="class")
    def sandbox(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionSandbox]:
        workspace = tmp_path_factory.mktemp("sandbox")
        with Executor(os.environ["SUITE_ISOLATION"], workspace=workspace, config=CONFIG) as executor:
            session = executor.session("sandbox")
            type(self).root = session.workspace_inside
            yield SessionSandbox(session)


class ShellSandbox(BaseSandbox):
    """The least that the framework asks of a backend."""

    id = "shell"

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        ended = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=timeout, check=False)
        return ExecuteResponse(ended.stdout + ended.stderr, exit_code=ended.returncode)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        for path, content in files:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_bytes(content)
        return [FileUploadResponse(path) for path, _ in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [FileDownloadResponse(path, Path(path).read_bytes()) for path in paths]


class TestShellSandbox(SandboxIntegrationTests):  # type: ignore[misc] # it is in no environment of the tests
    """The tests that the framework's own base class decides alone."""

    root = ""

    @property
    def sandbox_root_dir(self) -> str:
        return f"{self.root}/files"

    @pytest.fixture(scope="class")
    def sandbox(self, tmp_path_factory: pytest.TempPathFactory) -> ShellSandbox:
        type(self).root = str(tmp_path_factory.mktemp("shell"))
        return ShellSandbox()
