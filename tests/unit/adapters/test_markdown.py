"""Code blocks as models write them, and functions as callers give them: no kernel needed."""

from __future__ import annotations

import functools
import linecache
from typing import Any

import pytest

from kernelexec.adapters.shared.blocks import quiet_pip
from kernelexec.adapters.shared.conventions import Functions
from kernelexec.adapters.shared.markdown import MarkdownBlock, find_blocks

DOCUMENTED = 'def f():\n    """As in\n\n    ```python\n    f()\n    ```\n    """\n    return 1'
DEEP = "\n".join(f"   {line}" for line in DOCUMENTED.split("\n"))
ODD = "\u2028 \x0b \x0c \x1c \x85"
MESSAGES: dict[str, tuple[Any, list[tuple[str, str]]]] = {
    "a block": ("Example:\n```python\nprint('hi')\n```\n", [("print('hi')", "python")]),
    "a space before the language": ("Example:\n``` python\nprint('hi')\n```\n", [("print('hi')", "python")]),
    "none named, valid Python": ("```\nx = 1\nprint(x)\n```", [("x = 1\nprint(x)", "python")]),
    "none named, pip": ("```\npip install numpy\n```", [("pip install numpy", "sh")]),
    "none named, a program": ("```\npython3 run.py --fast\n```", [("python3 run.py --fast", "sh")]),
    "none named, neither": ('```\nConsole.Write("hi");  // C#\n```', [('Console.Write("hi");  // C#', "")]),
    "two blocks": ("First\n```python\na = 1\n```\nthen\n```bash\nls\n```\n", [("a = 1", "python"), ("ls", "bash")]),
    "no block": ("Nothing to run here, `x = 1` aside.", []),
    "nothing": (None, []),
    "windows line ends": ("```python\r\na = 1\r\nb = 2\r\n```\r\n", [("a = 1\nb = 2", "python")]),
    "an indented closing fence": ("```python\nif a:\n    b()\n    ```\n", [("if a:\n    b()", "python")]),
    "in a list": ("1. Run\n   ```python\n   if a:\n       b()\n   ```\n", [("if a:\n    b()", "python")]),
    "behind words": ("Write ``` to begin a block.\n```python\na = 1\n```\nEnd with ```\n", [("a = 1", "python")]),
    "behind a list's mark": ("1. ```python\n   if a:\n       b()\n   ```\n", [("if a:\n    b()", "python")]),
    "an example in a docstring": (f"```python\n{DOCUMENTED}\n```", [(DOCUMENTED, "python")]),
    "an example in one that is never closed": (f"```python\n{DOCUMENTED}\nshutil.rmtree('a", []),
    "an example in an indented one": (f"   ```python\n{DEEP}\n   ```", [(DOCUMENTED, "python")]),
    "an indented end and the next": ("```sh\na\n    ```\nthen\n```sh\nb\n```", [("a", "sh"), ("b", "sh")]),
    "all indented": ("    ```python\n    a = 1\n    ```\n", [("a = 1", "python")]),
    "indented by a tab": ("```python\na = '''\n\t```\n\t```\n'''\n```", [("a = '''\n\t```\n\t```\n'''", "python")]),
    "what Python splits at": (f"```python\nprint({ODD!r})\ns = '{ODD}'\n```", [(f"print({ODD!r})\ns = '{ODD}'", "python")]),
    "old line ends": ("```python\ra = 1\rb = 2\r```\r", [("a = 1\nb = 2", "python")]),
    "tildes": ("~~~python\na = '```'\n~~~", [("a = '```'", "python")]),
    "a fence within a longer one": ("````markdown\n```python\na\n```\n````", [("```python\na\n```", "markdown")]),
    "a fence in a string": ('````python\ntext = """\n```\n"""\n````', [('text = """\n```\n"""', "python")]),
    "c++": ("```c++\nint a;\n```", [("int a;", "c++")]),
    "an info string": ('```py title="a.py" {1,3}\na = 1\n```', [("a = 1", "py")]),
    "braces": ("```{.python .numberLines}\na = 1\n```", [("a = 1", "python")]),
    "upper case": ("```Python\na = 1\n```", [("a = 1", "python")]),
    "never closed": ("```python\nimport shutil\nshutil.rmtree('a", []),
    "empty": ("```python\n```\n```\n\n```", []),
    "inline": ("```x = 1``` is no block\n", []),
    "parts": (
        [{"type": "text", "text": "```python\na = 1\n```"}, {"type": "image_url", "image_url": {"url": "data:"}}],
        [("a = 1", "python")],
    ),
    "parts that begin lines": (
        [{"type": "input_text", "text": "Run:"}, {"type": "input_text", "text": "```python\na = 1\n```"}],
        [("a = 1", "python")],
    ),
}

