"""Pictures as sequences for terminals: exact, of the right size, bounded, and never made of what a kernel wrote."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from contextlib import redirect_stdout
from typing import Any

import PIL.Image
import pytest

from kernelexec.cli.console import PictureArea, TerminalPictures, encode_picture, encode_sixels
from kernelexec.cli.terminal import PictureTerminal, TypedInput, read_names
from kernelexec.results import DisplayData, Image, Output, Stream
from tests.support.picture_terminal import make_png, read_iterm2, read_kitty, read_sixels, without_pictures

AREA = PictureArea(80, 30, (10, 20), is_measured=True)
PROTOCOLS: list[Any] = ["kitty", "iterm2", "sixel"]
MIMES = {"PNG": "image/png", "JPEG": "image/jpeg", "GIF": "image/gif", "WEBP": "image/webp"}


def encoded(form: str, picture: PIL.Image.Image | None = None, **options: object) -> Image:
    file = io.BytesIO()
    (picture or PIL.Image.new("RGB", (31, 7), "red")).save(file, form, **options)
    return Image(MIMES[form], file.getvalue())


def noise(width: int, height: int) -> PIL.Image.Image:
    return PIL.Image.merge("RGB", [PIL.Image.effect_noise((width, height), 90) for _ in range(3)])


def sequence(image: Image, protocol: Any, area: PictureArea = AREA) -> bytes:
    text = encode_picture(image, protocol, area)
    assert text is not None
    assert without_pictures(text.encode()) == b""
    return text.encode()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def fake_png(width: int, height: int, data: bytes = b"x") -> bytes:
    """A PNG with right checksums whose header claims a size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(1, 1), (60, 40), (400, 300)])
def test_kitty_gets_the_exact_png_in_pieces_of_4096(size: tuple[int, int]) -> None:
    image = encoded("PNG", noise(*size))
    [drawn] = read_kitty(sequence(image, "kitty"))
    assert drawn.content == image.content
    assert set(drawn.pieces[:-1]) <= {4096}
    assert 0 < drawn.pieces[-1] <= 4096
    assert (drawn.keys["a"], drawn.keys["f"], "c" in drawn.keys, "i" in drawn.keys) == ("T", "100", False, False)


def test_large_pictures_are_fitted_into_the_areas_columns_and_rows() -> None:
    for size, cells in (((1600, 400), ("80", "10")), ((600, 1200), ("30", "30")), ((8000, 3), ("80", "1"))):
        image = encoded("PNG", PIL.Image.new("RGB", size))
        [kitty] = read_kitty(sequence(image, "kitty"))
        [iterm2] = read_iterm2(sequence(image, "iterm2"))
        assert (kitty.keys["c"], kitty.keys["r"]) == (iterm2.keys["width"], iterm2.keys["height"]) == cells
    unmeasured = PictureArea(80, 30, (8, 16), is_measured=False)
    assert read_kitty(sequence(encoded("PNG"), "kitty", unmeasured))[0].keys["c"] == "4"


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_iterm2_gets_the_exact_file(form: str) -> None:
    image = encoded(form)
    [drawn] = read_iterm2(sequence(image, "iterm2"))
    assert drawn.content == image.content
    keys = {"inline": "1", "size": str(len(image.content)), "width": "4", "height": "1", "preserveAspectRatio": "1"}
    assert drawn.keys == keys


@pytest.mark.parametrize(
    ("form", "protocol"), [("JPEG", "kitty"), *((form, name) for form in ("GIF", "WEBP") for name in PROTOCOLS)]
)
def test_other_kinds_become_png(form: str, protocol: str) -> None:
    raw = sequence(encoded(form), protocol)
    if protocol == "sixel":
        assert read_sixels(raw)[0].size == (31, 7)
        return
    [drawn] = read_kitty(raw) if protocol == "kitty" else read_iterm2(raw)
    assert drawn.content.startswith(b"\x89PNG")
    assert drawn.image.size == (31, 7)
    red: Any = drawn.image.getpixel((5, 5))
    assert red[0] > 200


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_large_picture_is_made_smaller_before_it_is_sent(protocol: str) -> None:
    image = encoded("PNG", PIL.Image.new("RGB", (1500, 1200)) if protocol == "sixel" else noise(1000, 800))
    raw = sequence(image, protocol)
    assert len(raw) < 2 * 1024 * 1024
    drawn = read_sixels(raw) if protocol == "sixel" else [item.image for item in (*read_kitty(raw), *read_iterm2(raw))]
    assert [picture.size for picture in drawn] == [(750, 600)]


