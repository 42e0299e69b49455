"""Files of cells: what is read, what is refused, and what an executed notebook holds."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import nbformat
import pytest

from kernelexec.errors import InvalidRequest
from kernelexec.events import DisplayUpdated, SessionClosed
from kernelexec.records.notebook.notebook_io import FILE_BYTES, CellFile
from kernelexec.results import DisplayData, Error, ExecuteResult, ExecutionResult, Output, Stream

CODE: dict[str, Any] = {
    "cell_type": "code",
    "id": "a",
    "metadata": {},
    "execution_count": 9,
    "outputs": [{"output_type": "stream", "name": "stdout", "text": "old"}],
    "source": "1 + 1",
}
TEXT: dict[str, Any] = {"cell_type": "markdown", "id": "b", "metadata": {"m": [1]}, "source": "# T\n\n*t*"}
WHOLE: dict[str, Any] = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {"kernelspec": {"name": "k", "display_name": "K", "language": "python"}},
}
FORMAT_1 = {"nbformat": 1, "cells": [{"cell_type": "code", "code": "1 + 1", "prompt_number": 1}]}
FORMAT_3_CELLS: list[dict[str, Any]] = [
    {"cell_type": "heading", "level": 2, "metadata": {}, "source": "H"},
    {
        "cell_type": "code",
        "collapsed": False,
        "input": ["x = 1\n", "x"],
        "language": "python",
        "metadata": {},
        "outputs": [{"output_type": "pyout", "prompt_number": 1, "text": "1", "metadata": {}}],
        "prompt_number": 1,
    },
]
FORMAT_3 = {
    "metadata": {"name": "n"},
    "nbformat": 3,
    "nbformat_minor": 0,
    "worksheets": [{"metadata": {}, "cells": FORMAT_3_CELLS}],
}


def notebook(*cells: dict[str, Any], **more: Any) -> str:
    return json.dumps({**WHOLE, "cells": list(cells), **more})


def result_of(*outputs: Output, execution_count: int | None = 1) -> ExecutionResult:
    return ExecutionResult("e", "s", "ok", execution_count, outputs)


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in CODE.items() if key != name}


def read_back(document: CellFile, directory: Path) -> Any:
    """The notebook as it was written, which is valid."""
    path = directory / "written.ipynb"
    document.write(path)
    actual = json.loads(path.read_text(encoding="utf-8"))
    nbformat.validate(actual)
    return nbformat.reads(json.dumps(actual), as_version=nbformat.NO_CONVERT)


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        (notebook(CODE, TEXT, {**CODE, "id": "c", "source": ["x = 1\n", "x"]}), ("1 + 1", "x = 1\nx")),
        (notebook({**CODE, "source": "%%bash\nls"}), ("%%bash\nls",)),
        (notebook({**CODE, "source": " \n"}, TEXT, {**CODE, "id": "c"}), ("1 + 1",)),
        (notebook(without("id"), without("id"), nbformat_minor=4), ("1 + 1", "1 + 1")),
        (notebook(without("id"), nbformat_minor=0), ("1 + 1",)),
        (notebook(TEXT), ()),
        (notebook(), ()),
        (json.dumps(FORMAT_3), ("x = 1\nx",)),
        (json.dumps(FORMAT_1), ("1 + 1",)),
    ],
    ids=["4.5", "magic", "empty cells", "4.4", "4.0", "no code", "no cells", "3", "1"],
)
def test_a_notebook_of_any_format_gives_its_code(text: str, sources: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "given.ipynb"
    path.write_text(text, encoding="utf-8")
    document = CellFile.read(path)
    assert document.sources == sources
    for number in range(len(sources)):
        document.record(number, result_of(Stream("stdout", f"{number}")))
    written = read_back(document, tmp_path)
    assert [cell.outputs[0].text for cell in written.cells if cell.cell_type == "code" and cell.source.strip()] == [
        f"{number}" for number in range(len(sources))
    ]


def test_results_of_a_script_are_written_as_by_nbformat(tmp_path: Path) -> None:
    document = CellFile.script("# %% [markdown]\n# One\n# two\n# %%\nx = 'ü'\nx\n# %%\n1 / 0")
    svg = DisplayData({"image/svg+xml": "<svg>\n</svg>", "application/json": {"text/plain": "a\nb"}}, {"m": {"text": "a\nb"}})
    shown = ExecuteResult({"text/plain": "one\ntwo", "text/html": "<b>\n"}, {}, execution_count=1)
    document.record(0, result_of(Stream("stdout", "a\nü\n"), svg, shown))
    document.record(1, result_of(Error("E", "e\n", ("t\n",)), execution_count=None))
    written = read_back(document, tmp_path)
    text = (tmp_path / "written.ipynb").read_text(encoding="utf-8")
    assert text == nbformat.writes(nbformat.from_dict(written)) + "\n"
    assert written.cells[1].outputs[0].text == "a\nü\n"
    assert written.cells[1].outputs[1].data["application/json"] == {"text/plain": "a\nb"}


NO_NOTEBOOKS = {
    "nothing": "",
    "half": "{",
    "code": "print(1)",
    "null": "null",
    "a number": "5",
    "a list": "[]",
    "text": '"text"',
    "an object": "{}",
    "no cells": json.dumps(WHOLE),
    "format 99": notebook(CODE, nbformat=99),
    "format 5": notebook(CODE, nbformat=5),
    "format as text": notebook(CODE, nbformat="4"),
    "format null": notebook(CODE, nbformat=None),
    "cells null": notebook(CODE, cells=None),
    "cells an object": notebook(CODE, cells={}),
    "a cell that is a number": notebook(CODE, cells=[1]),
    "an empty cell": notebook({}),
    "a source that is a number": notebook({**CODE, "source": 5}),
    "format 3 without worksheets": json.dumps({key: value for key, value in FORMAT_3.items() if key != "worksheets"}),
    "nested deep": "[" * 100_000,
    "a number of 5,000 digits": "1" * 5_000,
}


#: Faults that nbclient does not look at: the notebook, the words of the note, and whether the schema holds afterwards.
FAULTY: dict[str, tuple[str, str, bool]] = {
    "minor format as text": (notebook(CODE, nbformat_minor="5"), "", True),
    "minor format null": (notebook(CODE, nbformat_minor=None), "", True),
    "a newer minor format": (notebook(CODE, nbformat_minor=9), "", True),
    "no format": (json.dumps({"cells": [CODE], "metadata": {}}), "", True),
    "metadata null": (notebook(CODE, metadata=None), "a notebook without metadata", True),
    "an id in 4.4": (notebook(CODE, nbformat_minor=4), "", True),
    "no id in 4.5": (notebook(without("id"), without("id")), "cells without a valid id of their own (2)", True),
    "an id with blanks": (notebook({**CODE, "id": "my cell"}), "cells without a valid id of their own", True),
    "an id that is a number": (notebook({**CODE, "id": 1}), "cells without a valid id of their own", True),
    "an id of 65 characters": (notebook({**CODE, "id": "a" * 65}), "cells without a valid id of their own", True),
    "the same id twice": (notebook(CODE, CODE), "cells without a valid id of their own", True),
    "no outputs": (notebook(without("outputs")), "cells without outputs", True),
    "outputs null": (notebook({**CODE, "outputs": None}), "cells without outputs", True),
    "no execution count": (notebook(without("execution_count")), "cells without execution_count", True),
    "an execution count as text": (notebook({**CODE, "execution_count": "1"}), "cells without execution_count", True),
    "no metadata": (notebook(without("metadata")), "cells without metadata", True),
    "tags null": (notebook({**CODE, "metadata": {"tags": None}}), "tags that are no list of texts", True),
    "tags as text": (notebook({**CODE, "metadata": {"tags": "a"}}), "tags that are no list of texts", True),
    "an unknown cell": (notebook(CODE, {**TEXT, "cell_type": "poem"}), "", False),
    "an unknown key": (notebook({**CODE, "extra": [1]}), "", False),
    "a heading": (
        notebook(CODE, {"cell_type": "heading", "level": 2, "metadata": {}, "source": "T"}, nbformat_minor=0),
        "",
        False,
    ),
    "text without source": (notebook(CODE, {"cell_type": "markdown", "id": "b", "metadata": {}}), "cells without source", True),
    "outputs of format 3": (
        notebook(
            {
                **CODE,
                "outputs": [
                    {"output_type": "pyout", "prompt_number": 1, "text": "1", "png": "aa=="},
                    {"output_type": "pyerr", "ename": "E", "evalue": "v", "traceback": ["t"]},
                    {"output_type": "stream", "stream": "stderr", "text": "x"},
                    {"output_type": "display_data", "html": "<b>"},
                ],
            }
        ),
        "outputs that cannot be shown, which are left out (4)",
        True,
    ),
    "outputs that are none": (notebook({**CODE, "outputs": [1, {}, {"output_type": "poem"}]}), "cannot be shown", True),
    "a kernelspec without a name": (notebook(CODE, metadata={"kernelspec": {"language": "python"}}), "", False),
    "a kernelspec null": (notebook(CODE, metadata={"kernelspec": None}), "", False),
}


@pytest.mark.parametrize(("text", "note", "is_valid"), FAULTY.values(), ids=FAULTY)
def test_a_notebook_that_nbclient_runs_is_repaired_with_a_note(
    text: str, note: str, *, is_valid: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    document = CellFile.notebook(text, "n")
    assert document.sources[0] == "1 + 1"
    assert document.get_language(0) == "python"
    assert note in " ".join(document.history.notes)
    assert bool(document.history.notes) is bool(note)
    document.record(0, result_of(Stream("stdout", "new")))
    document.write(tmp_path / "written.ipynb")
    written = json.loads((tmp_path / "written.ipynb").read_text(encoding="utf-8"))
    assert nbformat.validator.isvalid(written) is is_valid
    assert CellFile.read(tmp_path / "written.ipynb").history.notes == ()
    assert capfd.readouterr() == ("", "")


PYTHON_3 = {"name": "python3", "display_name": "P"}
KERNELSPECS: dict[str, tuple[dict[str, Any], str | None]] = {
    "none": ({}, None),
    "python3": ({"kernelspec": PYTHON_3}, None),
    "an environment of Python's": ({"kernelspec": {"name": "env", "display_name": "E", "language": "python"}}, None),
    "by language_info": ({"kernelspec": {"name": "env", "display_name": "E"}, "language_info": {"name": "ipython"}}, None),
    "R": ({"kernelspec": {"name": "ir", "display_name": "R", "language": "R"}}, "ir"),
    "R by language_info": ({"kernelspec": {"name": "ir", "display_name": "R"}, "language_info": {"name": "R"}}, "ir"),
    "R without a name": ({"kernelspec": {"display_name": "R", "language": "R"}}, "R"),
    "R without a kernelspec": ({"language_info": {"name": "R"}}, "R"),
    "a name alone": ({"kernelspec": {"name": "julia-1.10", "display_name": "J"}}, "julia-1.10"),
    "python3 and another language": (
        {"kernelspec": {"name": "python3", "display_name": "P"}, "language_info": {"name": "R"}},
        None,
    ),
    "a language like Python": (
        {"kernelspec": {"name": "pythonnet", "display_name": "P", "language": "pythonnet"}},
        "pythonnet",
    ),
}


@pytest.mark.parametrize(("metadata", "kernelspec"), KERNELSPECS.values(), ids=KERNELSPECS)
def test_a_notebook_names_the_kernelspec_that_its_cells_need(metadata: dict[str, Any], kernelspec: str | None) -> None:
    document = CellFile.notebook(notebook(CODE, metadata=metadata), "n")
    assert document.history.kernelspec == kernelspec
    assert document.get_language(0) == (kernelspec or "python")


def test_cells_that_are_tagged_to_be_skipped_keep_their_outputs_and_are_not_run(tmp_path: Path) -> None:
    skipped = {**CODE, "id": "s", "metadata": {"tags": ["skip-execution"]}, "source": "skipped"}
    document = CellFile.notebook(notebook(skipped, CODE), "n")
    assert document.sources == ("1 + 1",)
    document.record(0, result_of(Stream("stdout", "new")))
    first, second = read_back(document, tmp_path).cells
    assert (first.outputs[0].text, first.execution_count) == ("old", 9)
    assert (second.outputs[0].text, second.execution_count) == ("new", 1)


@pytest.mark.parametrize("text", NO_NOTEBOOKS.values(), ids=NO_NOTEBOOKS)
@pytest.mark.filterwarnings("default")
def test_invalid_notebooks_are_refused_by_name_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "given.ipynb"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidRequest, match=r"given\.ipynb is no notebook: .") as caught:
        CellFile.read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file"), (b"\xff\xfe\x00", "codec can't decode"), (..., "Is a directory")]
)
@pytest.mark.parametrize("name", ["given.ipynb", "given.py"])
def test_unreadable_cell_files_are_refused(content: Any, reason: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is ...:
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidRequest, match=rf"{name} cannot be read: .*{reason}"):
        CellFile.read(path)


def test_a_process_without_a_pipe_waits_for_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "given.py")
    with pytest.raises(InvalidRequest, match=r"given\.py is no plain file"):
        CellFile.read(tmp_path / "given.py")


SCRIPTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "no mark": ("1 + 1", ("1 + 1",)),
    "marks": ("# %%\n1\n# %%\n2\n", ("1", "2")),
    "marks without a blank": ("#%%\n1\n#%%\n2\n", ("1", "2")),
    "titles": ("# %% a title\n1\n#%% another %%\n2", ("1", "2")),
    "code before the first mark": ("import os\n\n# %%\n1", ("import os", "1")),
    "blank lines around": ("# %%\n\n\n  # indented\nx = 1\n\nx\n\n# %%", ("  # indented\nx = 1\n\nx",)),
    "empty cells": ("# %%\n# %%\n \n# %%\n1", ("1",)),
    "magic": ("# %%\n%%bash\nls\n# %%\n!ls", ("%%bash\nls", "!ls")),
    "no marks": ("# %%% a\n    # %%\nx = '# %%'\n## %%\n# b %%", ("# %%% a\n    # %%\nx = '# %%'\n## %%\n# b %%",)),
    "returns": ("# %%\r\n1\r\n# %%\r\n2\r\n", ("1", "2")),
    "byte order mark": ("\ufeffprint(1)", ("print(1)",)),
    "byte order mark before a mark": ("\ufeff# %%\n1", ("1",)),
    "unicode": ("# %%\n'\u65e5'", ("'\u65e5'",)),
    "nothing": ("", ()),
    "nothing between marks": (" \n# %%\n\n", ()),
    "prose in comments": ("# %% [markdown]\n# # Title\n#\n# *text*\n# %%\n1", ("1",)),
    "prose in a string": ('# %% [markdown]\n"""\n# Title\n"""\n# %% code\n1', ("1",)),
    "prose with a title": ("#%% [markdown] title\n# text\n#%%\n1", ("1",)),
}


