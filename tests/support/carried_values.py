"""Values through their file format, as from one side to the other."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

from kernelexec.launcher.values import ALIGNMENT, MAGIC, EncodedValues, ValueDecoder, ValueRefused

#: The bytes that the values of a test may take.
LIMIT = 10**8


def content(values: dict[str, Any]) -> bytearray:
    """The file of some values."""
    return bytearray(b"".join(EncodedValues(values, LIMIT).pieces()))


def file_of(document: object, buffers: bytes = b"") -> memoryview:
    """The file with any tree, or the JSON text of one, and what stands in the place of its buffers."""
    tree = (document if isinstance(document, str) else json.dumps(document)).encode()
    head = MAGIC + struct.pack("<Q", len(tree)) + tree
    return memoryview(bytearray(head + bytes(-len(head) % ALIGNMENT) + buffers))


def carried(value: Any) -> Any:
    """The value as the other side has it."""
    return ValueDecoder(memoryview(content({"x": value})), LIMIT).decode()["x"]


def outcomes_of_changed_bytes(original: bytearray) -> set[str]:
    """What a reader makes of 3,000 files in which one to four bytes are others: ``a value``, or ``refused``."""
    chosen = random.Random(5)  # noqa: S311 - a test that can be repeated
    outcomes = set()
    for _ in range(3000):
        changed = bytearray(original)
        for _ in range(chosen.randint(1, 4)):
            changed[chosen.randrange(len(changed))] = chosen.randrange(256)
        try:
            ValueDecoder(memoryview(changed), LIMIT).decode()
            outcomes.add("a value")
        except ValueRefused:
            outcomes.add("refused")
    return outcomes
