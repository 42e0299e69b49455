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
    "a longer fence": ("````md\n```bash\nls\n```\n````", ("ls", "bash")),
    "JSON": ('{"code": "print(1)"}', ("print(1)", "python")),
    "JSON with a language": ('{"code": "ls", "language": "bash"}', ("ls", "bash")),
    "all arguments": ('{"code": "1", "session": "a", "timeout": 30, "wait": null, "request_id": "b"}', ("1", "python")),
    "no language": ('{"code": "1", "language": null}', ("1", "python")),
    "a raw line end": ('{"code": "if x:\n\ty"}', ("if x:\n\ty", "python")),
    "a trailing comma": ('{"code": "1", }', ("1", "python")),
    "a dictionary of Python": ("{'code': 'x = \"y\"', 'session': None}", ('x = "y"', "python")),
    "a list": ('[{"code": "1"}]', ("1", "python")),
    "a call": ('{"name": "execute_code", "arguments": {"code": "1", "timeout": 5}}', ("1", "python")),
    "the arguments of a call": ('{"arguments": {"code": "ls", "language": "bash"}}', ("ls", "bash")),
    "arguments as text": ('{"name": "f", "arguments": "{\\"code\\": \\"1\\"}"}', ("1", "python")),
    "JSON in a fence": ('```json\n{"code": "1"}\n```', ("1", "python")),
    "a fence in JSON": ('{"code": "```bash\\nls\\n```"}', ("ls", "bash")),
    "a fence in JSON in a fence": ('```json\n{"code": "```py\\n1\\n```"}\n```', ("1", "py")),
    **{f"a block of {tag}": (f"```{tag}\n1\n```", ("1", "python")) for tag in ("tool_code", "ipynb", "text", "console")},
}
AS_SENT: dict[str, str] = {
    "code": "x = 1",
    "a dictionary": '{"code": "x", "y": 1}',
    "a dictionary of Python": "{'code': 'x', 'y': 1}",
    "a code that is none": '{"code": 1}',
    "a code of Python that is none": "{'code': 1}",
    "a dictionary with another key": "{'code': 'x', 1: 2}",
    "a dictionary with names": "{'code': x}",
    "arguments with another key": '{"arguments": {"code": "x", "y": 1}}',
    "arguments that are none": '{"arguments": "x"}',
    "two calls": '[{"code": "1"}, {"code": "2"}]',
    "a list of numbers": "[1]",
    "a list without a type": "[[{}]]",
    "a set": "{1}",
    "text around a fence": "run:\n```\n1\n```",
    "two fences": "```\n1\n```\n```\n2\n```",
    "code between two fences": "```\n1\n```\nx\n```\n2\n```",
    "an open fence": "```python\n1",
    "a string of Python": '"""\n```\n1\n```\n"""',
    "nothing": "",
    "many braces": "{" * 100_000 + "}",
    "many braces that are closed": "{" * 40_000 + "code" + "}" * 40_000,
    "many brackets": "[" * 40_000 + "'code'" + "]" * 40_000,
    "many signs": "['code'," + "-" * 90_000 + "1]",
    "many sums": "['code'," + "1+" * 40_000 + "1]",
    "many keys": "{'code':" + "{1:" * 20_000 + "}" * 20_001,
    "a NUL": "{'code': '\0'}",
    "an unhashable key": "{[]: 'code'}",
    "long JSON": '{"code": "' + "x" * 1_000_000 + '"}',
}


@pytest.mark.parametrize("name", MEANT)
def test_wrapped_code_is_the_code_inside(name: str) -> None:
    sent, meant = MEANT[name]
    assert unwrap_code(sent, "python") == meant


@pytest.mark.parametrize("code", AS_SENT.values(), ids=AS_SENT)
def test_other_code_stays_as_it_was_sent(code: str) -> None:
    assert unwrap_code(code, "r") == (code, "r")
