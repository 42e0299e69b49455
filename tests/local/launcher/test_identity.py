"""Libraries recognise Jupyter in a kernel of ours as in one of stock ipykernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelexec import Executor
from kernelexec.launcher.output.streams import named_as_base
from tests.support.preloading import make_font_list, preloaded_session
from tests.support.stock_kernel import stock_kernel

PROBES = {
    "the shell's class": "t = type(get_ipython()); print(t, t.__name__, t.__qualname__, t.__module__)",
    "the kernel's class": "print(type(get_ipython().kernel), type(get_ipython().parent))",
    "the streams' classes": "import sys; print(type(sys.stdout), type(sys.stderr).__module__)",
    "the application's settings": "print('IPKernelApp' in get_ipython().config, *get_ipython().config['IPKernelApp'])",
    "the program": "import os, sys; print(os.path.basename(sys.argv[0]), sys.argv[1])",
    "an instance of the base": "import ipykernel.zmqshell as z; print(isinstance(get_ipython(), z.ZMQInteractiveShell))",
    "rich": "from rich.console import Console; print(Console().is_jupyter)",
    "tqdm": "import warnings; warnings.simplefilter('ignore')\nfrom tqdm.auto import tqdm; print(tqdm)",
    "click": "import click._compat as c, sys; print(c._is_jupyter_kernel_output(sys.stdout), c.should_strip_ansi(sys.stdout))",
    "pandas": "import pandas as pd; from pandas.io.formats import console\n"
    "print(console.in_ipython_frontend(), pd.get_option('display.max_columns'), pd.get_option('display.notebook_repr_html'))",
    "matplotlib": "import matplotlib.pyplot as p; print(p._REPL_DISPLAYHOOK, p.get_backend(), p._REPL_DISPLAYHOOK)",
    "formatters": "print(get_ipython().display_formatter.active_types, type(get_ipython().display_pub))",
}


#: Modules that look for the shell while they are imported.
PRELOADED = ("pandas", "matplotlib.pyplot", "rich.console", "tqdm.auto", "click")


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    with stock_kernel() as stock:
        return {name: stock.run(code) for name, code in PROBES.items()}


def test_libraries_see_what_they_see_in_a_stock_kernel(tmp_path: Path, expected: dict[str, str]) -> None:
    with Executor("local", workspace=tmp_path, config={"fork_server": False}) as executor:
        session = executor.session()
        assert {name: session.execute(code).text for name, code in PROBES.items()} == expected


def test_libraries_that_were_imported_before_the_fork_see_the_same(tmp_path: Path, expected: dict[str, str]) -> None:
    make_font_list()
    with Executor("local", workspace=tmp_path, config={"preload": PRELOADED}) as executor:
        session = preloaded_session(executor, *PRELOADED)
        assert {name: session.execute(code).text for name, code in PROBES.items()} == expected


def test_a_class_keeps_its_own_methods() -> None:
    @named_as_base
    class Small(int):
        def double(self) -> int:
            return self * 2

    assert (repr(Small), Small(2).double()) == ("<class 'int'>", 4)
