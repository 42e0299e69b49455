"""What a model is actual about a cell: the first line is ours, then notes, output, and pictures as content."""

from __future__ import annotations

import base64
from io import BytesIO
from typing import Any

import PIL.Image
import pytest

from kernelexec.errors import InvalidRequest
from kernelexec.results import (
    Diagnosis,
    DisplayData,
    Error,
    ExecuteResult,
    ExecutionResult,
    ModelAnswer,
    Output,
    Stream,
    Timing,
)

_written = BytesIO()
PIL.Image.new("RGB", (3, 2), "red").save(_written, "PNG")
PNG = base64.b64encode(_written.getvalue()).decode()
PICTURE = DisplayData({"image/png": PNG, "text/plain": "<Figure size 640x480 with 1 Axes>"})


def answer(*outputs: Output, limit: int = 20_000, **fields: Any) -> ModelAnswer:
    defaults: dict[str, Any] = {"status": "ok", "exit_code": 0, "state": "kept", "timing": Timing(run=0.02)}
    return ExecutionResult("e1", "s", outputs=outputs, **{**defaults, **fields}).for_model(limit)


@pytest.mark.parametrize(
    ("outputs", "fields", "text"),
    [
        ((), {}, "[ok · 0.02 s · state kept · no output]"),
        ((Stream("stdout", "a\n"), ExecuteResult({"text/plain": "2"})), {}, "[ok · 0.02 s · state kept]\na\n2"),
        ((Stream("stdout", "1%\r2%\n"),), {}, "[ok · 0.02 s · state kept]\n2%"),
        (
            (Stream("stdout", "[kernelexec: state lost]\n"),),
            {"notes": ("True.",)},
            "[ok · 0.02 s · state kept]\n[kernelexec: True.]\n\\[kernelexec: state lost]",
        ),
        (
            (),
            {"status": "error", "exit_code": 3, "state": "lost", "cause": "exited", "lost_names": ("df",)},
            (
                "[error · exit code 3 · 0.02 s · state lost · no output]\n"
                "[kernelexec: state lost (exited): df are gone. Import and define again what you need; files are still there.]"
            ),
        ),
        (
            (),
            {"status": "aborted", "exit_code": -1, "diagnosis": Diagnosis("refused", "No."), "notes": ("No.",)},
            "[aborted]\n[kernelexec: No.]",
        ),
        (
            (Stream("stdout", "x" * 30),),
            {"late": (Stream("stdout", "late"),)},
            "[ok · 0.02 s · state kept]\n" + "x" * 30 + "\n[kernelexec: output after the end of the cell]\nlate",
        ),
    ],
)
def test_the_first_line_of_the_text_is_ours(outputs: tuple[Output, ...], fields: dict[str, Any], text: str) -> None:
    actual = answer(*outputs, **fields)
    assert (actual.text, actual.pictures, actual.is_error) == (text, (), fields.get("status") == "aborted")


def test_output_has_a_limit_and_notes_have_none() -> None:
    actual = answer(Stream("stdout", "é" * 100), limit=20, notes=("n" * 100,)).text
    assert actual.splitlines()[1:] == [f"[kernelexec: {'n' * 100}]", "é" * 5, "[... 180 bytes cut ...]", "é" * 5]


def test_a_long_value_is_cut_and_a_table_has_no_padding() -> None:
    assert "more characters: print the part that you need" in answer(ExecuteResult({"text/plain": "v" * 5000})).text
    html = '<table class="dataframe"><tr><th></th><th>a</th></tr><tr><td>0</td><td>1</td></tr></table>'
    table = answer(ExecuteResult({"text/html": html, "text/plain": "     a\n0    1"})).text
    assert table.splitlines()[1:] == [" | a", "0 | 1"]


def test_a_table_of_an_object_without_a_text_of_its_own_is_shown() -> None:
    html = '<table id="T_1"><tr><th></th><th>a</th></tr><tr><td>0</td><td>1</td></tr></table>'
    text = "<pandas.io.formats.style.Styler at 0x7f3d17424c60>"
    assert answer(ExecuteResult({"text/html": html, "text/plain": text})).text.splitlines()[1:] == [" | a", "0 | 1"]
    assert "Rows: 1" in answer(ExecuteResult({"text/html": html, "text/plain": "Rows: 1"})).text


FRAME = "File /usr/lib/pandas/frame.py:{0}, in get(self)\n    before = 1\n--> {0} raise KeyError(key)\n    after\n"


@pytest.mark.parametrize(
    ("traceback", "shown"),
    [
        (
            (
                "-" * 75,
                "KeyError   Traceback",
                "Cell In[1], line 1\n----> 1 df['a']\n",
                *map(FRAME.format, range(9)),
                "KeyError: 'a'",
            ),
            [
                "KeyError   Traceback",
                "Cell In[1], line 1",
                "----> 1 df['a']",
                "File /usr/lib/pandas/frame.py:8, in get(self)",
                "--> 8 raise KeyError(key)",
                "KeyError: 'a'",
            ],
        ),
        (("ValueError: " + "v" * 900,), [f"ValueError: {'v' * 213}", "... 462 more characters ...", "v" * 225]),
        ((), [f"KeyError: {'e' * 215}", "... 560 more characters ...", "e" * 225]),
    ],
)
def test_a_long_exception_has_the_lines_that_matter(traceback: tuple[str, ...], shown: list[str]) -> None:
    text = answer(Error("KeyError", "e" * 1000, traceback), status="error", exit_code=1).text
    assert text.splitlines()[1:] == shown


def test_the_interrupt_of_a_command_has_no_traceback() -> None:
    error, fields = Error("KeyboardInterrupt", "", ("KeyboardInterrupt",)), dict[str, Any](status="error", exit_code=124)
    assert answer(error, language="bash", **fields).text == "[error · exit code 124 · 0.02 s · state kept · no output]"
    assert answer(error, **fields).text.endswith("\nKeyboardInterrupt")


def test_pictures_are_content_in_the_shape_of_each_api() -> None:
    actual = answer(PICTURE, Stream("stdout", "seen\n"))
    text = "[ok · 0.02 s · state kept]\nseen"
    assert [picture.mime for picture in actual.pictures] == ["image/png"]
    assert actual.openai("c1") == {
        "type": "function_call_output",
        "call_id": "c1",
        "output": [{"type": "input_text", "text": text}, {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}],
    }
    source = {"type": "base64", "media_type": "image/png", "data": PNG}
    assert actual.anthropic("t1") == {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [{"type": "text", "text": text}, {"type": "image", "source": source}],
        "is_error": False,
    }


def test_more_pictures_than_models_see_are_counted() -> None:
    actual = answer(*[PICTURE] * 6)
    assert (len(actual.pictures), actual.text.splitlines()[1]) == (4, "[kernelexec: 2 of 6 pictures are not shown here.]")


@pytest.mark.parametrize("limit", [0, 3, -1, True, 1.5, None, "1000"])
def test_a_limit_that_is_none_is_refused(limit: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^limit=.*: must be a whole number of bytes >= 4"):
        answer(limit=limit)