@pytest.mark.parametrize(("text", "sources"), SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_is_parted_at_its_marks_and_prose_is_no_code(text: str, sources: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "given.py"
    path.write_bytes(text.encode())
    assert CellFile.read(path).sources == sources


HEADER = """# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# title: My notebook
# ---

"""
#: Cells behind a header of jupytext, and what jupytext 1.17 makes of them: type, metadata and source.
JUPYTEXT: dict[str, tuple[str, tuple[str, dict[str, Any], str]]] = {
    "line magic": ("# %%\n# %matplotlib inline\n# a comment\nx = 1", ("code", {}, "%matplotlib inline\n# a comment\nx = 1")),
    "cell magic": ("# %%\n# %%time\nf()", ("code", {}, "%%time\nf()")),
    "command": ("# %%\n# !ls\n# ?print\n# x = !ls", ("code", {}, "!ls\n?print\nx = !ls")),
    "a comment twice": ("# %%\n# # %timeit f\n1", ("code", {}, "# %timeit f\n1")),
    "title and options": (
        '# %% A title tags=["parameters", "b"] slideshow={"slide_type": "slide"}\n1',
        ("code", {"title": "A title", "tags": ["parameters", "b"], "slideshow": {"slide_type": "slide"}}, "1"),
    ),
    "raw": ("# %% [raw]\n# raw text", ("raw", {}, "raw text")),
    "tagged text": ('# %% [markdown] tags=["m"]\n# text', ("markdown", {"tags": ["m"]}, "text")),
    "another language": ('# %% language="bash"\n# ls\n# echo %x', ("code", {}, "%%bash\nls\necho %x")),
    "arguments": ('# %% magic_args="--out x" language="bash"\n# ls', ("code", {}, "%%bash --out x\nls")),
}


@pytest.mark.parametrize(("text", "cell"), JUPYTEXT.values(), ids=JUPYTEXT)
def test_a_script_of_jupytext_is_read_as_by_jupytext(text: str, cell: tuple[str, dict[str, Any], str], tmp_path: Path) -> None:
    written = read_back(CellFile.script(f"{HEADER}{text}\n"), tmp_path)
    assert written.metadata["kernelspec"]["name"] == "python3"
    header, actual = written.cells
    assert (header.cell_type, header.source) == ("raw", "---\ntitle: My notebook\n---")
    assert (actual.cell_type, actual.metadata, actual.source) == cell


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("# %%\n# !rm -rf x\n# %time f\n1", "# !rm -rf x\n# %time f\n1"),
        ("# ---\n# title: t\n# ---\n# %%\n# !rm -rf x\n1", "# !rm -rf x\n1"),
        ("# ---\n# [unclosed\n# ---\n# !ls\n1", "# !ls\n1"),
        ("# ---\n# just a line\n1", "# ---\n# just a line\n1"),
    ],
    ids=["no header", "another header", "no yaml", "no end"],
)
def test_commented_commands_of_other_scripts_stay_comments(text: str, source: str) -> None:
    assert CellFile.script(text).sources == (source,)


