"""Pictures of plotting libraries: matplotlib's figures at the end of their cells, and Altair's charts."""

from __future__ import annotations

import base64
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

#: The modules of the base class of all charts in Altair 5 and 6.
_ALTAIR = ("altair.vegalite.v5.api", "altair.vegalite.v6.api")


class Figures:
    """The state of matplotlib's inline backend, which turns the interactive mode on with the first figure.

    A context around the first figure, such as ``style.context`` or ``rc_context``, restores all settings at the end, the mode
    too. Later figures would then not be shown.
    """

    def __init__(self, shell: Any) -> None:
        self._shown = shell.events.callbacks["post_execute"]
        self._was_imported = "matplotlib" in sys.modules
        self._is_begun = self._is_settled = False

    def begin_cell(self) -> None:
        """Read the directory's ``matplotlibrc`` before the first cell if matplotlib was imported without it."""
        if self._is_begun:
            return
        self._is_begun = True
        # The fork server imports matplotlib in a directory of its own, before the kernel has its workspace.
        if self._was_imported and Path("matplotlibrc").is_file():
            matplotlib: Any = sys.modules["matplotlib"]
            with suppress(Exception):  # the file may hold anything
                matplotlib.rcParams.update(matplotlib.rc_params())
                matplotlib.rcParamsOrig.update(matplotlib.rcParams)

    def end_cell(self) -> None:
        """Turn the interactive mode on again after the cell with the first figure, unless the cell has called ``ioff``."""
        backend: Any = sys.modules.get("matplotlib_inline.backend_inline")
        if self._is_settled or backend is None or backend.flush_figures not in self._shown:
            return
        self._is_settled = True  # only once: later changes of the mode are the user's
        matplotlib: Any = sys.modules["matplotlib"]
        pyplot: Any = sys.modules["matplotlib.pyplot"]
        if not matplotlib.is_interactive() and pyplot._draw_all_if_interactive in self._shown:  # noqa: SLF001 - ioff removes it
            matplotlib.interactive(True)  # noqa: FBT003 - the library's own signature


def add_chart_pictures(formatter: Any) -> None:
    """Let IPython's mime bundle formatter add ``image/png`` to the representations of a chart.

    A reader without a browser cannot draw charts, so vl-convert draws them if the kernel has this library.
    Nothing is imported before a chart is displayed. The first picture takes about 0.6 s, others about 0.05 s.
    """
    for module in _ALTAIR:
        formatter.for_type_by_name(module, "TopLevelMixin", _represent)


def _represent(chart: Any) -> Any:
    """Return the representations of a chart, with a picture unless the chart has one or the data must be fetched."""
    bundle = chart._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    if not isinstance(data, dict) or any(mime.startswith("image/") for mime in data):
        return bundle
    with suppress(Exception):  # vl-convert is absent or cannot draw this chart
        import altair as alt  # noqa: PLC0415 - the chart's own module
        import vl_convert  # noqa: PLC0415

        version = alt.SCHEMA_VERSION.lstrip("v").rpartition(".")[0]
        # No address is fetched: a chart that needs one fails here, and stays without a picture.
        picture = vl_convert.vegalite_to_png(chart.to_dict(), vl_version=version, allowed_base_urls=[])
        data["image/png"] = base64.b64encode(picture).decode("ascii")
    return bundle


def forget_directories() -> None:
    """Make matplotlib look up the user's directories again after a fork server has imported it.

    Call this before cells, in the environment of the kernel.

    - Checked for: matplotlib 3.11.2.
    - Gain: forked kernels draw text set by LaTeX. They cannot write to the user's cache, which matplotlib remembers.
    - Obsolete when: ``test_matplotlib_remembers_its_directories``.
    """
    matplotlib: Any = sys.modules.get("matplotlib")
    if matplotlib is None:
        return
    for name in ("get_configdir", "get_cachedir"):
        function: Any = getattr(matplotlib, name)
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if variable == "called":  # of the decorator that remembers the first result
                cell.cell_contents = False
    manager: Any = getattr(sys.modules.get("matplotlib.texmanager"), "TexManager", None)
    if manager is not None:
        manager._cache_dir = Path(matplotlib.get_cachedir(), "tex.cache")  # noqa: SLF001 - set when its class is made
