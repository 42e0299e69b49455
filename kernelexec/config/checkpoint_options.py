"""Options of checkpoints: stopped copies of a kernel, from which its session can go on."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field

from kernelexec.config.types import MIB, Count, FrozenModel, Size

CheckpointMode = Literal["auto", "each", "named", "off"]


class CheckpointOptions(FrozenModel):
    """Options of checkpoints. ``Config(checkpoints="off")`` sets the mode alone.

    A checkpoint is a fork of the kernel's process that waits: the memory of both is shared until one of them writes to it.
    """

    mode: CheckpointMode = "auto"
    """When one is made: ``auto``, by ``session.checkpoint``, and after each cell that may have changed anything, as long as all
    together take at most 5 % of the time that passes; ``each``, after each cell; ``named``, by ``session.checkpoint`` only;
    ``off``, never."""
    limit: Count = Field(default=10, ge=1, le=1000)
    """The number of checkpoints that a session keeps. Those that were made after cells are dropped first, except for the newest
    one, which counts no more if the others are by request; then the oldest."""
    memory_bytes: Size = Field(default=1024 * MIB, ge=MIB)
    """The memory that they may take together: pages that a checkpoint shares with no other process. They are dropped
    in the same order but for the newest, when the next one is made."""
    files_bytes: Size = Field(default=1024 * MIB, ge=0)
    """The most bytes of the workspace that are copied for a branch; files beyond that are named, and not copied."""


def _expand_shorthand(value: object) -> object:
    """Turn the name of a mode into options."""
    return {"mode": value} if value in get_args(CheckpointMode) else value


CheckpointChoice = Annotated[
    CheckpointOptions, BeforeValidator(_expand_shorthand, json_schema_input_type=CheckpointMode | CheckpointOptions)
]
