"""AG2's own agents with our executor: its protocol, its selection of messages, a whole conversation."""

from __future__ import annotations

import doctest
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kernelexec import Executor
from kernelexec.adapters import ag2
from kernelexec.adapters.ag2 import Ag2CodeExecutor, create_executor
from kernelexec.errors import Disabled, InvalidConfig
from kernelexec.rules.policy.decisions import Approval, ApprovalRequest
from tests.support.engine import IMAGE, needs_engine
from tests.support.pace import slow
from tests.support.scripted_model import CONVERSATION, ScriptedModel

if TYPE_CHECKING:
    from autogen.coding import CodeBlock

pytestmark = pytest.mark.usefixtures("import_ag2")

#: The usual secure example of code execution in containers, literally, but for the image's name.
SECURE = {
    "work_dir": "secure_workspace",
    "use_docker": True,
    "timeout": 60,
    "last_n_messages": 3,
    "docker_image": IMAGE,
    "docker_container_name": f"secure-execution-{os.getpid()}",
    "docker_run_args": [
        *("--rm", "--network", "none", "--read-only", "--tmpfs", "/tmp", "--memory", "512m", "--cpus", "0.5"),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges:true"),
    ],
}
LOCAL = {"work_dir": "coding", "use_docker": False, "timeout": 60, "last_n_messages": 3}
SLEEPS = "x = 7\nimport time\ntime.sleep(600)"


def block(code: str, language: str) -> CodeBlock:
    from autogen.coding import CodeBlock

    return CodeBlock(code=code, language=language)


