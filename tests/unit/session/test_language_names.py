"""Names of languages as models and notebooks write them."""

from __future__ import annotations

import pytest

from kernelexec.session.kernels.languages import normalize_language

NAMES = {
    **dict.fromkeys(("python", "Python3", " Python 3 ", "python-3", "py", "py3"), "python"),
    **dict.fromkeys(("ipython", "IPython 3", "Python (ipykernel)", "Python 3 (ipykernel)", "ipykernel", "Jupyter"), "python"),
    **dict.fromkeys(("js", "node", "NodeJS", "javascript"), "javascript"),
    **dict.fromkeys(("sh", "shell", "bash"), "bash"),
    "ts": "typescript",
    **{name: name for name in ("python2", "python3.11", "python 2.7", "pypy", "pyspark", "py3k", "cpython", "r", "")},
}


@pytest.mark.parametrize(("name", "language"), NAMES.items())
def test_names_of_a_language_mean_its_kernel(name: str, language: str) -> None:
    assert normalize_language(name) == language
