"""Worker processes that get a configuration from their parent, and send results back."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from kernelexec import Config, ExecutionFailed, ExecutionResult, Executor
from tests.support.night import at_night

CODE = "from PIL.Image import new\nprint('out')\ndisplay(new('RGB', (2, 2)))\n{'a': VALUE}"


def run_code(config: Config, code: str) -> ExecutionResult:
    with Executor(config=config) as executor:
        return executor.session("a").execute(code).raise_for_error()


@pytest.mark.parametrize("method", ["spawn", *at_night("fork")])
def test_a_configuration_goes_to_workers_and_results_come_back(tmp_path: Path, method: str) -> None:
    config = Config.model_validate(
        {"isolation": "local", "workspace": tmp_path, "environment": {"set": {"MODE": "worker"}}, "quiet": True, "preload": ()}
    )
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
        result = pool.submit(run_code, config, CODE.replace("VALUE", "__import__('os').environ['MODE']")).result()
        failure = pool.submit(run_code, config, "x = 1\n1 / 0").exception()
    assert (result.value, result.stdout, len(result.images), result.state) == ({"a": "worker"}, "out\n", 1, "kept")
    assert isinstance(failure, ExecutionFailed)
    assert failure.result.error is not None
    assert failure.result.error.ename == "ZeroDivisionError"
