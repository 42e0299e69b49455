"""Profiles: memory, processor time and seconds by one name; what is set by itself goes over them."""

from __future__ import annotations

from typing import Any

import pytest

from kernelexec import Config, Profile
from kernelexec.config import MIB, Budgets, Container, load
from kernelexec.config.loading import find_profile
from kernelexec.errors import InvalidConfig

FIGURES = {
    "simple": (256 * MIB, 0.5, 30.0),
    "medium": (512 * MIB, 1.0, 120.0),
    "complex": (1024 * MIB, 2.0, 600.0),
    "default": (1024 * MIB, 1.0, 300.0),
}
HUGE: dict[str, Any] = {"memory_bytes": 4096 * MIB, "cpus": 4, "timeout": 900}
OVER: dict[str, tuple[Any, tuple[int | None, float | None, float]]] = {
    "memory": ({"container": {"memory_bytes": 100 * MIB}}, (100 * MIB, 0.5, 30.0)),
    "no memory limit": ({"container": {"memory_bytes": None}}, (None, 0.5, 30.0)),
    "processors": ({"container": {"cpus": 3}}, (256 * MIB, 3.0, 30.0)),
    "the timeout": ({"budgets": {"timeout": 5}}, (256 * MIB, 0.5, 5.0)),
    "the default's own figures": ({"container": {"cpus": 1.0}, "budgets": {"timeout": 60}}, (256 * MIB, 1.0, 60.0)),
    "objects": ({"container": Container(cpus=2.0), "budgets": Budgets(timeout=7.0)}, (256 * MIB, 2.0, 7.0)),
    "other options": ({"container": {"pids": 99}, "budgets": {"grace": 3}}, (256 * MIB, 0.5, 30.0)),
}
UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown name": (
        {"profile": "smple"},
        "No profile 'smple' (did you mean 'simple'?): must be one of complex, default, medium",
    ),
    "a name that is none": ({"profile": 5}, "profile: "),
    "an empty name": ({"profile": ""}, "No profile ''"),
    "an unknown figure": ({"profiles": {"a": {**HUGE, "cpu": 1}}}, "profiles.a.cpu is not an option (did you mean 'cpus'?)"),
    "a figure that is not there": ({"profiles": {"a": {"cpus": 1, "timeout": 1}}}, "profiles.a.memory_bytes: Field required"),
    "no processor": ({"profiles": {"a": {**HUGE, "cpus": 0}}}, "profiles.a.cpus: "),
    "no second": ({"profiles": {"a": {**HUGE, "timeout": 0}}}, "profiles.a.timeout: "),
    "text that is no size": ({"profiles": {"a": {**HUGE, "memory_bytes": "1 gig"}}}, "a.memory_bytes: must be a size in bytes"),
    "a profile without a name": ({"profiles": {" ": HUGE}}, "a profile's name must not be empty"),
}


def figures(config: Config) -> tuple[int | None, float | None, float]:
    return config.container.memory_bytes, config.container.cpus, config.budgets.timeout


@pytest.mark.parametrize(("name", "expected"), FIGURES.items(), ids=FIGURES)
def test_a_profile_sets_memory_processors_and_timeout(name: str, expected: tuple[int, float, float]) -> None:
    config = load("local", config={"profile": name})
    assert config.profile == name
    assert figures(config) == expected
    assert find_profile(config, name) == Profile(memory_bytes=expected[0], cpus=expected[1], timeout=expected[2])


def test_without_a_profile_the_defaults_stay() -> None:
    assert load("local").profile is None
    assert figures(load("local")) == figures(Config())


@pytest.mark.parametrize(("options", "expected"), OVER.values(), ids=OVER)
def test_explicit_settings_override_the_profile(options: Any, expected: tuple[int, float, float]) -> None:
    assert figures(load("local", config={"profile": "simple", **options})) == expected
    assert figures(load(config=Config(isolation="local", profile="simple", **options))) == expected


@pytest.mark.parametrize("options", [{"container": None}, {"container": 5}, {"budgets": None}, {"budgets": "x"}])
def test_a_branch_that_is_none_is_named_beside_a_profile_too(options: dict[str, Any]) -> None:
    [branch] = options
    with pytest.raises(InvalidConfig, match=rf"^Configuration: {branch}: "):
        load("local", config={"profile": "simple", **options})


def test_other_options_stay_beside_a_profile() -> None:
    config = load("local", config={"profile": "simple", "container": {"pids": 99}, "budgets": {"grace": 3}})
    assert (config.container.pids, config.budgets.grace) == (99, 3.0)


def test_profiles_of_ones_own_stand_beside_ours_or_in_their_place() -> None:
    config = load("local", config={"profiles": {"huge": HUGE, "simple": Profile(**HUGE)}, "profile": "huge"})
    assert sorted(config.profiles) == ["complex", "default", "huge", "medium", "simple"]
    assert figures(config) == (4096 * MIB, 4.0, 900.0)
    assert find_profile(config, "simple") == find_profile(config, "huge")


def test_settings_with_a_profile_say_the_same_when_they_are_loaded_again() -> None:
    config = load("local", config={"profiles": {"huge": HUGE}, "profile": "huge"})
    assert load(config=config) == config
    assert Config.model_validate_json(config.model_dump_json()) == config


def test_profiles_do_not_change() -> None:
    config: Any = load("local")
    with pytest.raises(TypeError):
        config.profiles["simple"] = None


@pytest.mark.parametrize(("options", "message"), UNFIT.values(), ids=UNFIT)
def test_a_profile_that_is_unknown_or_unfit_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        load("local", config=options)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["Simple", None, 5, []])
def test_a_profile_is_found_by_its_name_only(name: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"^No profile .*: must be one of complex, default, medium, simple\.$"):
        find_profile(load("local"), name)
