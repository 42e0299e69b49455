"""Arguments of tools as clients send them: taken where their meaning is plain, and never reinterpreted where it is not."""

from __future__ import annotations

from typing import Any

import pytest

from kernelexec.mcp.middleware import explain_errors, read_arguments, suggest
from kernelexec.mcp.server_options import GROUPS

NUMBER = {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None}
SCHEMA: dict[str, Any] = {
    "properties": {
        "code": {"type": "string"},
        "path": {"type": "string"},
        "stdin": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "language": {"type": "string", "default": "python"},
        "timeout": NUMBER,
        "lines": {"type": "integer", "default": 10},
        "append": {"type": "boolean", "default": False},
        "paths": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["code", "path", "paths"],
}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as they should be": ({"code": "1", "timeout": 5, "append": True}, {"code": "1", "timeout": 5, "append": True}),
    "null": ({"timeout": None, "language": None, "append": None}, {}),
    "null as text": ({"timeout": "null", "language": "None", "lines": "undefined", "append": ""}, {}),
    "a required null": ({"path": None}, {"path": None}),
    "a required text": ({"path": "null", "code": ""}, {"path": "null", "code": ""}),
    "numbers": ({"timeout": "5", "lines": " 20 "}, {"timeout": 5.0, "lines": 20}),
    "a broken number": ({"timeout": "-1.5e2", "lines": "2.5"}, {"timeout": -150.0, "lines": 2.5}),
    "no numbers": ({"timeout": "5 m", "lines": "1e400", "append": "1"}, {"timeout": "5 m", "lines": "1e400", "append": "1"}),
    "seconds": ({"timeout": "30s", "lines": "30s"}, {"timeout": 30.0, "lines": "30s"}),
    "seconds in words": ({"timeout": "1.5 Seconds"}, {"timeout": 1.5}),
    "not a number": ({"timeout": "nan", "lines": "inf"}, {"timeout": "nan", "lines": "inf"}),
    "booleans": ({"append": "True"}, {"append": True}),
    "a list": ({"paths": '["a", "b"]'}, {"paths": ["a", "b"]}),
    "no list": ({"paths": "a.txt"}, {"paths": "a.txt"}),
    "half a list": ({"paths": '["a"'}, {"paths": '["a"'}),
    "a nested list": ({"paths": "[" * 100_000}, {"paths": "[" * 100_000}),
    "code that looks like something else": ({"code": "null", "stdin": "5"}, {"code": "null", "stdin": "5"}),
    "an empty text of a user": ({"code": "", "stdin": ""}, {"code": "", "stdin": ""}),
    "a text that is a number": ({"path": "5", "language": "true"}, {"path": "5", "language": "true"}),
    "an unknown name": ({"cod": None, "x": "null"}, {"cod": None, "x": "null"}),
}


@pytest.mark.parametrize(("arguments", "values"), CASES.values(), ids=CASES)
def test_arguments_are_read_where_their_meaning_is_plain(arguments: dict[str, Any], values: dict[str, Any]) -> None:
    assert read_arguments(arguments, SCHEMA) == values
    assert [type(value) for value in read_arguments(arguments, SCHEMA).values()] == [type(value) for value in values.values()]


TOOLS = [tool for tools in GROUPS.values() for tool in tools]
EDIT, CODE, COMMAND = ["path", "old_text", "new_text", "session"], ["code", "session"], ["command", "work_dir", "session"]


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        *((name, TOOLS, "execute_code") for name in ("run_python", "run_code", "python", "Python", "execute_cod")),
        *((name, TOOLS, "execute_command") for name in ("bash", "Bash", "shell", "terminal", "execute_comand")),
        *((name, TOOLS, "read_file") for name in ("cat", "view", "mcp__kernelexec__read_file", "functions.read_fil")),
        *(("ls", TOOLS, "list_files"), ("create_file", TOOLS, "write_file"), ("stop", TOOLS, "interrupt_kernel")),
        *(("pip_install", TOOLS, "install_packages"), ("mcp__a__b__ls", TOOLS, "list_files")),
        *((name, CODE, "code") for name in ("command", "source", "script")),
        *((name, EDIT, "path") for name in ("filename", "file", "file_path")),
        *(
            ("old_string", EDIT, "old_text"),
            ("new_string", EDIT, "new_text"),
            ("cwd", COMMAND, "work_dir"),
            ("code", COMMAND, "command"),
        ),
        *((name, CODE, "session") for name in ("kernel", "name", "sesion")),
    ],
)
def test_a_usual_guess_of_a_name_has_the_name_here(name: str, known: list[str], meant: str) -> None:
    assert suggest(name, known) == f" (did you mean {meant!r}?)"


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("ls", list(GROUPS["core"])),
        ("pip_install", list(GROUPS["core"])),
        ("cwd", CODE),
        ("zzz", TOOLS),
        ("", CODE),
        ("a__", []),
    ],
)
def test_a_name_that_the_server_lacks_is_not_proposed(name: str, known: list[str]) -> None:
    assert suggest(name, known) == ""


def unknown(*names: str) -> list[dict[str, Any]]:
    return [{"type": "unexpected_keyword_argument", "loc": (name,), "msg": "x", "input": 1} for name in names]


def test_unknown_arguments_are_in_one_line_and_the_others_too() -> None:
    missing = {"type": "missing_argument", "loc": ("code",), "msg": "x", "input": {}}
    invalid = {"type": "int_parsing", "loc": ("lines", 0), "msg": "Not a number", "input": "x" * 1000}
    lines = explain_errors([*unknown("sesion", "zzz"), missing, *unknown("cwd"), invalid], COMMAND).split("\n")
    names = "'sesion' (did you mean 'session'?), 'zzz', 'cwd' (did you mean 'work_dir'?)"
    assert lines[:2] == [f"Unknown arguments: {names}. The arguments are: command, work_dir, session.", "code is required."]
    assert lines[2].startswith("lines.0: Not a number (given: 'xxx")
    assert len(lines[2]) < 150


def test_many_unknown_arguments_are_counted() -> None:
    text = explain_errors(unknown(*(f"q{number}" for number in range(40))), CODE)
    assert text.endswith("'q8', 'q9' and 30 more. The arguments are: code, session.")
    assert len(text) < 150
    assert len(explain_errors(unknown(*("q" * 10_000 for _ in range(1000))), CODE)) < 1500
    assert explain_errors(unknown("q"), []) == "Unknown arguments: 'q'. The arguments are: none."
