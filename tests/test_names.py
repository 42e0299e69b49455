"""The names of a user's variables, as they are looked for after each cell."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kernelexec.inkernel.names import Names


class Text(str):
    __slots__ = ()


def test_each_look_finds_what_is_there_now() -> None:
    names, hidden = Names(), {"In": 1, "exit": 1}
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
    names, namespace = Names(), Namespace({"a": 1})
    for cell in range(100):
        namespace |= {f"_i{cell}": "", f"b{cell}": 1, f"_{cell}": ""}
        assert names(namespace, {"b0": 1}) == {"a"} | {f"b{number}" for number in range(1, cell + 1)}
    assert len(looks) == 1
    del namespace["b7"]
    assert "b7" not in names(namespace, {})
    assert len(looks) == 2
    namespace["b7"] = 1
    assert "b7" in names(namespace, {})
    del namespace["_i99"], namespace["a"]
    namespace |= {"c": 1, "_i" + str(99): ""}
    assert names(namespace, {}) == {"c"} | {f"b{number}" for number in range(100)}


@pytest.mark.parametrize("seed", range(300))
def test_what_comes_and_goes_between_two_looks_is_found(seed: int) -> None:
    chance, names = random.Random(seed), Names()  # noqa: S311 - the same every time
    namespace: dict[Any, Any] = {}
    for cell in range(20):
        namespace |= {f"_i{cell}": "", f"_{cell}": ""}
        for _ in range(chance.randrange(5)):
            name = chance.choice("abcdef")
            if chance.random() < 0.5:
                namespace.pop(name, None)
            else:
                namespace[name] = 1
        assert names(namespace, {}) == {name for name in namespace if name[0] != "_"}
