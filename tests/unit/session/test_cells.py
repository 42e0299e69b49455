"""What is code and what is a command, what no kernel could take, and the requests that run commands."""

from __future__ import annotations

import ast
import random
from typing import Any

import pytest

from kernelexec.cells import NODE_BYTES, Cell, CodeCell, ShellCell, check, make_command_cell, make_node_cell, parse
from kernelexec.errors import InvalidCode

LIMIT = 1000
SHELL: dict[str, tuple[str, str]] = {
    "bang": ("!ls -l", "ls -l"),
    "bang and space": ("! ls", " ls"),
    "bang alone": ("!", ""),
    "bang, indented": ("  !ls", "ls"),
    "bang after blank lines": ("\n \n\t\n!ls", "ls"),
    "bang before blank lines": ("!ls\n\n  \n", "ls"),
    "bang with a carriage return": ("!ls\r\n", "ls"),
    "bang with a bang inside": ("!echo hi!!", "echo hi!!"),
    "bang over lines": ("!ls \\\n  -l \\\n  -a", "ls \\\n  -l \\\n  -a"),
    "bang ending in a backslash": ("!ls \\\n", "ls \\"),
    "bang with unicode": ("!echo '\u65e5\U0001f389'", "echo '\u65e5\U0001f389'"),
    "bash": ("%%bash\nls\nmake", "ls\nmake"),
    "sh": ("%%sh\nls\n", "ls\n"),
    "bash with options": ("%%bash --no-raise-error --out found\nls", "ls"),
    "bash with a tab": ("%%bash\t\nls", "ls"),
    "bash with a space": ("%%bash \nls", "ls"),
    "bash after blank lines": ("\n  \n%%bash\nls", "ls"),
    "bash, indented": ("  %%bash\n  ls", "  ls"),
    "bash with nothing in it": ("%%bash\n", ""),
    "bash with blank lines in it": ("%%bash\n\n\nls\n\n", "\n\nls\n\n"),
    "bash with magic in it": ("%%bash\n%%sh\n!ls", "%%sh\n!ls"),
    "bash with a carriage return": ("%%bash\r\nls", "ls"),
    "sh with options and a carriage return": ("%%sh -e\r\nls", "ls"),
}
CODE: dict[str, str] = {
    "an expression": "1 + 1",
    "a comparison": "a != b",
    "a system call assigned": "files = !ls",
    "two bangs": "!!ls",
    "two bangs, indented": "  !!ls",
    "a command, then code": "!ls\nprint(1)",
    "a command, blank, then code": "!ls\n\nprint(1)",
    "two commands": "!ls\n!pwd",
    "a command over two lines, then code": "!ls \\\n-l\nprint(1)",
    "code, then a command": "x = 1\n!ls",
    "a comment, then a command": "# list\n!ls",
    "a comment, then bash": "# list\n%%bash\nls",
    "bash in the middle": "x = 1\n%%bash\nls",
    "bash without a body": "%%bash",
    "bash with one percent sign": "%bash\nls",
    "bash in capitals": "%%BASH\nls",
    "bash and more": "%%bashful\nls",
    "bash after a space": "%% bash\nls",
    "another shell": "%%zsh\nls",
    "a script of bash": "%%script bash\nls",
    "another magic": "%%time\n!ls",
    "a line magic": "%sx ls",
    "a bang within a string": "'''\n!ls\n'''",
    "a comment": "#!ls",
}
REFUSED: dict[str, tuple[Any, str]] = {
    "nothing": ("", "code is empty: there is nothing to run, so a loop goes on without it."),
    "blanks": (" \t\n\r\n\x0b\x0c\u2003", "code is empty: there is nothing to run, so a loop goes on without it."),
    "nul": ("x = 1\x00", "code holds a NUL character at position 5: remove it."),
    "nul first": ("\x00\x00", "code holds a NUL character at position 0: remove it."),
    "a high surrogate": ("x = '\ud800'", "code holds a lone surrogate at position 5: it must be valid Unicode text."),
    "a low surrogate": ("\udfff", "code holds a lone surrogate at position 0: it must be valid Unicode text."),
    "a pair of surrogates": ("'\ud83c\udf89'", "code holds a lone surrogate at position 1: it must be valid Unicode text."),
    "a byte that was not decoded": (b"# \xff".decode(errors="surrogateescape"), "code holds a lone surrogate at position 2"),
    "one byte too many": ("x" * 1001, "code is 1001 bytes, the limit is 1000: put it into a file of the workspace"),
    "one character too many": ("\u65e5" * 334, "code is 1002 bytes, the limit is 1000"),
    "bytes": (b"x = 1", "code is bytes, not str."),
    "none": (None, "code is NoneType, not str."),
    "a number": (1, "code is int, not str."),
    "a list of lines": (["x = 1"], "code is list, not str."),
}
TEXTS = [
    "ls",
    "echo 'one' \"two\"",
    "echo '''three''' \"\"\"four\"\"\"",
    "cat <<'END'\nline\n\tline\nEND\n",
    "printf 'a\\nb\\\\' \\\n  x",
    "echo \u65e5\u672c \U0001f389 e\u0301",
    "echo \u2028 \u2029 \x85 \x0c \x1b[0m \x7f\r\n",
    "echo {x} $HOME $(pwd) `id` %s %d",
    "!ls",
    "%%bash\nls",
    "help?",
    "x" * 5000,
]