@pytest.mark.parametrize(
    ("title", "metadata"),
    [
        ('t tags=["skip-execution"]', {"title": "t", "tags": ["skip-execution"]}),
        ("t tags=5 a=1.5 b=word c=[1", {"title": "t", "a": 1.5, "b": "word", "c": "[1"}),
        ("a = b", {"title": "a = b"}),
        ("x=" + "[" * 100_000, {"title": "x=" + "[" * 100_000}),  # options are looked for in lines of a usual length only
    ],
    ids=["tags", "words", "no option", "nested deep"],
)
def test_the_options_of_a_mark_are_metadata(title: str, metadata: dict[str, Any], tmp_path: Path) -> None:
    assert read_back(CellFile.script(f"# %% {title}\n1"), tmp_path).cells[0].metadata == metadata


def test_a_script_of_another_language_names_its_kernelspec() -> None:
    document = CellFile.script(HEADER.replace("language: python, name: python3", "language: R, name: ir") + "# %%\n1")
    assert (document.history.kernelspec, document.get_language(0)) == ("ir", "ir")


def test_a_script_becomes_a_valid_notebook(tmp_path: Path) -> None:
    document = CellFile.script("x = 1\n# %% title\n%%bash\nls\n# %%\nx\n")
    document.record(2, result_of(ExecuteResult({"text/plain": "1"}, {}, 3), execution_count=3))
    written = read_back(document, tmp_path)
    assert [(cell.cell_type, cell.source, cell.execution_count) for cell in written.cells] == [
        ("code", "x = 1", None),
        ("code", "%%bash\nls", None),
        ("code", "x", 3),
    ]
    assert written.cells[2].outputs[0].data == {"text/plain": "1"}


