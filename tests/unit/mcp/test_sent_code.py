"""Code in a fence or in the JSON of a call is what is meant; everything else is as it was sent."""

from __future__ import annotations

import pytest

from kernelexec.mcp.tools.code_tools import unwrap_code

MEANT: dict[str, tuple[str, tuple[str, str]]] = {
    "a fence": ("```\nx = 1\n```", ("x = 1", "python")),
    "a fence with a language": ("```bash\nls\n```", ("ls", "bash")),
    "a fence with blanks around": ("\n```python\nif x:\n    y\n```\n\n", ("if x:\n    y", "python")),
    "tildes": ("~~~python\n1\n~~~", ("1", "python")),
    "line ends of Windows": ("```py\r\n1\r\n2\r\n```", ("1\n2", "py")),
    "a longer fence": ("````md\n```\n1\n```\n````", ("```\n1\n```", "md")),
    "JSON": ('{"code": "print(1)"}', ("print(1)", "python")),
    "JSON with a language": ('{"code": "ls", "language": "bash"}', ("ls", "bash")),
}
AS_SENT: dict[str, str] = {
    "code": "x = 1",
    "a dictionary": '{"code": "x", "y": 1}',
    "a dictionary of Python": "{'code': 'x'}",
    "a code that is none": '{"code": 1}',
    "a set": "{1}",
    "text around a fence": "run:\n```\n1\n```",
    "two fences": "```\n1\n```\n```\n2\n```",
    "code between two fences": "```\n1\n```\nx\n```\n2\n```",
    "an open fence": "```python\n1",
    "a string of Python": '"""\n```\n1\n```\n"""',
    "nothing": "",
    "many braces": "{" * 100_000 + "}",
}


@pytest.mark.parametrize("name", MEANT)
def test_wrapped_code_is_the_code_inside(name: str) -> None:
    sent, meant = MEANT[name]
    assert unwrap_code(sent, "python") == meant


@pytest.mark.parametrize("code", AS_SENT.values(), ids=AS_SENT)
def test_other_code_stays_as_it_was_sent(code: str) -> None:
    assert unwrap_code(code, "r") == (code, "r")
