"""How often the items of a set or the keys of a dictionary collide in CPython's hash tables, counted before one is built.

The hashes of numbers, and of tuples of them, are no secret: a hostile kernel can choose numbers of which each walks along the
slots of all others. Such a table takes quadratic time in one call of C, in which no other thread runs. Here the slots are
filled in the order and by the rule of CPython 3.11 to 3.14, in steps of Python that are counted and bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from itertools import groupby, islice
from operator import eq
from typing import Any

#: Collisions for each item in all sizes of its table. Multiples of high powers of two have up to 32, for the bits by which they
#: differ count after some steps only.
_COLLISIONS_PER_ITEM = 64
#: Items of one hash, and items that equal others. So few items of any hashes are not worth a count.
_FEW = 100
#: Classes whose hashes depend on a secret of the process.
_SECRET = frozenset((str, bytes, date))
#: The smallest table that is worth a count; the items of smaller ones take no time whatever their hashes.
_SMALLEST = 512
#: Of CPython: the bits that each step drops, and the neighbours of a slot that a set looks at in each step.
_SHIFT, _NEIGHBOURS = 5, 9


def has_long_chains(keys: Sequence[Any], *, of_set: bool = False) -> bool:
    """Return whether ``dict.fromkeys(keys)`` takes much longer than a dictionary of so many keys should.

    With ``of_set``, also whether the set of that dictionary does: it has its final size at once, unlike the set of a list.
    """
    if len(keys) <= _FEW or _SECRET.issuperset(map(type, keys)):
        return False
    hashes = list(map(hash, keys))
    ordered = sorted(hashes)
    if any(map(eq, ordered, islice(ordered, 1, None))) and not _has_few_repeats(keys, hashes):
        return True
    return not (_fits_dict(hashes) and (not of_set or _fits_set(hashes)))


def _has_few_repeats(keys: Sequence[Any], hashes: list[int]) -> bool:
    """Return whether no hash is that of many keys, and whether few keys equal others."""
    repeats = 0
    for _, numbers in groupby(sorted(range(len(keys)), key=hashes.__getitem__), key=hashes.__getitem__):
        group = list(numbers)
        if len(group) > _FEW:
            return False
        distinct: list[Any] = []
        for number in group if len(group) > 1 else ():
            if keys[number] in distinct:
                repeats += 1
            else:
                distinct.append(keys[number])
    return repeats <= _FEW


def _fits_dict(hashes: list[int]) -> bool:
    """Return whether a dictionary that grows has few collisions: its size doubles whenever two thirds of it are full.

    A key that equals another fills a slot here, which can only lengthen chains, and makes room for one key more.
    """
    size, left = _SMALLEST, _COLLISIONS_PER_ITEM * len(hashes)
    while left >= 0:
        left = _fill_dict(hashes, size, left)
        if size * 2 // 3 >= len(hashes):
            break
        size *= 2
    return left >= 0


def _fill_dict(hashes: list[int], size: int, left: int) -> int:
    """Return how many collisions are left after a table of a size is filled."""
    table, mask = bytearray(size), size - 1
    for key_hash in islice(hashes, size * 2 // 3 + _FEW):
        slot = key_hash & mask
        if table[slot]:
            perturb = key_hash & (2**64 - 1)
            while table[slot]:
                perturb >>= _SHIFT
                slot = (slot * 5 + perturb + 1) & mask
                left -= 1
            if left < 0:
                break
        table[slot] = 1
    return left


def _fits_set(hashes: list[int]) -> bool:
    """Return whether the set of a dictionary has few collisions: its size is the power of two above twice their number."""
    sizes = {1 << (2 * count).bit_length() for count in (len(hashes) - _FEW, len(hashes))}
    return all(_fill_set(hashes, size) for size in sizes if size > len(hashes))


def _fill_set(hashes: list[int], size: int) -> bool:
    table, mask, left = bytearray(size), size - 1, _COLLISIONS_PER_ITEM * len(hashes)
    for key_hash in hashes:
        slot = key_hash & mask
        if table[slot]:
            perturb = key_hash & (2**64 - 1)
            while (free := table.find(0, slot, slot + (_NEIGHBOURS if slot + _NEIGHBOURS <= mask else 0) + 1)) < 0:
                perturb >>= _SHIFT
                slot = (slot * 5 + perturb + 1) & mask
                left -= 1
            slot = free
            if left < 0:
                return False
        table[slot] = 1
    return True
