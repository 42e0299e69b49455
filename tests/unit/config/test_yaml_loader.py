"""YAML in configuration files: no number is guessed, and aliases stand for no more than a bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelexec.config.dialects.yaml_loader import ALIASED_MAX, parse
from kernelexec.errors import InvalidConfig
from tests.unit.config.test_agents import read

LISTS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
MERGED = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}], y{n}: 1}}\n" for n in range(1, 60))
UNFIT = {
    "no anchor": ("a: *b", "line 1: found undefined alias 'b'"),
    "a list in itself": ("a: &a [*a]", "line 1: an alias must not be inside its own anchor"),
    "a mapping in itself": ("a:\n  &a {b: {c: *a}}", "line 2: an alias must not be inside its own anchor"),
    "merged with itself": ("a: &a {<<: *a}", "line 1: an alias must not be inside its own anchor"),
    "lists of lists": (LISTS, f"all aliases must expand to at most {ALIASED_MAX} values"),
    "merged and merged": (MERGED, f"all aliases must expand to at most {ALIASED_MAX} values"),
    "merged with a number": ("a: {<<: 5}", "expected a mapping"),
    "two merge keys": ("a: {<<: {b: 1}, <<: {c: 1}}", "'<<' is set twice"),
    "twice, as text and plain": ("a: 1\nb: 2\n'a': 3", "line 3: 'a' is set twice"),
    "a list for a key": ("{? [a]: b}", "line 1: while constructing a mapping: found unhashable key"),
    "digits": ("a: 0x" + "f" * 101, "must have at most 100 digits"),
}


@pytest.mark.parametrize(("text", "message"), UNFIT.values(), ids=UNFIT)
def test_invalid_and_excessive_yaml_is_reported_with_its_line(text: str, message: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse(text)
    assert message in str(caught.value)


def test_aliases_of_little_are_no_matter_of_length() -> None:
    text = "a: &a 1\n" + "".join(f"b{n}: [1, 2]\n" for n in range(4 * ALIASED_MAX // 10)) + "c: *a\n"
    assert parse(text)["c"] == 1


def test_anchors_and_merge_keys_are_taken(tmp_path: Path) -> None:
    text = """
agents:
  - &first
    id: a
    isolation: local
    budgets: &deep {<<: &wide {timeout: 7, grace: 3}, grace: 2}
    rules: {blocked_commands: &blocked [curl]}
  - {<<: *first, id: b, budgets: {<<: [*wide, *deep], timeout: 5}}
  - {id: c, isolation: local, rules: {blocked_commands: *blocked}}
"""
    actual = read(tmp_path, text)
    assert [(each.budgets.timeout, each.budgets.grace) for each in actual.values()] == [(7, 2), (5, 3), (60, 1)]
    assert [each.rules.blocked_commands[0].pattern for each in actual.values()] == ["curl"] * 3
    massgen = "agents:\n  - {id: a, backend: &x {cwd: w, enable_mcp_command_line: true}}\n  - {backend: {<<: *x, cwd: v}}\n"
    assert [str(each.work_dir) for each in read(tmp_path, massgen).values()] == ["w", "v"]


def test_nested_merges_set_each_key_once(tmp_path: Path) -> None:
    text = "code_execution_config: {docker_run_args: [], timeout: 3}\nbudgets: {<<: &a {grace: 2}, <<: {grace: 3}}\n"
    with pytest.raises(InvalidConfig, match="'<<' is set twice"):
        read(tmp_path, text)
    text = "environment: {set: {<<: {<<: {A: x, B: x, C: x}, A: y, B: y}, B: z}}\nisolation: local\n"
    assert read(tmp_path, text)["default"].environment.set == {"A": "y", "B": "z", "C": "x"}


@pytest.mark.parametrize("message", ["1:30", "010", "-010", "08", "1_000", "0b11", "1:30.5", "0x_f", "1_0.5"])
def test_a_number_to_some_readers_only_is_text(tmp_path: Path, message: str) -> None:
    for value in (message, f"'{message}'"):
        with pytest.raises(InvalidConfig, match=r"agents\.yaml: .*budgets\.timeout: .*valid number"):
            read(tmp_path, f"isolation: local\nbudgets: {{timeout: {value}}}\n")
        assert read(tmp_path, f"environment: {{set: {{X: {value}}}}}\n")["default"].environment.set["X"] == message


@pytest.mark.parametrize(("word", "meant"), [("yes", True), ("ON", True), ("No", False), ("off", False)])
def test_a_word_is_a_boolean_and_no_text(tmp_path: Path, word: str, meant: bool) -> None:  # noqa: FBT001
    assert read(tmp_path, f"notebook: {word}\n")["default"].notebook is meant
    for line in (
        f"rules: {{allowed_commands: [ls, {word}]}}",
        f"confinement: {{level: {word}}}",
        f"environment: {{set: {{A: {word}}}}}",
    ):
        with pytest.raises(InvalidConfig, match=r"allowed_commands|level|environment"):
            read(tmp_path, line + "\n")
    actual = read(tmp_path, f"confinement: {{level: 'off'}}\nenvironment: {{set: {{A: '{word}'}}}}\n")["default"]
    assert (actual.confinement.level, dict(actual.environment.set)) == ("off", {"A": word})


def test_plain_scalars_are_read_as_in_other_readers(tmp_path: Path) -> None:
    for message, number in (("1e3", 1000), ("0x1F", 31), ("0o10", 8), (".5", 0.5), ("+7", 7), ("2.", 2), ("0.25", 0.25)):
        assert read(tmp_path, f"isolation: local\nbudgets: {{timeout: {message}}}\n")["default"].budgets.timeout == number
    texts = "{A: 2020-01-01, B: 1.2.3, C: 10.0.0.1, D: y, E: '=', F: 8080:80, G: =}"
    actual = read(tmp_path, f"container: {{user: 0:0}}\nenvironment: {{set: {texts}}}\n")["default"]
    assert list(actual.environment.set.values()) == ["2020-01-01", "1.2.3", "10.0.0.1", "y", "=", "8080:80", "="]
    assert actual.container.user == "0:0"


def test_words_are_booleans_in_massgens_form(tmp_path: Path) -> None:
    for word, meant in {"yes": True, "on": True, "No": False, "off": False}.items():
        text = f"agents: [{{id: a, backend: {{enable_mcp_command_line: {word}}}}}]\nui: {{logging_enabled: {word}}}\n"
        assert read(tmp_path, text)["a"].enabled is meant