def arguments_of(cell: ShellCell) -> tuple[Any, ...]:
    """What the request passes on, read as Python reads it: one call on one line."""
    assert "\n" not in cell.request
    tree = ast.parse(cell.request, mode="eval").body
    assert isinstance(tree, ast.Call)
    assert ast.unparse(tree.func) == "get_ipython().run_command"
    named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in tree.keywords}
    assert set(named) == {"work_dir", "stdin"}
    return (*map(ast.literal_eval, tree.args), named["work_dir"], named["stdin"])


@pytest.mark.parametrize(("source", "script"), SHELL.values(), ids=SHELL)
def test_a_shell_cell_keeps_its_source_and_knows_its_command(source: str, script: str) -> None:
    cell = parse(source, limit_bytes=LIMIT)
    assert cell == ShellCell(source, script)
    assert cell.request == source


@pytest.mark.parametrize("source", CODE.values(), ids=CODE)
def test_everything_else_is_code_as_it_stands(source: str) -> None:
    cell = parse(source, limit_bytes=LIMIT)
    assert cell == CodeCell(source)
    assert cell.request == source


@pytest.mark.parametrize(("source", "message"), REFUSED.values(), ids=REFUSED)
def test_invalid_source_is_refused(source: Any, message: str) -> None:
    with pytest.raises(InvalidCode) as caught:
        parse(source, limit_bytes=LIMIT)
    assert str(caught.value).startswith(message)
    assert not caught.value.may_have_run


@pytest.mark.parametrize("source", ["x" * 1000, "\u65e5" * 333 + "x", "\U0001f389" * 250, "!" + "x" * 999])
def test_a_cell_of_exactly_the_limit_is_taken(source: str) -> None:
    assert parse(source, limit_bytes=LIMIT).source == source


@pytest.mark.parametrize("source", ["\ufffe", "\ufeffx", "\x01", "\x7f", "\x1b", "\U0010ffff"])
def test_odd_characters_that_can_be_encoded_are_taken(source: str) -> None:
    check(source, limit_bytes=LIMIT)


@pytest.mark.parametrize("text", TEXTS)
def test_a_command_reaches_the_kernel_as_it_was_written(text: str) -> None:
    cell = make_command_cell(text, work_dir=None, stdin=None, limit_bytes=10_000)
    assert arguments_of(cell) == (text, None, None)


@pytest.mark.parametrize("text", TEXTS)
def test_input_and_directory_reach_the_kernel_as_they_were_given(text: str) -> None:
    cell = make_command_cell("cat", work_dir=text, stdin=text, limit_bytes=10_000)
    assert arguments_of(cell) == ("cat", text, text)


