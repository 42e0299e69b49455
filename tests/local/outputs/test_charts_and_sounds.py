"""What a reader without a browser gets of Altair's charts and of sounds."""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import Iterator

import pytest

from kernelexec import Executor, Session
from kernelexec.results import DisplayData, ExecuteResult

CHART = """
import altair as alt
chart = alt.Chart(alt.Data(values=[{'a': 1, 'b': 3}, {'a': 2, 'b': 5}]), title='Trees').mark_bar().encode(x='a:Q', y='b:Q')
"""
TEXT = '[Vega chart "Trees", bar]\nx: a\ny: b'
SOUND = "import IPython.display\nIPython.display.Audio([0, 1, 0, -1] * 500, rate=8000)"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Executor("local", workspace=tmp_path_factory.mktemp("workspaces")) as executor:
        yield executor.session()


@pytest.mark.parametrize("renderer", ["default", "mimetype", "png"])
def test_a_chart_of_altair_has_text_and_one_picture(session: Session, renderer: str) -> None:
    code = f"{CHART}with alt.renderers.enable('{renderer}'):\n    display(chart)"
    result = session.execute(code, timeout=60)
    assert result.ok, result.text
    (image,) = result.images
    assert (image.mime, image.content[:4]) == ("image/png", b"\x89PNG")
    if renderer != "png":  # Altair's own picture has no specification beside it
        assert result.text == TEXT


def test_a_chart_whose_data_are_elsewhere_has_no_picture(session: Session) -> None:
    code = "import altair as alt\nalt.Chart('http://127.0.0.1:1/x.csv').mark_point().encode(x='a:Q')"
    result = session.execute(code, timeout=60)
    assert (result.ok, result.images) == (True, ())
    assert result.text == "[Vega chart, point]\nx: a"


def test_a_chart_without_vl_convert_is_as_altair_shows_it(session: Session) -> None:
    code = f"import sys\n{CHART}kept = sys.modules.pop('vl_convert', None); sys.modules['vl_convert'] = None\nchart"
    result = session.execute(code, timeout=60)
    session.execute("del sys.modules['vl_convert']\nif kept: sys.modules['vl_convert'] = kept", timeout=60)
    (output,) = result.outputs
    assert isinstance(output, ExecuteResult)
    assert sorted(output.data) == ["text/html", "text/plain"]
    assert result.text == TEXT


def test_a_sound_is_text_a_file_and_bytes(session: Session) -> None:
    result = session.execute(SOUND, timeout=60)
    assert result.text == "[audio]"
    (sound,) = result.audio
    assert sound.mime == "audio/wav"
    with wave.open(io.BytesIO(sound.content)) as opened:
        assert (opened.getframerate(), opened.getnframes()) == (8000, 2000)
    (name,) = result.files
    assert name.endswith(".wav")
    assert (session.workspace / name).read_bytes() == sound.content


def test_a_sound_of_its_own_type_counts_too(session: Session) -> None:
    encoded = base64.b64encode(b"OggS").decode()
    result = session.execute(f"display({{'audio/ogg': '{encoded}', 'text/plain': 'a sound'}}, raw=True)", timeout=60)
    assert isinstance(result.outputs[0], DisplayData)
    assert [(sound.mime, sound.content) for sound in result.audio] == [("audio/ogg", b"OggS")]
    assert result.text == "a sound"
