"""A stateful executor for smolagents: the code of a ``CodeAgent`` runs in a persistent session."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self, Unpack

from kernelexec.adapters.shared.blocks import remove_notebooks, remove_start_notes
from kernelexec.adapters.shared.typed_json import read_typed_json
from kernelexec.errors import InvalidRequest
from kernelexec.executor.blocking import Executor, Session
from kernelexec.executor.executor import ExecutorOptions
from kernelexec.results import ExecuteResult, ExecutionResult, Output, best_image, model_notes
from kernelexec.results.media import open_picture
from kernelexec.text import format_notes, quote_output

try:
    from smolagents.local_python_executor import CodeOutput
    from smolagents.monitoring import AgentLogger, LogLevel
    from smolagents.remote_executors import RemotePythonExecutor
    from smolagents.utils import AgentExecutionError
except ImportError as exc:
    raise ImportError("kernelexec.adapters.smolagents needs smolagents: pip install 'kernelexec[smolagents]'.") from exc

if TYPE_CHECKING:
    import PIL.Image


class PythonExecutor(RemotePythonExecutor):
    """An executor for ``CodeAgent(executor=...)``, open at once. The end of a ``with`` block or ``cleanup()`` closes it.

    smolagents sends tools to the kernel as source, and variables as JSON. Values in need of pickle are rejected. An agent sends
    tools and variables once per run; this executor sends them again to each new kernel.

    Args:
        isolation: see ``Executor``.
        additional_imports: packages to install first, as by ``session.install``.
        options: see ``ExecutorOptions``.

    Raises:
        InvalidConfig: a setting is invalid.
        IsolationUnavailable: containers are chosen, as by default, and no engine is available.
        AgentExecutionError: a package cannot be installed.
    """

    def __init__(
        self, isolation: str | None = None, *, additional_imports: Sequence[str] = (), **options: Unpack[ExecutorOptions]
    ) -> None:
        super().__init__(list(additional_imports), AgentLogger(level=LogLevel.ERROR))
        self._tools: dict[str, Any] = {}
        self._variables: dict[str, Any] = {}
        self._is_sending = False
        with ExitStack() as opened:
            self.session: Session = opened.enter_context(Executor(isolation, **options)).session("smolagents")
            self._epoch = self.session.kernel_epoch
            self.installed_packages = self.install_packages(list(additional_imports))
            self._opened = opened.pop_all()

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Run a cell and return the last value, the printed text, and whether the value is the final answer.

        A picture is returned as an image, SVG as source, any other value as text. Without a value, the last displayed picture
        is returned.

        Raises:
            AgentExecutionError: the cell failed; the text is for the model, and includes the state.
        """
        self._send_again()
        result = remove_start_notes(self.session.execute(code), self.session)
        logs = quote_output(result.stdout + result.stderr)
        error = result.error
        # smolagents' `final_answer` ends a cell by an exception, whose text is the encoded answer.
        if error is not None and error.ename == self.FINAL_ANSWER_EXCEPTION:
            return CodeOutput(output=self._decode_answer(error.evalue), logs=logs, is_final_answer=True)
        if not result.ok:
            notes = format_notes([*model_notes(remove_notebooks(result)), f"{result.status}, state {result.state}"])
            text = quote_output(result.text).rstrip("\n")
            raise AgentExecutionError(f"{text}\n{notes}", self.logger)
        return CodeOutput(output=_last_value(result), logs=logs, is_final_answer=False)

    def send_tools(self, tools: dict[str, Any]) -> None:
        """Define tools in the kernel and in each later kernel. The agent calls this at the beginning of a run.

        Raises:
            AgentExecutionError: the definition failed, or a needed package cannot be installed.
        """
        self._send_again()
        with self._sending():
            super().send_tools(_copy_final_answer(tools))
        self._tools |= tools

    def send_variables(self, variables: dict[str, Any]) -> None:
        """Set variables in the kernel and in each later kernel. The agent calls this at the beginning of a run.

        Raises:
            SerializationError: a value is not JSON.
            AgentExecutionError: the assignment failed.
        """
        self._send_again()
        with self._sending():
            super().send_variables(variables)
        self._variables |= variables

    def _send_again(self) -> None:
        """Send tools and variables again to a new kernel."""
        # The library sends by `run_code_raise_errors`, which comes back here: `_is_sending` ends that recursion.
        lives = self.session.connection_file is not None and self.session.kernel_epoch == self._epoch
        if lives or self._is_sending or not (self._tools or self._variables):
            return
        with self._sending():
            super().send_variables(self._variables)
            super().send_tools(_copy_final_answer(self._tools))

    @contextmanager
    def _sending(self) -> Iterator[None]:
        self._is_sending = True
        try:
            yield
            self._epoch = self.session.kernel_epoch
        finally:
            self._is_sending = False

    def _decode_answer(self, text: str) -> Any:  # noqa: ANN401 - the agent's answer
        prefix, _, json_text = text.partition("safe:")
        try:
            return read_typed_json("" if prefix else json_text)
        except ValueError as exc:  # also if it was cut
            reason = (
                f"The final answer cannot be read: {exc}. It must be at most 64 Ki characters as JSON, also of pictures and "
                "arrays: save it to a file, and answer with its path."
            )
            raise AgentExecutionError(quote_output(reason), self.logger) from exc

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Install packages for the session, except those present in the kernel.

        Raises:
            AgentExecutionError: a package cannot be installed.
        """
        installed_names = self.session.environment().packages if additional_imports else {}
        if missing := [name for name in additional_imports if re.sub(r"[-_.]+", "-", name).lower() not in installed_names]:
            try:
                installed = self.session.install(missing)
            except InvalidRequest as exc:
                raise AgentExecutionError(str(exc), self.logger) from exc
            if not installed.ok:
                raise AgentExecutionError(installed.output, self.logger)
        return additional_imports

    def cleanup(self) -> None:
        """Close the session and end all processes. A second call does nothing."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup()


def _copy_final_answer(tools: dict[str, Any]) -> dict[str, Any]:
    """Copy the tool of the final answer: smolagents rewrites the tool, and cannot do so twice."""
    return {name: copy.copy(tool) if name == "final_answer" else tool for name, tool in tools.items()}


def _last_value(result: ExecutionResult) -> Any:  # noqa: ANN401 - a picture, or text
    """Return the value of the last expression; without a value, the last displayed picture."""
    values = [output for output in result.outputs if isinstance(output, ExecuteResult)]
    if values:
        picture = _picture(values[-1])
        return values[-1].data.get("text/plain") if picture is None else picture
    return next((picture for output in reversed(result.outputs) if (picture := _picture(output)) is not None), None)


def _picture(output: Output) -> PIL.Image.Image | str | None:
    """Return an output's picture: a PIL image, SVG source, or None."""
    image = best_image(output)
    if image is None:
        return None
    return image.content.decode() if image.mime == "image/svg+xml" else open_picture(image.content)