def test_the_cells_of_a_script_have_ids_of_their_own_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbformat.v4.nbbase.random_cell_id", lambda: "same")
    written = read_back(CellFile.script("# %%\n1\n# %% [markdown]\n# a\n# %%\n2"), tmp_path)
    assert len({cell.id for cell in written.cells}) == 3


def test_prose_of_a_script_is_prose_of_its_notebook(tmp_path: Path) -> None:
    document = CellFile.script("# %% [markdown]\n# # Title\n#\n# *text*\n# %%\n1")
    written = read_back(document, tmp_path)
    assert [(cell.cell_type, cell.source) for cell in written.cells] == [("markdown", "# Title\n\n*text*"), ("code", "1")]


def test_outputs_go_into_the_cells_that_made_them(tmp_path: Path) -> None:
    outputs: tuple[Output, ...] = (
        Stream("stderr", "\u65e5\x00\n"),
        DisplayData({"image/svg+xml": "<svg>\n</svg>", "application/json": {"a": [None]}}, {"m": 1}),
        ExecuteResult({"text/plain": "2"}, {}, 4),
        Error("E", "v", ("a", "b\nc")),
    )
    document = CellFile.notebook(notebook({**CODE, "source": ""}, CODE | {"id": "c"}, CODE | {"id": "d"}), "n")
    document.record(0, result_of(*outputs, execution_count=4))
    empty, first, second = read_back(document, tmp_path).cells
    assert empty.outputs == second.outputs == CODE["outputs"]  # they did not run
    assert empty.execution_count == second.execution_count == CODE["execution_count"]
    assert first.execution_count == 4
    stream, display, value, error = first.outputs
    assert (stream.name, stream.text) == ("stderr", "\u65e5\x00\n")
    assert (display.data["image/svg+xml"], display.data["application/json"]) == ("<svg>\n</svg>", {"a": [None]})
    assert display.metadata == {"m": 1}
    assert (value.data, value.execution_count) == ({"text/plain": "2"}, 4)
    assert (error.ename, error.evalue, error.traceback) == ("E", "v", ["a", "b\nc"])