def python(code: str) -> list[CodeBlock]:
    return [block(code, "python")]


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a directory of the test's own, where the journals of executors without a workspace go."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ag2CodeExecutor]:
    with Ag2CodeExecutor(
        isolation="local", workspace=tmp_path_factory.mktemp("w"), config={"budgets": {"timeout": 30}}
    ) as opened:
        yield opened


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what AG2 uses of pydantic
@pytest.mark.parametrize(
    "options",
    [pytest.param(SECURE, marks=[needs_engine, pytest.mark.nightly], id="container"), pytest.param(LOCAL, id="local")],
)
def test_two_agents_write_code_that_fails_mend_it_and_save_a_plot(options: dict[str, Any], tmp_path: Path) -> None:
    from autogen import ConversableAgent, LLMConfig, UserProxyAgent

    settings = LLMConfig({"model": "scripted", "model_client_cls": "ScriptedModel"})
    assistant = ConversableAgent("assistant", llm_config=settings, human_input_mode="NEVER")
    asked: list[str] = []
    assistant.register_model_client(ScriptedModel, answers=CONVERSATION, asked=asked)  # type: ignore[arg-type] # it is a class of such
    isolation = "container" if options["use_docker"] else None  # also where this runs in a container itself
    with Ag2CodeExecutor(isolation=isolation, code_execution_config=options) as executor:
        user = UserProxyAgent(
            "user",
            human_input_mode="NEVER",
            code_execution_config=executor.code_execution_config,
            is_termination_msg=lambda message: "TERMINATE" in (message.get("content") or ""),
        )
        chat = user.initiate_chat(assistant, message="What is the median?", max_turns=5, silent=True)
    messages = [str(message["content"]) for message in chat.chat_history]
    assert messages[2].startswith("exitcode: 1 (execution failed)\nCode output: ")
    assert "TypeError: list indices must be integers" in messages[2]
    assert "return ordered[len(ordered) / 2]" in messages[2]
    assert messages[4].startswith("exitcode: 0 (execution succeeded)\nCode output: median 5\n")
    assert "plot.png" in messages[4]
    assert asked[1:] == [messages[2], messages[4]]
    assert (tmp_path / str(options["work_dir"]) / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_executor_is_a_code_executor_of_ag2(executor: Ag2CodeExecutor) -> None:
    from autogen import ConversableAgent
    from autogen.coding import CodeExecutor as Protocol

    assert isinstance(executor, Protocol)
    agent = ConversableAgent("a", llm_config=False, code_execution_config=executor.code_execution_config)
    assert agent.code_executor is executor
    actual = executor.code_extractor.extract_code_blocks("```python\na = 1\n```")
    assert actual == python("a = 1")


def test_blocks_run_in_order_keep_their_state_and_end_at_the_first_failure(executor: Ag2CodeExecutor) -> None:
    blocks = [
        *python("n = 20"),
        block("echo from-the-shell", "sh"),
        *python("print(n + 1)\n1 / 0"),
        *python("print('no')"),
    ]
    result = executor.execute_code_blocks(blocks)
    assert result.exit_code == 1
    assert result.output.startswith("from-the-shell\n21\n")
    assert "ZeroDivisionError" in result.output
    assert "no" not in result.output.splitlines()
    assert executor.execute_code_blocks(python("n")).output == "20\n"


def test_a_timeout_keeps_the_state(tmp_path: Path) -> None:
    with Ag2CodeExecutor(
        code_execution_config={"use_docker": False, "timeout": slow(2), "work_dir": str(tmp_path / "w")}
    ) as executor:
        result = executor.execute_code_blocks(python(SLEEPS))
        assert result.exit_code == 124
        assert "Timeout: " in result.output
        assert executor.execute_code_blocks(python("print(x)")).output == "7\n"


def test_pictures_and_pages_become_files(executor: Ag2CodeExecutor) -> None:
    shows = "from IPython.display import HTML, display\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\n"
    code = shows + "display(HTML('<b>ü</b>'))\n1 / 0"
    result = executor.execute_code_blocks(python(code))
    assert result.exit_code == 1
    kinds = {Path(file).suffix: Path(file) for file in result.output_files}
    assert kinds[".png"].read_bytes().startswith(b"\x89PNG")
    assert kinds[".html"].read_text(encoding="utf-8") == "<b>ü</b>"
    assert "files made or changed: " in result.output


def test_a_block_that_names_its_file_is_saved_there_and_run(executor: Ag2CodeExecutor) -> None:
    result = executor.execute_code_blocks(python("# filename: lib/fib.py\nprint(40 + 2)\n1 / 0"))
    saved = Path(executor.session.workspace) / "lib" / "fib.py"
    assert saved.read_text(encoding="utf-8").startswith("# filename: lib/fib.py\nprint(40 + 2)")
    assert result.output.startswith("42\n")
    assert "is lib/fib.py]" in result.output


@pytest.mark.parametrize("name", ["../out.py", "/etc/out.py"])
def test_a_file_outside_of_the_workspace_is_refused(executor: Ag2CodeExecutor, name: str) -> None:
    result = executor.execute_code_blocks(python(f"# filename: {name}\nprint('ran')"))
    assert result.exit_code == 1
    assert "is not in the workspace" in result.output
    assert "ran" not in result.output


def test_pages_are_saved_and_policies_decide(tmp_path: Path) -> None:
    with Ag2CodeExecutor(isolation="local", workspace=tmp_path, execution_policies={"python": False, "js": True}) as executor:
        result = executor.execute_code_blocks([block("<b>1</b>", "html"), *python("1 / 0"), block("console.log(6 * 7)", "js")])
        assert result.exit_code == 0
        assert "42" in result.output.splitlines()
        assert [Path(file).suffix for file in result.output_files] == [".html", ".py"]


@pytest.mark.parametrize("language", ["", "cobol"])
def test_a_language_that_nothing_runs_fails_with_its_name(executor: Ag2CodeExecutor, language: str) -> None:
    result = executor.execute_code_blocks([block("DISPLAY 'HI'.", language)])
    assert result.exit_code == 1
    assert (language or "unknown language") in result.output


def test_a_named_file_is_called_as_it_says_whatever_ends_its_line(executor: Ag2CodeExecutor) -> None:
    executor.execute_code_blocks(python("# filename: rn.py\r\n1") + python("# filename: r.py\r1"))
    assert {"rn.py", "r.py"} < {path.name for path in executor.session.workspace.iterdir()}


def test_files_that_were_saved_here_are_no_cells_files(tmp_path: Path) -> None:
    with Ag2CodeExecutor(isolation="local", workspace=tmp_path) as executor:
        page = executor.execute_code_blocks([block("<b>1</b>", "html")]).output_files
        assert executor.execute_code_blocks(python("# filename: a.py\nprint(1)")).output == "1\n"
        changed = executor.execute_code_blocks(python(f"open({page[0]!r}, 'a').write('2')\nopen('own', 'w').close()"))
        assert sorted(changed.output_files) == sorted([*page, str(executor.session.workspace / "own")])
        itself = executor.execute_code_blocks(python("# filename: a.py\nopen('a.py', 'a').write('# more')")).output_files
        assert itself == [str(executor.session.workspace / "a.py")]


def test_another_executor_in_the_same_directory_keeps_its_notebook_to_itself(tmp_path: Path) -> None:
    options: dict[str, Any] = {"isolation": "local", "workspace": tmp_path}
    with Ag2CodeExecutor(**options) as first, Ag2CodeExecutor(**options) as second:
        for number in range(3):
            second.execute_code_blocks(python(f"print({number})"))
            second.session.save_notebook()
            result = first.execute_code_blocks(python(f"open('made-{number}.ipynb', 'w').close()"))
            created = str(first.session.workspace / f"made-{number}.ipynb")
            assert (result.output, result.output_files) == (
                f"[kernelexec: files made or changed: made-{number}.ipynb]\n",
                [created],
            )


SCENARIOS: dict[str, tuple[list[tuple[str, str]], Any, str | None]] = {
    "the newest message": ([("user", "```python\nprint('a')\n```")], "auto", "a"),
    "the newest with code": ([("user", "```python\nprint('b')\n```"), ("user", "well?")], "auto", "b"),
    "behind the agent's own": ([("user", "```python\nprint('c')\n```"), ("assistant", "done")], "auto", None),
    "two messages back": ([("user", "```python\nprint('d')\n```"), ("assistant", "so"), ("user", "?")], 3, "d"),
    "too few messages": ([("user", "```python\nprint('e')\n```"), ("user", "?")], 1, None),
    "no message": ([("user", "```python\nprint('f')\n```")], 0, None),
    "no content": ([("user", "```python\nprint('g')\n```"), ("user", "")], 5, "g"),
    "nothing said": ([], "auto", None),
}


@pytest.mark.parametrize(("messages", "count", "expected"), SCENARIOS.values(), ids=SCENARIOS)
def test_the_messages_that_count_are_chosen(
    executor: Ag2CodeExecutor, messages: list[tuple[str, str]], count: Any, expected: str | None
) -> None:
    options = [{"role": role, "content": content} for role, content in messages]
    reply = executor.reply(options, last_n_messages=count)
    assert reply == (None if expected is None else f"exitcode: 0 (execution succeeded)\nCode output: {expected}\n")


@pytest.mark.parametrize("count", [-1, "all", 1.5, True])
def test_another_number_of_messages_is_refused(executor: Ag2CodeExecutor, count: Any) -> None:
    with pytest.raises(ValueError, match="last_n_messages"):
        executor.reply([], last_n_messages=count)


def test_a_restart_drops_the_state_and_keeps_the_files(executor: Ag2CodeExecutor) -> None:
    executor.execute_code_blocks(python("kept = 1\nopen('kept.txt', 'w').write('1')"))
    executor.restart()
    result = executor.execute_code_blocks(python("print(open('kept.txt').read())\nkept"))
    assert result.output.startswith("1\n")
    assert "NameError" in result.output


def area(radius: float) -> float:
    """The area of a circle."""
    return math.pi * radius**2  # type: ignore[name-defined,no-any-return] # noqa: F821 - imported where it runs


def test_functions_can_be_imported_by_cells(tmp_path: Path) -> None:
    from autogen.coding.func_with_reqs import with_requirements

    options = [with_requirements(python_packages=[], global_imports=["math"])(area), "def half(x):\n    return x / 2\n"]
    with Ag2CodeExecutor(isolation="local", workspace=tmp_path, functions=options, functions_module="tools") as executor:
        result = executor.execute_code_blocks(python("from tools import area, half\nprint(round(area(2)), half(3))"))
        assert (result.exit_code, result.output) == (0, "13 1.5\n")
        assert "The area of a circle." in executor.format_functions_for_prompt()
        assert executor.functions_module == "tools"


def test_functions_whose_imports_fail_are_reported_before_any_block(tmp_path: Path) -> None:
    from autogen.coding.func_with_reqs import with_requirements

    broken = with_requirements(global_imports=["no_such_module"])(area)
    with (
        Ag2CodeExecutor(isolation="local", workspace=tmp_path, functions=[broken]) as executor,
        pytest.raises(ValueError, match="no_such_module"),
    ):
        executor.execute_code_blocks(python("print('ran')"))


def test_functions_whose_packages_cannot_be_had_are_reported_before_any_block(tmp_path: Path) -> None:
    from autogen.coding.func_with_reqs import with_requirements

    needy = with_requirements(python_packages=["kernelexec-no-such-package"])(area)
    with (
        Ag2CodeExecutor(isolation="local", workspace=tmp_path, functions=[needy]) as executor,
        pytest.raises(ValueError, match="the packages cannot be installed"),
    ):
        executor.execute_code_blocks(python("print('ran')"))


def test_an_approver_sees_the_code_and_denied_code_does_not_run(tmp_path: Path) -> None:
    seen: list[str] = []

    def ask(request: ApprovalRequest) -> Approval:
        seen.append(request.proposal.source)
        return Approval(approved=False, reason="not today")

    with Ag2CodeExecutor(isolation="local", workspace=tmp_path, approver=ask, config={"rules": {"ask": "always"}}) as executor:
        result = executor.execute_code_blocks(python("open('ran', 'w')"))
        assert result.exit_code == -1
        assert "not today" in result.output
        assert not (Path(executor.session.workspace) / "ran").exists()
    assert seen == ["open('ran', 'w')"]


def test_the_factory_knows_the_name_and_leaves_others_to_the_framework(tmp_path: Path) -> None:
    created = create_executor({"executor": "kernelexec", "kernelexec": {"isolation": "local", "workspace": tmp_path}})
    assert isinstance(created, Ag2CodeExecutor)
    assert create_executor({"executor": created}) is created
    with pytest.raises(ValueError, match="Unknown code executor"):
        create_executor({"executor": "no-such"})
    with pytest.raises(ValueError, match="use_docker, timeout: must be an argument of the executor"):
        create_executor({"executor": "kernelexec", "use_docker": False, "timeout": 5})
    with pytest.raises(InvalidConfig, match=r"kernelexec: isolaton is not an option \(did you mean 'isolation'\?\)"):
        create_executor({"executor": "kernelexec", "kernelexec": {"isolaton": "local"}})
    with pytest.raises(InvalidConfig, match="kernelexec: must be `key: value` pairs, not nothing"):
        create_executor({"executor": "kernelexec", "kernelexec": None})


def test_several_threads_may_be_the_first(tmp_path: Path) -> None:
    executor = Ag2CodeExecutor(isolation="local", workspace=tmp_path)
    together = threading.Barrier(4)

    def printed(number: int) -> str:
        together.wait()
        return executor.execute_code_blocks(python(f"print({number})")).output

    try:
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(printed, range(4))) == ["0\n", "1\n", "2\n", "3\n"]
    finally:
        executor.stop()


def test_an_open_session_is_used_and_stays_open(tmp_path: Path) -> None:
    with Executor(isolation="local", workspace=tmp_path) as opened:
        session = opened.session("shared")
        session.execute("y = 3")
        with Ag2CodeExecutor(session) as executor:
            assert executor.execute_code_blocks(python("print(y)")).output == "3\n"
        assert session.execute("y").text == "3"
        with pytest.raises(InvalidConfig, match="isolation: must not be set together with a session"):
            Ag2CodeExecutor(session, isolation="local")


def test_switched_off_execution_and_unfit_settings_are_reported_at_once() -> None:
    with pytest.raises(Disabled):
        Ag2CodeExecutor(code_execution_config=False)
    with pytest.raises(InvalidConfig, match="did you mean 'use_docker'"):
        Ag2CodeExecutor(code_execution_config={"use_dockr": False})


def test_the_docstring_is_true() -> None:
    actual = doctest.testmod(ag2)
    assert (actual.attempted, actual.failed) == (2, 0)
