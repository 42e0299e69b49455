"""The names of a user's variables, as they are looked for after each cell."""

from __future__ import annotations

from typing import Any

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
