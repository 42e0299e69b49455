"""Pictures: their sizes by their headers, files and displays of them."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import PIL.Image
import pytest

from kernelexec.results import Image

FORMATS = {"PNG": "image/png", "GIF": "image/gif", "JPEG": "image/jpeg", "WEBP": "image/webp"}


def encoded(form: str, **options: object) -> bytes:
    file = io.BytesIO()
    PIL.Image.new("RGB", (31, 7), "red").save(file, form, **options)
    return file.getvalue()


@pytest.mark.parametrize("form", FORMATS)
def test_the_size_is_that_of_the_header(form: str) -> None:
    image = Image(FORMATS[form], encoded(form))
    assert image.size == (31, 7)
    assert repr(image).startswith(f"<Image {FORMATS[form]} 31\N{MULTIPLICATION SIGN}7 ")


def test_kinds_of_webp_and_jpeg() -> None:
    assert Image("image/webp", encoded("WEBP", lossless=True)).size == (31, 7)
    assert Image("image/webp", encoded("WEBP", exif=b"Exif\0\0II*\0")).size == (31, 7)
    assert Image("image/jpeg", encoded("JPEG", progressive=True)).size == (31, 7)


@pytest.mark.parametrize("form", FORMATS)
def test_every_cut_header_has_a_size_or_none(form: str) -> None:
    content = encoded(form)
    sizes = {Image(FORMATS[form], content[:length]).size for length in range(len(content))}
    assert sizes <= {None, (31, 7)} | {size for size in sizes if size is not None and max(size) < 31}


@pytest.mark.parametrize(
    "content", [b"", b"<svg/>", b"\xff\xd8" + b"\xff\xe0\0\0" * 10**4, b"\xff\xd8\xff", b"RIFF0000WEBPVP8?"]
)
def test_what_has_no_size_has_none(content: bytes) -> None:
    assert Image("image/png", content).size is None


def test_an_image_is_saved_and_replaces_a_file(tmp_path: Path) -> None:
    content = encoded("PNG")
    (tmp_path / "a.png").write_bytes(b"old")
    assert Image("image/png", content).save(tmp_path / "a.png") == tmp_path / "a.png"
    assert Image("image/png", content).save(str(tmp_path / "b.png")) == tmp_path / "b.png"
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes() == content
    with pytest.raises(FileNotFoundError):
        Image("image/png", content).save(tmp_path / "no" / "a.png")


def test_a_notebook_shows_an_image_and_of_an_svg_a_picture() -> None:
    content = encoded("PNG")
    assert Image("image/png", content)._repr_mimebundle_()["image/png"] == base64.b64encode(content).decode()
    bundle = Image("image/svg+xml", b"<svg onload='alert(1)'/>")._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert "onload" not in bundle["text/html"]
