"""Changes of limits that some kernels cannot have: the others keep the old limits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernelexec import Config
from kernelexec.errors import EngineFailed, LimitRefused
from kernelexec.session.kernels.languages import LanguageKernels
from kernelexec.session.kernels.supervisor import KernelSupervisor


def test_a_refused_change_is_taken_back_from_all_kernels_although_one_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    changed = SimpleNamespace(memory_bytes=2, cpus=2.0)
    backend: Any = SimpleNamespace(cwd="/", isolation="container", memory_bytes=1, cpus=1.0, with_limits=lambda _: changed)
    scope: Any = None
    kernels = LanguageKernels(Config(), "s", tmp_path, backend, scope, lambda _: None)
    answering, refusing = (kernels._make_supervisor(runtime=tmp_path) for _ in range(2))
    kernels._supervisors |= {"answering": answering, "refusing": refusing}
    limits: dict[KernelSupervisor, object] = {}

    async def apply(supervisor: KernelSupervisor, backend: object, *_: object) -> None:
        if supervisor is refusing:
            raise LimitRefused("refused")
        if supervisor is kernels.python and backend is not changed:
            raise EngineFailed("no answer")
        limits[supervisor] = backend

    monkeypatch.setattr(KernelSupervisor, "apply_limits", apply)
    with pytest.raises(LimitRefused, match="refused"):
        asyncio.run(kernels.apply_limits(Config(), 2, 2.0))
    assert limits[answering] is kernels.backend is backend
    assert [record.message for record in caplog.records] == ["kernelexec.limits_not_reset"]