def test_an_update_changes_the_displays_of_recorded_cells(tmp_path: Path) -> None:
    document = CellFile.notebook(notebook(CODE, {**CODE, "id": "c"}), "n")
    old, other = DisplayData({"text/plain": "old"}, {}, "d"), DisplayData({"text/plain": "other"}, {}, "e")
    document.record(0, result_of(old, other))
    document.record(1, result_of(ExecuteResult({"text/plain": "old"}, {}, 2, "d"), DisplayData({"text/plain": "none"})))
    for display_id in ("d", "unknown"):
        document.on_event(DisplayUpdated("s", display_id, {"text/html": "<b>new</b>"}, {"m": {"n": 1}}))
    document.on_event(SessionClosed("s"))
    first, second = read_back(document, tmp_path).cells
    data = [output.data for output in (*first.outputs, *second.outputs)]
    assert data == [{"text/html": "<b>new</b>"}, {"text/plain": "other"}, {"text/html": "<b>new</b>"}, {"text/plain": "none"}]
    assert first.outputs[0].metadata == second.outputs[0].metadata == {"m": {"n": 1}}


def test_all_but_the_outputs_stays_as_it_was(tmp_path: Path) -> None:
    raw = {"cell_type": "raw", "id": "r", "metadata": {"format": "x"}, "source": "raw\n"}
    code = {**CODE, "metadata": {"collapsed": True, "tags": ["t"], "own": {"k": [1]}}}
    document = CellFile.notebook(notebook(TEXT, code, raw, TEXT | {"id": "z"}, metadata={"own": 1, **WHOLE["metadata"]}), "n")
    written = read_back(document, tmp_path)
    assert written.metadata == {"own": 1, **WHOLE["metadata"]}
    assert (written.nbformat, written.nbformat_minor) == (4, 5)
    assert written.cells == [TEXT, code, raw, TEXT | {"id": "z"}]


