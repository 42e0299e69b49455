"""A session for Microsoft's Agent Framework: function tools, and a context provider with these tools."""

from __future__ import annotations

from typing import Any

from kernelexec.adapters.tools import TEXT_BYTES, function_tools
from kernelexec.adapters.tools import FunctionTool as SessionTool
from kernelexec.executor.blocking import Session

try:
    from agent_framework import AgentSession, Content, ContextProvider, FunctionTool, SessionContext
except ImportError as exc:
    raise ImportError(
        "kernelexec.adapters.agent_framework needs the Agent Framework: pip install 'kernelexec[agent-framework]'."
    ) from exc

_INSTRUCTIONS = (
    "You have a persistent Python kernel and a shell in the same workspace. Variables, imports, cd and export last from call "
    "to call. Each answer says whether this state was kept or lost."
)


def session_tools(session: Session, *, text_bytes: int = TEXT_BYTES) -> list[FunctionTool]:
    """Return ``execute_code``, ``execute_command`` and ``read_output`` for ``Agent(tools=...)``.

    Variables, ``cd`` and ``export`` last from call to call and from run to run. Pictures of a cell are data content. A
    cancelled call interrupts the cell.

    Args:
        session: an open session, which the caller closes.
        text_bytes: the limit of text per call, in bytes.

    Raises:
        InvalidConfig: ``text_bytes`` is not such a number.
    """
    return [_make_tool(tool) for tool in function_tools(session, text_bytes=text_bytes)]


class SessionProvider(ContextProvider):
    """A provider of a session's tools, with instructions, for ``Agent(context_providers=[...])``.

    Args:
        session: an open session, which the caller closes. All runs of the agent share it.
        source_id: the provider's name among those of an agent.
        text_bytes: the limit of text per call, in bytes.
    """

    def __init__(self, session: Session, source_id: str = "kernelexec", *, text_bytes: int = TEXT_BYTES) -> None:
        super().__init__(source_id)
        self._tools = session_tools(session, text_bytes=text_bytes)

    async def before_run(
        self,
        *,
        agent: Any,  # noqa: ANN401, ARG002 - the framework's signature
        session: AgentSession | None,  # noqa: ARG002 - the same
        context: SessionContext,
        state: dict[str, Any],  # noqa: ARG002 - the same
    ) -> None:
        """Add the tools and the instructions to a run. The agent calls this."""
        context.extend_instructions(self.source_id, _INSTRUCTIONS)
        context.extend_tools(self.source_id, self._tools)


def _make_tool(tool: SessionTool) -> FunctionTool:
    async def call(**arguments: Any) -> list[Content]:  # noqa: ANN401 - a model's arguments
        answer = await tool.run_async(arguments)
        pictures = (Content.from_data(picture.content, picture.mime) for picture in answer.pictures)
        return [Content.from_text(answer.text), *pictures]

    return FunctionTool(name=tool.name, description=tool.description, func=call, input_model=dict(tool.parameters))