def test_sixels_have_the_size_and_the_colours_of_the_picture() -> None:
    colours = ["red", "lime", "blue", "white", "black", "#804020", "#123456"]
    picture = PIL.Image.open(io.BytesIO(make_png(70, 29, colours))).convert("RGB")
    [drawn] = read_sixels(sequence(encoded("PNG", picture), "sixel"))
    assert drawn.size == picture.size
    for x in range(70):
        for y in range(29):
            actual: Any = drawn.getpixel((x, y))
            wanted: Any = picture.getpixel((x, y))
            assert actual[3] == 255
            assert all(abs(a - b) <= 2 for a, b in zip(actual, wanted, strict=False))


def test_sixels_of_a_photograph_are_near_it_and_transparent_pixels_are_left_out() -> None:
    gradient = PIL.Image.merge(
        "RGB", [PIL.Image.radial_gradient("L"), PIL.Image.linear_gradient("L"), PIL.Image.new("L", (256, 256), 90)]
    )
    [drawn] = read_sixels(encode_sixels(gradient).encode())
    far = [
        abs(a - b)
        for xy in ((x, y) for x in range(0, 256, 7) for y in range(0, 256, 7))
        for a, b in zip(drawn.getpixel(xy), gradient.getpixel(xy), strict=False)  # type: ignore[arg-type]
    ]
    assert sum(far) / len(far) < 6
    ring = PIL.Image.new("RGBA", (20, 20), (0, 0, 0, 0))
    ring.paste((0, 255, 0, 255), (5, 5, 15, 15))
    [drawn] = read_sixels(encode_sixels(ring).encode())
    assert [drawn.getpixel(xy) for xy in ((4, 4), (5, 5), (14, 14), (15, 15))] == [
        (0,) * 4,
        (0, 255, 0, 255),
        (0, 255, 0, 255),
        (0,) * 4,
    ]
    [nothing] = read_sixels(encode_sixels(PIL.Image.new("RGBA", (9, 9), (9, 9, 9, 0))).encode())
    assert nothing.getchannel("A").getextrema() == (0, 0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "content",
    [
        b"", b"no picture", b"\x1b]0;title\x07\x1b\\", b"\x89PNG\r\n\x1a\n", b"GIF89a" + b"\xff" * 9,
        b"\xff\xd8\xff" + bytes(99), b"BM" + bytes(99), b"P6 9 9 255\n" + bytes(243), b"RIFF\0\0\0\0WEBPVP8 " + bytes(90),
        b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", fake_png(60_000, 60_000), fake_png(9, 9)[:-3],
    ],
    ids=lambda content: ascii(content[:12]),
)  # fmt: skip
@pytest.mark.parametrize("mime", ["image/png", "image/jpeg"])
def test_invalid_and_huge_pictures_are_not_shown(content: bytes, mime: str, protocol: Any) -> None:
    assert encode_picture(Image(mime, content), protocol, AREA) is None


