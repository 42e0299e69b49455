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
    **{f"a block of {tag}": (f"```{tag}\n1\n```", ("1", "python")) for tag in ("tool_code", "ipynb", "console", "python3.11")},
}
MEANT_IN_PYTHON: dict[str, tuple[str, tuple[str, str]]] = {
    "text before": ("Here it is:\n\n```python\nprint(1)\n```", ("print(1)", "python")),
    "text after": ("```bash\nls\n```\nThis lists `x`.", ("ls", "bash")),
    "text around": ("# It's\nI do.\n```\nif x:\n    y\n```\n\nDone.", ("if x:\n    y", "python")),
    "a heading": ("# Answer\n~~~py\n1\n~~~\n", ("1", "py")),
    "an open fence": ("```python\nx = '''a'''\n!ls", ("x = '''a'''\n!ls", "python")),
    "an open fence after text": ("Run this.\n```bash\nls", ("ls", "bash")),
    "a closing fence only": ("if x:\n    y\n```\n", ("if x:\n    y\n", "python")),
    "a closing fence beside code": ("```python\nprint(1)\nprint(2)```", ("print(1)\nprint(2)", "python")),
    "a closing fence only beside code": ("print(1)```", ("print(1)\n", "python")),
    "a single line": ("```print(1)```", ("print(1)", "python")),
    "a single line with its language": ("Run: \n```bash ls -a /tmp```", ("ls -a /tmp", "bash")),
    "a fence in a string of the block": ('Do:\n````python\nx = """\n```\n"""\n````', ('x = """\n```\n"""', "python")),
    "no language that is known": ("Do:\n```tool_code\nprint 1;\n```", ("print 1;", "python")),
    "nothing inside": ("```", ("", "python")),
}
AS_SENT_IN_PYTHON: dict[str, str] = {
    "two blocks": "a b:\n```python\n1\n```\nthen:\n```python\n2\n```",
    "a block and an open one": "a b:\n```\n1\n```\nthen:\n```python\n2",
    "code before": "import os\n```python\nprint(os)\n```",
    "code after": "a b:\n```\n1\n```\nprint(2)",
    "code on both sides of a fence": "print(1)\n```\nprint(2)",
    "code between a block and a fence": "```\n1\n```\nx = 2\n```",
    "text before a closing fence": "a b\n```",
    "a string": 'text = """\n```python\n1\n```\n"""',
    "a string that ends with a fence": "text = '''\n```'''",
    "a string of code that is no Python": 'text = """\n```python\n1\n```\n"""\nprint(text',
    "an open string": 'text = """\n```python\n1\n```\n',
    "a string beside a magic": '!ls\ntext = """\n```python\n1\n```\n"""',
    "a file of Markdown": "%%writefile README.md\n# Title\n\n```python\n1\n```\n",
    "a file of Markdown that ends with a fence": "%%writefile a.md\nsome text\n```",
    "a script": "%%bash\ncat > a.md <<EOF\n```python\n1\n```\nEOF",
    "a comment": "x = 1\n# ```python\n# 1\n# ```",
    "a comment with a fence at its end": "x = 1  # as in ```",
    "an operator": "~~~x",
    "several operators": "~~~x + \\\n~~~y",
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


@pytest.mark.parametrize("name", MEANT_IN_PYTHON)
@pytest.mark.parametrize("language", ["python", "Python 3"])
def test_the_only_block_of_a_text_that_is_no_python_is_meant(name: str, language: str) -> None:
    text, (code, tag) = MEANT_IN_PYTHON[name]
    assert unwrap_code(text, language) in {(code, tag), (code, language)}


@pytest.mark.parametrize("code", AS_SENT_IN_PYTHON.values(), ids=AS_SENT_IN_PYTHON)
def test_python_and_what_is_ambiguous_stay_as_they_were_sent(code: str) -> None:
    assert unwrap_code(code, "python") == (code, "python")


@pytest.mark.parametrize("code", AS_SENT_IN_PYTHON.values(), ids=AS_SENT_IN_PYTHON)
def test_other_languages_lose_only_a_whole_block(code: str) -> None:
    assert unwrap_code(f"a b\n{code}\nc d", "bash") == (f"a b\n{code}\nc d", "bash")
