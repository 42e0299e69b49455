"""Pictures: their sizes by their headers, files and displays of them."""

from __future__ import annotations

import base64
import io
import random
from pathlib import Path

import PIL.Image
import pytest

from kernelexec.results import Image, media
from kernelexec.results.media import decode_picture

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
def test_invalid_pictures_have_no_size(content: bytes) -> None:
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


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "I;16"])
@pytest.mark.parametrize("size", [(90, 70), (1000, 3), (2, 900)])
def test_a_large_picture_is_made_smaller_in_strips_as_in_one(
    monkeypatch: pytest.MonkeyPatch, mode: str, size: tuple[int, int]
) -> None:
    chosen = random.Random(2)  # noqa: S311 - a test that can be repeated
    picture = PIL.Image.frombytes("L", size, chosen.randbytes(size[0] * size[1])).convert("L" if mode == "I;16" else mode)
    if mode == "I;16":
        picture = PIL.Image.frombytes("I;16", size, chosen.randbytes(2 * size[0] * size[1]))
    picture.save(file := io.BytesIO(), "PNG")
    image = Image("image/png", file.getvalue())
    monkeypatch.setattr(media, "_STRIP_PIXELS", 500)
    in_strips = decode_picture(image, 20, 30)
    monkeypatch.setattr(media, "_STRIP_PIXELS", 10**9)
    in_one = decode_picture(image, 20, 30)
    assert in_strips is not None
    assert in_one is not None
    assert in_strips == in_one
    assert in_one[0].width <= 20
    assert in_one[0].height <= 30
    assert in_one[1]
    monkeypatch.setattr(media, "_COPIED_PIXELS", 0)
    whole = decode_picture(image, *size)
    assert whole is not None
    assert (whole[0].size, whole[1]) == (size, False)