#: The bytes at the end that a decoder can do without: PNG's last chunk (12), a checksum (4), zlib's (4) and its last bits.
NO_PIXELS = 12 + 4 + 4 + 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("form", MIMES)
def test_every_cut_of_a_picture_shows_none_or_a_whole_one(form: str, protocol: Any) -> None:
    whole = encoded(form, noise(40, 30))
    for length in range(0, len(whole.content) - 1, max(len(whole.content) // 80, 1)):
        text = encode_picture(Image(whole.mime, whole.content[:length]), protocol, AREA)
        raw = (text or "").encode()
        assert all(drawn.image.size == (40, 30) for drawn in (*read_kitty(raw), *read_iterm2(raw)))
        assert not (text and form in ("PNG", "JPEG") and length < len(whole.content) - NO_PIXELS)
    damaged = bytearray(whole.content)
    damaged[len(damaged) // 2] ^= 255
    encode_picture(Image(whole.mime, bytes(damaged)), protocol, AREA)


@pytest.mark.parametrize(("byte", "count"), [(b"\0", 50_000_000), (b"\0", 1000), (b"\x07", 300)])
def test_a_damaged_or_overlong_stream_of_pixels_ends_in_the_decoder(byte: bytes, count: int) -> None:
    data = byte * count if count == 1000 else zlib.compress(byte * count)
    text = encode_picture(Image("image/png", fake_png(9, 9, data)), "sixel", AREA)
    assert text is None or read_sixels(text.encode())[0].size == (9, 9)


def test_no_byte_of_a_picture_reaches_the_terminal_as_it_is() -> None:
    text = b"\x1b\\\x1b]0;title\x07\x1b[6n\x18\x1a\x9c"
    image = Image("image/png", fake_png(9, 9)[:-12] + chunk(b"tEXt", b"Title\0" + text) + chunk(b"IEND", b"") + text)
    for protocol in ("kitty", "iterm2"):
        raw = sequence(image, protocol)
        assert (read_kitty(raw) or read_iterm2(raw))[0].content == image.content


@pytest.mark.parametrize(
    ("names", "protocol"),
    [
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1"}, "kitty"),
        ({"TERM": "xterm-ghostty"}, "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "ghostty"}, "kitty"),
        ({"TERM": "xterm-256color", "KONSOLE_VERSION": "230800"}, "kitty"),
        ({"TERM": "xterm-256color", "KONSOLE_VERSION": "211200"}, None),
        ({"TERM": "xterm-256color", "KONSOLE_VERSION": "\u0661"}, None),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "WezTerm"}, "iterm2"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, "iterm2"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "mintty"}, "iterm2"),
        ({"TERM": "xterm-256color", "LC_TERMINAL": "iTerm2"}, "iterm2"),
        ({"TERM": "xterm-kitty", "TERM_PROGRAM": "WezTerm"}, "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "vscode", "KITTY_WINDOW_ID": "1"}, None),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "Apple_Terminal", "LC_TERMINAL": "iTerm2"}, None),
        ({"TERM": "tmux-256color", "KITTY_WINDOW_ID": "1"}, None),
        ({"TERM": "xterm-kitty", "TMUX": "/tmp/tmux,1,0", "KITTY_WINDOW_ID": "1"}, None),
        ({"TERM": "screen.xterm-256color", "LC_TERMINAL": "iTerm2"}, None),
        ({"TERM": "xterm-256color", "STY": "1.pts", "LC_TERMINAL": "iTerm2"}, None),
        ({"TERM": "xterm-kitty", "ZELLIJ": "0"}, None),
        ({"TERM": "xterm-256color"}, None),
    ],
)  # fmt: skip
def test_a_terminal_is_known_by_its_own_names(names: dict[str, str], protocol: str | None) -> None:
    assert read_names(names) == protocol


class Screen(io.StringIO):
    """A stream that says that it is a terminal; its size is not known."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "plain", [{"NO_COLOR": "1"}, {"CI": "true"}, {"INSIDE_EMACS": "29"}, {"TERM": "dumb"}, {"TERM": "linux"}, {"TERM": ""}]
)
def test_plain_terminals_are_never_asked_and_a_choice_goes_before(plain: dict[str, str]) -> None:
    names = {"TERM": "xterm-kitty"} | plain
    with redirect_stdout(Screen()):
        assert PictureTerminal("auto", {"TERM": "xterm-kitty"}).choose_protocol() == "kitty"
        assert not PictureTerminal("auto", names).may_have_protocol
        assert PictureTerminal("sixel", names).choose_protocol() == "sixel"
        assert not PictureTerminal("never", {"TERM": "xterm-kitty"}).may_have_protocol


@pytest.mark.parametrize("choice", ["auto", *PROTOCOLS])
def test_without_a_terminal_no_choice_shows_pictures(choice: Any) -> None:
    with redirect_stdout(io.StringIO()):
        assert not PictureTerminal(choice, {"TERM": "xterm-kitty"}).may_have_protocol


def display(content: bytes) -> Output:
    return DisplayData({"image/png": base64.b64encode(content).decode(), "text/plain": "x"})


def test_the_pictures_of_a_cell_are_bounded_and_the_next_cell_begins_again() -> None:
    large, heavy = display(fake_png(8000, 4000)), display(encoded("PNG", noise(800, 800)).content)
    with redirect_stdout(Screen()):
        pictures = TerminalPictures("kitty")
        assert [bool(pictures.draw(large)) for _ in range(4)] == [True, True, False, False]
        assert pictures.draw(Stream("stdout", "text")) == ""
        assert pictures.draw(display(b"no picture")) == ""
        assert pictures.end_cell() == 2
        assert pictures.draw(large)
        assert pictures.end_cell() == 0
        shown = [bool(pictures.draw(heavy)) for _ in range(12)]
        assert 3 < sum(shown) < 12
        assert pictures.end_cell() == 12 - sum(shown)


def test_decoders_do_not_warn_on_the_terminal() -> None:
    whole = make_png(9, 9)
    animation = Image("image/png", whole[:33] + chunk(b"acTL", bytes(8)) + whole[33:])
    with redirect_stdout(Screen()):
        [drawn] = read_sixels(TerminalPictures("sixel").draw(display(animation.content)).encode())
    assert drawn.size == (9, 9)


def test_levels_of_sixteen_bits_are_kept() -> None:
    levels = encoded("PNG", PIL.Image.new("I;16", (9, 9), 0x8000))
    [drawn] = read_sixels(sequence(levels, "sixel"))
    grey: Any = drawn.getpixel((4, 4))
    assert all(abs(channel - 128) <= 2 for channel in grey[:3])


def test_typed_input_is_kept_as_text_and_returned_once() -> None:
    typed = TypedInput()
    typed.keep(b"one\rtwo\x1b[A\x07")
    typed.keep("\u00e9\n".encode())
    assert (typed.take_line(), typed.take(), typed.take()) == ("one\n", "two[A\u00e9\n", "")
    typed.keep(b"x" * 10_000)
    assert len(typed.take()) == 4096
    assert not typed.is_awaited
    with typed.await_line():
        assert typed.is_awaited
