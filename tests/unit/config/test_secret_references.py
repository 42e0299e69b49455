"""A configuration holds references to secrets, and shows neither a value nor what was given in the place of a reference."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from kernelexec import InvalidConfig
from kernelexec.config import Config, load

VALUE = "sk-live-0f9a8b7c6d"


def given(secrets: Any, **more: Any) -> Config:
    return load("local", config={"secrets": secrets, **more})


def test_a_configuration_is_shown_without_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KX_VALUE", VALUE)
    function = functools.partial(str, VALUE)
    config = given({"A": {"env": "KX_VALUE"}, "B": {"file": "/run/secrets/b"}, "C": function})
    for shown in (repr(config), str(config), repr(config.model_dump()), config.model_dump_json(exclude={"log_dir"})):
        assert VALUE not in shown
        assert "KX_VALUE" in shown
    assert config.model_dump(mode="json")["secrets"] == {
        "A": {"env": "KX_VALUE"},
        "B": {"file": "/run/secrets/b"},
        "C": {"function": "..."},
    }
    again = load(config=config).secrets
    assert [str(reference) for reference in again.values()] == [
        "the environment variable KX_VALUE",
        "the file /run/secrets/b",
        "its function",
    ]
    assert again["C"].call is function


async def later() -> str:
    return VALUE


@pytest.mark.parametrize(
    "secrets",
    [
        {"A": VALUE},
        {"A": {"value": VALUE}},
        {"A": {"env": VALUE}},
        {"A": {"env": "X", "file": VALUE}},
        {"A": {"env": ""}},
        {"A": {"file": ""}},
        {"A": {"file": 5}},
        {"A": [VALUE]},
        {"A": VALUE.encode()},
        {"A": None},
        {"A": later},
        {"A": str},
        {VALUE: {"env": "X"}},
        {"1A": {"env": "X"}},
        {"": {"env": "X"}},
        {"KERNELEXEC_LAUNCH": {"env": "X"}},
        VALUE,
        [VALUE],
    ],
)
def test_secrets_other_than_references_are_refused_and_not_shown(secrets: Any) -> None:
    with pytest.raises(InvalidConfig, match="secrets") as refused:
        given(secrets)
    assert VALUE not in str(refused.value)
    assert VALUE not in str(refused.value.__cause__)
    with pytest.raises(InvalidConfig) as invalid:
        Config(secrets=secrets)
    assert VALUE not in str(invalid.value)


@pytest.mark.parametrize(
    "more",
    [
        {"environment": {"set": {"A": "plain"}}},
        {"environment": {"pass_names": ["A"]}},
        {"environment": {"pass_names": ["KX_VALUE"]}},
    ],
)
def test_a_variable_is_a_secret_or_set_not_both(more: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=r"(A|KX_VALUE) must not be both a secret and a variable"):
        given({"A": {"env": "KX_VALUE"}}, **more)


def test_the_mapping_does_not_change() -> None:
    config: Any = given({"A": {"file": Path("/run/secrets/a")}})
    with pytest.raises(TypeError):
        config.secrets["B"] = {"env": "X"}
