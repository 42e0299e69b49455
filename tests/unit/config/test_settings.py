"""Settings: every option is known and fits; nothing changes afterwards."""

from __future__ import annotations

import copy
import math
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kernelexec.config import Budgets, Config, OutputLimits, check_seconds, load
from kernelexec.errors import InvalidConfig, InvalidTimeout

UNKNOWN: dict[str, tuple[dict[str, Any], str]] = {
    "at the top": ({"worksapce": "a"}, "worksapce is not an option (did you mean 'workspace'?)"),
    "in budgets": ({"budgets": {"tiemout": 1}}, "budgets.tiemout is not an option (did you mean 'timeout'?)"),
    "in output": ({"output": {"stream_byte": 9}}, "output.stream_byte is not an option (did you mean 'stream_bytes'?)"),
    "in limits": ({"limits": {"nofiles": 99}}, "limits.nofiles is not an option (did you mean 'nofile'?)"),
    "in environment": (
        {"environment": {"pass_name": ()}},
        "environment.pass_name is not an option (did you mean 'pass_names'?)",
    ),
    "in capacity": ({"capacity": {"session": 1}}, "capacity.session is not an option (did you mean 'sessions'?)"),
    "in the container": ({"container": {"cpu": 1}}, "container.cpu is not an option (did you mean 'cpus'?)"),
    "in a mount": (
        {"container": {"mounts": [{"sorce": "/a"}]}},
        "container.mounts.0.sorce is not an option (did you mean 'source'?)",
    ),
    "like nothing": ({"zzz": 1}, "zzz is not an option."),
    "like nothing inside": ({"budgets": {"zzz": {"y": 1}}}, "budgets.zzz is not an option."),
    "two at once": (
        {"pyhton": "p", "budgets": {"gracee": 1}},
        "budgets.gracee is not an option (did you mean 'grace'?); pyhton is no",
    ),
    "of another branch": ({"grace": 1}, "grace is not an option"),
}
UNFIT: dict[str, tuple[dict[Any, Any], str]] = {
    "zero seconds": ({"budgets": {"timeout": 0}}, "budgets.timeout: "),
    "negative seconds": ({"budgets": {"grace": -1}}, "(given: -1)"),
    "seconds that are no number": ({"budgets": {"start": "soon"}}, "(given: 'soon')"),
    "seconds that are nan": ({"budgets": {"approval": math.nan}}, "budgets.approval: "),
    "an endless grace": ({"budgets": {"grace": math.inf}}, "budgets.grace: "),
    "a negative size": ({"output": {"display_bytes": -1}}, "output.display_bytes: "),
    "a size too small": ({"output": {"stream_bytes": 1}}, "output.stream_bytes: "),
    "seconds that are true": ({"budgets": {"timeout": True}}, "budgets.timeout: "),
    "seconds that are text": ({"budgets": {"timeout": "5"}}, "budgets.timeout: "),
    "a size that is true": ({"output": {"stream_bytes": True}}, "output.stream_bytes: "),
    "a size that is other text": ({"output": {"stream_bytes": "much"}}, "output.stream_bytes: must be a size in bytes"),
    "a limit that is true": ({"limits": {"nofile": True}}, "limits.nofile: "),
    "half a byte": ({"output": {"stream_bytes": 2.5}}, "output.stream_bytes: "),
    "a limit too small": ({"limits": {"nofile": 1}}, "limits.nofile: "),
    "no session at all": ({"capacity": {"sessions": 0}}, "capacity.sessions: "),
    "a queue below none": ({"capacity": {"queue": -1}}, "capacity.queue: "),
    "a branch that is a number": ({"budgets": 5}, "budgets: "),
    "a switch that is no switch": ({"notebook": "maybe"}, "notebook: "),
    "a path that is none": ({"workspace": None}, "workspace: "),
    "a path that is a number": ({"workspace": 5}, "workspace: "),
    "a path that is bytes": ({"workspace": b"a"}, "workspace: "),
    "a path that is empty": ({"workspace": ""}, "workspace: must not be empty"),
    "a path with a NUL": ({"workspace": "a\0"}, "workspace: must not contain a NUL character"),
    "a path of nobody": ({"workspace": "~nobody-of-that-name/a"}, "workspace: Could not determine home directory"),
    "a path of half a character": ({"workspace": "\ud800"}, "workspace: "),
    "an interpreter that is empty": ({"python": ""}, "python: must not be empty"),
    "an interpreter that is blank": ({"python": " "}, "python: must not be empty"),
    "an interpreter with a NUL": ({"python": "a\0"}, "python: must not contain a NUL character"),
    "an interpreter that is none": ({"python": None}, "python: "),
    "names that are one name": ({"environment": {"pass_names": "HOME"}}, "environment.pass_names: "),
    "a value that is no text": ({"environment": {"set": {"A": 1}}}, "environment.set.A: "),
    "a value that no process can have": ({"environment": {"set": {"A": "b\0"}}}, "environment.set"),
    "a value of half a character": ({"environment": {"set": {"A": "\ud800"}}}, "environment.set"),
    "a name that no process can have": ({"environment": {"set": {"A=": "b"}}}, "environment.set"),
    "a key that is no text": ({1: 2}, "1: "),
    "an unknown place": (
        {"isolation": "vm"},
        "isolation='vm' is unknown: must be one of local, bubblewrap, container, container-host.",
    ),
    "a misspelt place": ({"isolation": "lcoal"}, "isolation='lcoal' is unknown (did you mean 'local'?)"),
    "a place that is no text": ({"isolation": 3}, "isolation=3"),
}


