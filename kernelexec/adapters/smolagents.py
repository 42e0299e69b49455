"""A stateful executor for smolagents: what its ``CodeAgent`` writes runs in a persistent session."""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, Unpack

from kernelexec.adapters.blocks import without_notebooks
from kernelexec.blocking import Executor, Session
from kernelexec.errors import InvalidRequest
from kernelexec.executor import ExecutorOptions
from kernelexec.results import ExecuteResult, ExecutionResult, Output, image_of, remarks

try:
    import PIL.Image
    from smolagents.local_python_executor import CodeOutput
    from smolagents.monitoring import AgentLogger, LogLevel
    from smolagents.remote_executors import RemotePythonExecutor
    from smolagents.utils import AgentExecutionError
except ImportError as exc:
    message = "kernelexec.adapters.smolagents needs smolagents: pip install 'kernelexec[smolagents]'."
    raise ImportError(message) from exc


class PythonExecutor(RemotePythonExecutor):
    """For ``CodeAgent(executor=...)``. It opens at once; ``with``, or ``cleanup()``, which the agent calls, ends it.

    Tools and variables are sent into the kernel by smolagents' own means: as source, and as JSON. A value that only pickle
    could carry is refused. An agent sends them once for each run: into a new kernel, whatever became of the one before, they
    are sent again.

    Args:
        isolation: see ``Executor``.
        additional_imports: packages that are installed for the session first, as ``session.install`` does.
        options: see ``ExecutorOptions``.

    Raises:
        InvalidConfig: settings that do not fit.
        IsolationUnavailable: containers were asked for, by default they are, and there is no engine.
        AgentExecutionError: a package cannot be installed.
    """

    def __init__(
        self, isolation: str | None = None, *, additional_imports: Sequence[str] = (), **options: Unpack[ExecutorOptions]
    ) -> None:
        super().__init__(list(additional_imports), AgentLogger(level=LogLevel.ERROR))
        self._executor = Executor(isolation, **options)
        self._tools: dict[str, Any] = {}
        self._variables: dict[str, Any] = {}
        self._is_sending = False
        self._executor.__enter__()
        self._is_open = True
        try:
            self.session: Session = self._executor.session("smolagents")
            self._epoch = self.session.kernel_epoch
            self.installed_packages = self.install_packages(list(additional_imports))
        except BaseException:
            self.cleanup()
            raise

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Run a cell; its last value, what it printed, and whether it was the final answer.

        A value that is a picture is one, SVG is its source, all else its text. Where a cell has no value, the last picture that
        it displayed is taken.

        Raises:
            AgentExecutionError: it failed; the text is what a model should read of it, state included.
        """
        self._send_again()
        result = self.session.execute(code)
        logs = result.stdout + result.stderr
        error = result.error
        if error is not None and error.ename == self.FINAL_ANSWER_EXCEPTION:
            return CodeOutput(output=self._answer(error.evalue), logs=logs, is_final_answer=True)
        if not result.ok:
            known = remarks(without_notebooks(result))
            report = "\n".join([result.text.rstrip("\n"), *known, f"[{result.status}, state {result.state}]"])
            raise AgentExecutionError(report, self.logger)
        return CodeOutput(output=_value(result), logs=logs, is_final_answer=False)

    def send_tools(self, tools: dict[str, Any]) -> None:
        """Define tools in the kernel, and in each that takes its place. Called by the agent at the beginning of a run.

        Raises:
            AgentExecutionError: it failed, or a package that they need cannot be installed.
        """
        self._send_again()
        with self._sending():
            super().send_tools(_copied(tools))
        self._tools |= tools

    def send_variables(self, variables: dict[str, Any]) -> None:
        """Set variables in the kernel, and in each that takes its place. Called by the agent at the beginning of a run.

        Raises:
            SerializationError: a value that JSON cannot carry.
            AgentExecutionError: it failed.
        """
        self._send_again()
        with self._sending():
            super().send_variables(variables)
        self._variables |= variables

    def _send_again(self) -> None:
        """Have in the kernel what was sent to one that is gone."""
        lives = self.session.connection_file is not None and self.session.kernel_epoch == self._epoch
        if lives or self._is_sending or not (self._tools or self._variables):
            return
        with self._sending():
            super().send_variables(self._variables)
            super().send_tools(_copied(self._tools))

    @contextmanager
    def _sending(self) -> Iterator[None]:
        self._is_sending = True
        try:
            yield
            self._epoch = self.session.kernel_epoch
        finally:
            self._is_sending = False

    def _answer(self, text: str) -> Any:  # noqa: ANN401 - what the agent answers
        try:
            return self._deserialize_final_answer(text, self.allow_pickle)
        except ValueError as exc:  # it was cut
            reason = (
                "The final answer is too large: 64 Ki characters are the most. Save it to a file, and answer with its path."
            )
            raise AgentExecutionError(reason, self.logger) from exc

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Install packages for the session, beside its kernel, but for those that it has.

        Raises:
            AgentExecutionError: they cannot be had.
        """
        there = self.session.environment().packages if additional_imports else {}
        if missing := [name for name in additional_imports if re.sub(r"[-_.]+", "-", name).lower() not in there]:
            try:
                installed = self.session.install(missing)
            except InvalidRequest as exc:
                raise AgentExecutionError(str(exc), self.logger) from exc
            if not installed.ok:
                raise AgentExecutionError(installed.output, self.logger)
        return additional_imports

    def cleanup(self) -> None:
        """End the session, and all that it started. A second call does nothing."""
        if self._is_open:
            self._is_open = False
            self._executor.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup()


def _copied(tools: dict[str, Any]) -> dict[str, Any]:
    """Return the tools to send, with a copy of the final answer's: smolagents rewrites it, and cannot do so twice."""
    return {name: copy.copy(tool) if name == "final_answer" else tool for name, tool in tools.items()}


def _value(result: ExecutionResult) -> Any:  # noqa: ANN401 - a picture, or text
    """Return the value of the last expression; without one, the last picture that was displayed."""
    values = [output for output in result.outputs if isinstance(output, ExecuteResult)]
    if values:
        picture = _picture(values[-1])
        return values[-1].data.get("text/plain") if picture is None else picture
    return next((picture for output in reversed(result.outputs) if (picture := _picture(output)) is not None), None)


def _picture(output: Output) -> PIL.Image.Image | str | None:
    """Return an output's picture: opened, as SVG source, which PIL cannot open, or None."""
    image = image_of(output)
    if image is None:
        return None
    if image.mime == "image/svg+xml":
        return image.content.decode()
    try:
        return PIL.Image.open(io.BytesIO(image.content))
    except (OSError, ValueError, PIL.Image.DecompressionBombError):  # what a cell sent as a picture is none, or too large
        return None
