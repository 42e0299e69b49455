"""Changes to CPython, IPython and ipykernel for which they have no setting, each in a module of its own.

Each module names the checked versions, its gain, and the test in ``tests/local/launcher/test_patches.py`` that fails when the
library does the same itself. A patch for speed stays only if it gains 5 ms a start or 0.2 ms a cell.

Removed on 2026-11-25, since they gained less than 5 ms a start and 0.2 ms a cell in processor time of a forked kernel:
quicker traits and configuration of traitlets, remembered signatures of ipykernel, transformed cells kept between ipykernel and
IPython, a display formatter for plain values, fillers between small objects.
"""