@pytest.mark.parametrize(("options", "message"), UNKNOWN.values(), ids=UNKNOWN)
def test_an_unknown_option_is_named_with_the_nearest(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        load("local", config=options)
    assert str(caught.value).startswith("Configuration: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(("options", "message"), UNFIT.values(), ids=UNFIT)
def test_an_unfit_value_is_named_with_its_place(options: dict[Any, Any], message: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        load(config={"isolation": "local", **options})
    assert message in str(caught.value)


def test_errors_of_the_whole_configuration_name_no_section() -> None:
    with pytest.raises(InvalidConfig, match=r"^Configuration: programs\.prefix_kernel=True: "):
        load("local", config={"programs": {"prefix_kernel": True}})


@pytest.mark.parametrize("config", [5, 0, "", "abc", [], [("notebook", False)], Config, True])
def test_settings_that_are_no_mapping_are_refused(config: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"^config=.*: must be a Config or a mapping of its options, not \w+\.$"):
        load("local", config=config)


def test_a_message_holds_no_variable_and_only_so_much_of_a_value() -> None:
    with pytest.raises(InvalidConfig) as caught:
        load("local", config={"environment": {"set": {"A": "b\0", "TOKEN": "s3cret"}}, "budgets": "x" * 10**6})
    assert "s3cret" not in str(caught.value)
    assert "environment.set: 'A' must be a valid environment variable" in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_the_defaults_are_those_of_the_classes() -> None:
    assert load("local") == Config(isolation="local")
    assert load("local").python == sys.executable
    assert load("local").workspace == Path("workspaces")


def test_a_mapping_reaches_every_branch_and_leaves_the_rest() -> None:
    settings = {
        "budgets": {"timeout": 5},
        "output": {"stream_bytes": 10},
        "limits": {"nofile": None},
        "environment": {"pass_names": ["A"], "set": {"B": "c"}},
        "capacity": {"queue": 0},
        "notebook": False,
    }
    config = load("local", config=settings)
    assert config.budgets == Budgets(timeout=5.0)
    assert config.output == OutputLimits(stream_bytes=10)
    assert config.limits.nofile is None
    assert (config.environment.pass_names, config.environment.set) == (("A",), {"B": "c"})
    assert (config.capacity.queue, config.capacity.sessions) == (0, 256)
    assert (config.notebook, config.save_displays) == (False, True)


def test_an_object_gives_the_same_settings_as_its_mapping() -> None:
    config = Config(isolation="local", budgets=Budgets(timeout=3), save_displays=False)
    assert load(config=config) == config
    assert load("local", config={"budgets": {"timeout": 3}, "save_displays": False}) == config


def test_branches_may_be_objects_within_a_mapping() -> None:
    assert load("local", config={"budgets": Budgets(grace=2.0)}).budgets.grace == 2.0


@pytest.mark.parametrize("config", [{"workspace": "b"}, Config(workspace=Path("b"))])
def test_the_argument_goes_over_the_configured_workspace(config: Any) -> None:
    assert load("local", config=config).workspace == Path("b")
    assert load("local", workspace="a", config=config).workspace == Path("a")
    assert load("local", workspace=Path("a"), config=config).workspace == Path("a")


def test_passed_settings_stay_unchanged() -> None:
    settings: dict[str, Any] = {"budgets": {"timeout": 1}, "environment": {"set": {"A": "1"}}}
    config = load("local", workspace="w", config=settings)
    assert settings == {"budgets": {"timeout": 1}, "environment": {"set": {"A": "1"}}}
    settings["environment"]["set"]["A"] = "2"
    assert config.environment.set == {"A": "1"}


@pytest.mark.parametrize("branch", ["", "budgets", "output", "limits", "environment", "capacity"])
def test_settings_do_not_change(branch: str) -> None:
    config = load("local")
    target: Any = getattr(config, branch) if branch else config
    for name in type(target).model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(target, name, getattr(target, name))


def test_the_variables_that_are_set_do_not_change() -> None:
    config: Any = load("local", config={"environment": {"set": {"A": "1"}}})
    with pytest.raises(TypeError):
        config.environment.set["A"] = "2"


def test_a_deep_copy_of_an_object_with_settings_has_equal_settings() -> None:
    config = load("container", config={"environment": {"set": {"A": "1"}}, "container": {"tmpfs": {"/cache": "2m"}}})
    for duplicate in (copy.deepcopy({"agent": config})["agent"], copy.deepcopy(config)):
        assert duplicate == config
        assert duplicate is not config


def test_late_limits_differ_in_streams_displays_and_records_only() -> None:
    late = OutputLimits().late
    assert (late.stream_bytes, late.display_bytes, late.record_bytes) == (65_536, 65_536, 0)


@pytest.mark.parametrize(("value", "taken"), [(0.001, 0.001), (1, 1.0), (2.5, 2.5), (10**6, 1e6), (math.inf, 1e9)])
def test_seconds_takes_numbers(value: object, taken: float) -> None:
    checked = check_seconds(value, "timeout")
    assert (type(checked), checked) == (float, taken)


@pytest.mark.parametrize(
    "value",
    [0, 0.0009, -1, math.nan, -math.inf, True, False, None, "5", b"5", [1], 1j, pytest.param(10**400, id="10**400")],
)
def test_seconds_refuses_all_else_by_name(value: object) -> None:
    with pytest.raises(InvalidTimeout, match=r"^wait=.*: must be a number of seconds >= 0\.001"):
        check_seconds(value, "wait")


SIZES = {"512m": 512 * 2**20, "1.5g": 3 * 2**29, "64 MiB": 64 * 2**20, "1073741824": 2**30, "2GB": 2**31}


@pytest.mark.parametrize(("text", "size"), SIZES.items())
def test_sizes_may_be_text_in_every_branch(text: str, size: int) -> None:
    options: dict[str, Any] = {
        "container": {"memory_bytes": text, "tmpfs": {"/tmp": text, "/scratch": text}},
        "output": {"stream_bytes": text},
        "profiles": {"own": {"memory_bytes": text, "cpus": 1.0, "timeout": 9.0}},
        "capacity": {"value_bytes": text},
    }
    config = load("local", config=options)
    assert {config.container.memory_bytes, *config.container.tmpfs.values()} == {size}
    assert {config.output.stream_bytes, config.profiles["own"].memory_bytes, config.capacity.value_bytes} == {size}


@pytest.mark.parametrize("text", ["", "1 gig", "-1m", "m", "1e9", "½g", True, 1.5])
def test_other_text_is_no_size(text: object) -> None:
    with pytest.raises(InvalidConfig, match=r"container\.memory_bytes: "):
        load("local", config={"container": {"memory_bytes": text}})


@pytest.mark.parametrize(
    "call",
    [
        lambda: Config(capacty=1),  # type: ignore[call-arg]  # a wrong one
        lambda: load("local", config={"capacty": 1}),
    ],
    ids=["model", "load"],
)
def test_an_invalid_option_is_one_error_without_that_of_another_library(call: Callable[[], object]) -> None:
    with pytest.raises(InvalidConfig, match=r"^Config\w*: capacty is not an option \(did you mean 'capacity'\?\)\.$") as caught:
        call()
    text = "".join(traceback.format_exception(caught.value))
    assert "pydantic" not in text.rpartition("Traceback")[2].splitlines()[-1]
    assert "errors.pydantic.dev" not in text
    assert text.count("Traceback") == 1