def test_any_text_goes_through_a_request_unchanged() -> None:
    rng = random.Random(4)  # noqa: S311 - a reproducible test, no secret
    letters = [
        "'",
        '"',
        "\\",
        "\n",
        "\r",
        "\t",
        " ",
        "!",
        "%",
        "?",
        "{",
        "}",
        "n",
        "x",
        "\x1b",
        "\u00e9",
        "\u65e5",
        "\U0001f389",
    ]
    for _ in range(2000):
        text, directory, stdin = ("a" + "".join(rng.choices(letters, k=rng.randrange(12))) for _ in range(3))
        cell = make_command_cell(text, work_dir=directory, stdin=stdin, limit_bytes=LIMIT)
        assert arguments_of(cell) == (text, directory, stdin)


def test_a_command_of_the_session_is_bash_in_a_notebook() -> None:
    cell = make_command_cell("cd a\nmake", work_dir="b", stdin="c", limit_bytes=LIMIT)
    assert cell == ShellCell("%%bash\ncd a\nmake", "cd a\nmake", persistent=True, work_dir="b", stdin="c", language="bash")


@pytest.mark.parametrize("text", ["ls", "!ls", "%%bash\nls", "print(1)", "x = 1\ny = 2", "  indented\n", "# comment"])
def test_a_command_is_never_parsed(text: str) -> None:
    assert make_command_cell(text, work_dir=None, stdin=None, limit_bytes=LIMIT).command == text


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_commands_are_refused_as_code_is(text: Any, message: str) -> None:
    with pytest.raises(InvalidCode) as caught:
        make_command_cell(text, work_dir=None, stdin=None, limit_bytes=LIMIT)
    assert str(caught.value).startswith(message.replace("code", "command", 1))


def test_javascript_is_a_script_of_node_in_a_notebook() -> None:
    cell = make_node_cell("'a'", stdin="c", limit_bytes=LIMIT)
    assert (cell.source, cell.language, cell.kernel) == ("%%script node\n'a'", "javascript", "python")
    assert cell.command.endswith("""\nnode --eval=''"'"'a'"'"''""")
    assert (cell.persistent, cell.stdin) == (True, "c")


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_javascript_is_refused_as_code_is(text: Any, message: str) -> None:
    with pytest.raises(InvalidCode) as caught:
        make_node_cell(text, stdin=None, limit_bytes=LIMIT)
    assert str(caught.value).startswith(message)


def test_javascript_has_the_limit_of_a_programs_argument() -> None:
    assert make_node_cell("x" * NODE_BYTES, stdin=None, limit_bytes=2 * NODE_BYTES)
    with pytest.raises(InvalidCode, match=f"code is {NODE_BYTES + 2} bytes, the limit for node is {NODE_BYTES}"):
        make_node_cell("x" * (NODE_BYTES - 1) + "\u65e5", stdin=None, limit_bytes=2 * NODE_BYTES)


@pytest.mark.parametrize("stdin", [None, "", " ", "\n\n", "x" * 1000])
def test_input_may_be_empty_or_blank(stdin: str | None) -> None:
    assert make_command_cell("cat", work_dir=None, stdin=stdin, limit_bytes=LIMIT).stdin == stdin


@pytest.mark.parametrize(
    ("stdin", "message"),
    [
        ("a\x00", "stdin holds a NUL character at position 1"),
        ("\ud800", "stdin holds a lone surrogate at position 0"),
        ("\u65e5" * 334, "stdin is 1002 bytes, the limit is 1000"),
        (b"bytes", "stdin is bytes, not str."),
        (["lines"], "stdin is list, not str."),
    ],
)
def test_input_that_cannot_be_passed_on_is_refused(stdin: Any, message: str) -> None:
    with pytest.raises(InvalidCode) as caught:
        make_command_cell("cat", work_dir=None, stdin=stdin, limit_bytes=LIMIT)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("cell", [CodeCell("x"), ShellCell("!x", "x")])
def test_cells_of_equal_content_are_equal_and_can_be_keys(cell: Cell) -> None:
    assert {cell: 1}[parse(cell.source, limit_bytes=LIMIT)] == 1
