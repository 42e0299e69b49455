"""The names of a user's variables, as they are looked for after each cell."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kernelexec.launcher.features.variables import UserNames


class Text(str):
    __slots__ = ()


def test_each_look_finds_what_is_there_now() -> None:
    names, hidden = UserNames(), {"In": 1, "exit": 1}
    namespace: dict[Any, Any] = {"a": 1, "_b": 1, "In": [], "x" * 101: 1, 1: 1, Text("c"): 1}
    assert names(namespace, hidden) == {"a"}
    namespace |= {f"_i{number}": "" for number in range(1000)} | {"d": 1}
    assert names(namespace, hidden) == {"a", "d"}
    del namespace["a"], namespace["_b"]
    namespace |= {"_b": 1, "e": 1}
    assert names(namespace, hidden) == {"d", "e"}
    namespace.pop("d")
    namespace["d"] = 2
    assert names(namespace, hidden) == {"d", "e"}
    namespace.pop("d")
    namespace["f"] = 1
    assert names(namespace, hidden) == {"e", "f"}
    namespace |= {f"g{number}": 1 for number in range(100)}
    assert len(names(namespace, hidden)) == 102
    namespace["exit"] = 1
    assert "exit" not in names(namespace, hidden)
    kept = dict(namespace)
    namespace.clear()
    assert names(namespace, hidden) == set()
    namespace |= {"d": 1, "e": 1}
    assert names(namespace, hidden) == {"d", "e"}
    assert names(kept, hidden) == {"e", "f"} | {f"g{number}" for number in range(100)}
    assert names(namespace, hidden) == {"d", "e"}
    hidden.pop("exit")
    namespace["exit"] = 1
    assert names(namespace, hidden) == {"d", "e", "exit"}


def test_names_that_are_known_are_not_looked_at_again() -> None:
    class Namespace(dict[Any, Any]):
        def __iter__(self) -> Any:
            looks.append(len(self))
            return super().__iter__()

    looks: list[int] = []
    names, namespace = UserNames(), Namespace({"a": 1})
    hidden: dict[str, Any] = {"b0": 1}
    for cell in range(100):
        namespace |= (inputs := {f"_i{cell}": ""}) | {f"b{cell}": 1, f"_{cell}": ""}
        hidden |= inputs
        assert names(namespace, hidden) == {"a"} | {f"b{number}" for number in range(1, cell + 1)}
    assert len(looks) == 1
    del namespace["b7"]
    assert "b7" not in names(namespace, hidden)
    assert len(looks) == 2
    namespace["b7"] = 1
    assert "b7" in names(namespace, hidden)
    assert len(looks) == 2


def test_names_are_found_where_keys_are_taken_out_and_put_back() -> None:
    names = UserNames()
    hidden: dict[str, Any] = {"_i1": ""}
    namespace: dict[Any, Any] = {"_i1": "", "old_a": 1, "old_b": 1}
    assert names(namespace, hidden) == {"old_a", "old_b"}
    namespace |= (inputs := {"_i2": ""})
    hidden |= inputs
    assert names(namespace, hidden) == {"old_a", "old_b"}
    namespace.update({name.replace("old", "new"): namespace.pop(name) for name in [*namespace]})
    assert names(namespace, hidden) == {"new_a", "new_b"}


def test_a_name_like_that_of_an_input_may_be_the_users() -> None:
    names = UserNames()
    namespace: dict[Any, Any] = {"a": 1, "c": 1, "_i0": 0}
    assert names(namespace, {}) == {"a", "c"}
    del namespace["a"], namespace["c"], namespace["_i0"]
    namespace |= {"b": 1, "_i0": 0}
    assert names(namespace, {}) == {"b"}


@pytest.mark.parametrize("seed", range(300))
def test_names_changed_between_two_looks_are_found(seed: int) -> None:
    chance, names = random.Random(seed), UserNames()  # noqa: S311 - the same every time
    namespace: dict[Any, Any] = {}
    hidden: dict[str, Any] = {}
    for cell in range(20):
        hidden |= (inputs := {f"_i{cell}": "", f"_{cell}": ""})
        namespace |= inputs
        if chance.random() < 0.1:
            namespace.update({key: namespace.pop(key) for key in chance.sample([*namespace], k=len(namespace) // 2)})
        for _ in range(chance.randrange(5)):
            name = chance.choice("abcdef")
            if chance.random() < 0.5:
                namespace.pop(name, None)
            else:
                namespace[name] = 1
        assert names(namespace, hidden) == {name for name in namespace if name[0] != "_"}