def test_the_tag_that_allows_an_error_belongs_to_its_cell() -> None:
    tags = [{}, {"tags": []}, {"tags": ["other", "raises-exception"]}, {"tags": ["raises-exceptions"]}]
    cells = [{**CODE, "id": f"c{number}", "metadata": metadata} for number, metadata in enumerate(tags)]
    document = CellFile.notebook(notebook(TEXT, {**CODE, "id": "empty", "source": ""}, *cells), "n")
    assert [document.allows_error(number) for number in range(4)] == [False, False, True, False]
    assert not CellFile.script("1").allows_error(0)


def test_a_notebook_without_ids_is_taken_without_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    assert CellFile.notebook(notebook(without("id"), without("id")), "n").sources == ("1 + 1", "1 + 1")
    assert CellFile.notebook(notebook(CODE, CODE), "n").sources == ("1 + 1", "1 + 1")
    assert capfd.readouterr() == ("", "")


def test_a_lone_surrogate_in_a_notebook_is_refused_or_written(tmp_path: Path) -> None:
    text = notebook({**TEXT, "source": "\ud800"}, CODE)
    try:
        document = CellFile.notebook(text, "n")
    except InvalidRequest:
        return
    read_back(document, tmp_path)


def test_a_link_in_the_notebooks_place_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    elsewhere, location = tmp_path / "elsewhere", tmp_path / "place"
    elsewhere.write_text("precious")
    location.mkdir()
    (location / "written.ipynb").symlink_to(elsewhere)
    read_back(CellFile.script("1"), location)
    assert elsewhere.read_text() == "precious"
    assert [(path.name, path.is_symlink()) for path in location.iterdir()] == [("written.ipynb", False)]


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.py"
    with path.open("wb") as file:
        file.truncate(FILE_BYTES + 1)
    with pytest.raises(InvalidRequest, match=r"large\.py has more than 268435456 bytes, the limit: clear its outputs"):
        CellFile.read(path)
