"""The image for data analysis has what people import first, and draws the signs of Chinese, Japanese and Korean."""

from __future__ import annotations

from pathlib import Path

from kernelexec import Executor
from tests.support.engine import IMAGE, needs_engine

pytestmark = needs_engine

IMPORTS = "import tqdm, polars, duckdb, pyarrow, plotly, statsmodels.api, ipywidgets, sqlalchemy, openpyxl"
DRAWS = """
import warnings
import matplotlib.pyplot as plt
warnings.simplefilter('error')  # one says which sign no font has
plt.title('漢字 かな 한글 é')
plt.gcf().canvas.draw()
"""


def test_the_data_science_image_has_the_tools_of_data_analysis(tmp_path: Path) -> None:
    with Executor("container", image=IMAGE, workspace=tmp_path, timeout=120) as executor:
        session = executor.session()
        assert session.execute(IMPORTS).ok
        assert session.execute_command("git --version").ok
        result = session.execute(DRAWS)
        assert result.ok, result.text
        sums = "polars.DataFrame({'a': [1, 2]}).sum().item() + duckdb.sql('select 39').fetchall()[0][0]"
        assert session.execute(sums).value == 42