ADD = 'def add(a: int, b: int = 2) -> int:\n    """Add two numbers."""\n    return a + b\n'
SILENCED = [
    ("python", "! pip install numpy"),
    ("python", "!pip install numpy\nx = 1"),
    ("python", "if a:\n    %pip install numpy"),
    ("python", "a = \"it's\"  # it's '''\n!echo it's '''\n%pip install numpy"),
    ("python", "doc = r'''\\''''  # '''\n!pip install numpy"),
    ("python", "%%bash\npip install numpy"),
    ("bash", "pip install numpy\nls"),
    ("bash", "python -m pip install numpy"),
    ("bash", "echo \"it's\" \\' # it's\npip install numpy"),
    ("bash", "cat > r <<-'EOF'\nit's\n\tEOF\npip install numpy"),
]
LEFT = [
    ("python", "doc = '''\npip install bar\n'''"),
    ("python", 'doc = f"""a\\"""\n!pip install bar\n""" + x'),
    ("python", "doc = '\\\n%pip install bar'"),
    ("python", "print('pip install numpy')"),
    ("python", "!pip install -qqq numpy"),
    ("bash", "pip install -q numpy"),
    ("bash", "pip list"),
    ("bash", "pip installer"),
    ("bash", "cat > r <<EOF\npip install bar\nEOF"),
    ("bash", "echo 'a\npip install bar\n'"),
    ("javascript", "x = `\npip install bar\n`"),
]


@pytest.mark.parametrize(("message", "expected"), MESSAGES.values(), ids=MESSAGES)
def test_code_blocks_are_found_with_their_language(message: Any, expected: list[tuple[str, str]]) -> None:
    assert find_blocks(message) == [MarkdownBlock(*each) for each in expected]


def test_content_of_another_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="content is int"):
        find_blocks(5)


@pytest.mark.parametrize(("language", "code"), SILENCED)
def test_installations_by_pip_report_failures_only(language: str, code: str) -> None:
    assert quiet_pip(code, language) == code.replace("pip install numpy", "pip install -qq numpy")


@pytest.mark.parametrize(("language", "code"), LEFT)
def test_code_without_an_installation_stays_unchanged(language: str, code: str) -> None:
    assert quiet_pip(code, language) == code


def test_functions_become_a_module_with_stubs() -> None:
    actual = Functions.from_callables([ADD, twice])
    assert actual.source == f"{ADD.strip()}\n\n\ndef twice(x: float) -> float:\n    return 2 * x\n"
    assert "def add(a: int, b: int=2) -> int:\n    '''" in actual.stubs.replace('"""', "'''")
    assert "return a + b" not in actual.stubs
    assert "from the module `functions`" in actual.format_prompt()
    assert actual.format_prompt("$module:\n$functions") == f"functions:\n{actual.stubs}"


def test_a_function_is_whole_whatever_its_lines_hold() -> None:
    assert Functions.from_callables([paged]).source == f'def paged() -> str:\n    # a page: {PAGE}.\n    return "whole"\n'


class Required:
    def __init__(self, func: Any) -> None:
        self.func = func

    def bound_method(self) -> Any:
        return self.func


def test_a_function_without_its_source_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(linecache.cache, "<string>", (0, None, ["def other():\n", "    return 0\n"], "<string>"))
    namespace: dict[str, Any] = {}
    exec("def generated():\n    return 1", namespace)  # noqa: S102 - of this test
    with pytest.raises(ValueError, match="must have readable source"):
        Functions.from_callables([namespace["generated"]])


@pytest.mark.parametrize(
    ("functions", "module", "answer"),
    [
        ([ADD], "not a name", "Module name must be a valid Python identifier: functions_module='not a name' is not one"),
        ([ADD], "class", "Module name must be a valid Python identifier: functions_module='class' is a keyword"),
        (["def broken(:\n    pass"], "functions", "does not compile"),
        (["x = 1"], "functions", "holds 0 functions"),
        ([ADD + ADD.replace("add", "plus")], "functions", "holds 2 functions"),
        ([ADD, ADD], "functions", "2 functions are named add"),
        ([len], "functions", "must have readable source"),
        ([functools.partial(sorted, reverse=True)], "functions", "not a partial"),
        ([Required(functools.partial(sorted, reverse=True))], "functions", "not a partial"),
        ([Required("def a(x):\n    pass").bound_method], "functions", "not a bound method"),
    ],
)
def test_functions_that_no_cell_could_import_are_refused(functions: list[Any], module: str, answer: str) -> None:
    with pytest.raises(ValueError, match="functions") as caught:
        Functions.from_callables(functions, module=module)
    assert answer in str(caught.value)


def decorated(function: Any) -> Any:
    return function


@decorated
def twice(x: float) -> float:
    return 2 * x


PAGE = "\x0c"


@decorated
def paged() -> str:
    # a page: .
    return "whole"
