"""Pictures of Altair's charts, which a reader without a browser cannot draw: made by vl-convert if the kernel has it."""

from __future__ import annotations

import base64
from contextlib import suppress
from typing import Any

#: The modules of the class that all charts of Altair 5 and 6 derive from.
_ALTAIR = ("altair.vegalite.v5.api", "altair.vegalite.v6.api")


def add_chart_pictures(formatter: Any) -> None:
    """Let IPython's mime bundle formatter add ``image/png`` to the representations of a chart.

    Nothing is imported before a chart is displayed. The first picture takes about 0.6 s, others about 0.05 s.
    """
    for module in _ALTAIR:
        formatter.for_type_by_name(module, "TopLevelMixin", _represent)


def _represent(chart: Any) -> Any:
    """Return the representations of a chart, with a picture unless there is one or its data must be fetched."""
    bundle = chart._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    if not isinstance(data, dict) or any(mime.startswith("image/") for mime in data):
        return bundle
    with suppress(Exception):  # vl-convert is absent or cannot draw this chart
        import altair as alt  # noqa: PLC0415 - the chart's own module
        import vl_convert  # noqa: PLC0415

        version = alt.SCHEMA_VERSION.lstrip("v").rpartition(".")[0]
        picture = vl_convert.vegalite_to_png(chart.to_dict(), vl_version=version, allowed_base_urls=[])
        data["image/png"] = base64.b64encode(picture).decode("ascii")
    return bundle
