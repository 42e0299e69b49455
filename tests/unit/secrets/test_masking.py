"""Secrets are found in every form that programs write them in, whole and in pieces, and nothing else is changed."""

from __future__ import annotations

import base64
import html
import json
import random
import re
import shlex
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from kernelexec.cells import CodeCell, ShellCell
from kernelexec.rules.secrets.finder import encodings
from kernelexec.rules.secrets.store import Masker
from tests.support.night import at_night

PLAIN = "sk-proj-Q7x9Lm2Rt5Vw8Zb1"
AWKWARD = 'p@ss/w\'ord "ü" <&>\\+%\nline two $HOME'
LONG = base64.b64encode(bytes(range(7, 142))).decode()
LINES = "\n".join(LONG[at : at + 64] for at in range(0, 180, 64))
PEM = f"-----BEGIN PRIVATE KEY-----\n{LINES}\n-----END PRIVATE KEY-----"
VALUES = {"plain": PLAIN, "awkward": AWKWARD, "long": LONG, "key": PEM, "short": "Zq7!"}
MARK = "[secret KEY]"
FORMS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "hex": lambda value: value.encode().hex(),
    "hex in capitals": lambda value: value.encode().hex().upper(),
    "url": lambda value: quote(value, safe=""),
    "url with slashes": quote,
    "url of a form": quote_plus,
    "url in small letters": lambda value: re.sub("%..", lambda octet: octet[0].lower(), quote(value, safe="")),
    "json": lambda value: json.dumps({"key": value}),
    "json as it is": lambda value: json.dumps([value], ensure_ascii=False),
    "json in json": lambda value: json.dumps(json.dumps(value)),
    "repr": repr,
    "ascii": ascii,
    "bytes": lambda value: repr(value.encode()),
    "repr in a repr": lambda value: repr([f"{value}' \""]),
    "html": html.escape,
    "html of a table": lambda value: html.escape(value, quote=False),
    "shell": shlex.quote,
    "traced by bash": lambda value: "'" + value.replace("'", "'\\''") + "'",
    "exported by bash": lambda value: re.sub(r'([$`"\\])', r"\\\1", value),
    "quoted by printf": lambda value: re.sub(r"([^\w@%+=:,./-])", r"\\\1", value, flags=re.ASCII),
    "csv": lambda value: '"' + value.replace('"', '""') + '"',
    "sql": lambda value: "'" + value.replace("'", "''") + "'",
    "regular expression": re.escape,
    "lines of Windows": lambda value: value.replace("\n", "\r\n"),
    "words joined": lambda value: " ".join(value.split()),
}


def masker(value: str) -> Masker:
    return Masker([("KEY", value)])


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_form_is_masked_and_what_is_around_it_is_not(form: Callable[[str], str], value: str) -> None:
    actual = masker(value).mask_text(f"before {form(value)} after")
    assert MARK in actual
    assert actual.startswith("before ")
    assert actual.endswith(" after")
    assert not any(guise in actual for guise in encodings(value))


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode, base64.encodebytes])
@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("after", range(4))
def test_base64_hides_it_at_no_place(value: str, encode: Callable[[bytes], bytes], before: int, after: int) -> None:
    text = encode(b"~" * before + value.encode() + b"~" * after).decode()
    actual = masker(value).mask_text(text)
    assert MARK in actual
    assert len(actual.replace("\n", "").replace(MARK, "")) <= 12  # the neighbours' characters, and those that hold bits of both


def test_encodings_broken_into_lines_are_masked_as_one() -> None:
    for broken in ("\n", "\r\n", "\\n"):
        text = broken.join(base64.b64encode(LONG.encode()).decode()[at : at + 76] for at in range(0, 240, 76))
        assert masker(LONG).mask_text(text).count(MARK) == 1


def test_each_line_of_a_key_is_masked() -> None:
    lines = PEM.splitlines()
    assert masker(PEM).mask_text(f"{lines[0]}\n{lines[1]}\nend") == f"{lines[0]}\n{MARK}\nend"
    for line in lines[1:-1]:
        assert masker(PEM).mask_text(f"   2  {line}  ") == f"   2  {MARK}  "


def test_numbers_of_json_are_masked() -> None:
    actual = masker("83920175").mask_value({"a": [83920175, 1, True, 8392.0175, None], "b": 83920175.5})
    assert actual == {"a": [MARK, 1, True, 8392.0175, None], "b": f"{MARK}.5"}


def test_codes_of_terminals_part_nothing() -> None:
    coloured = f"{PLAIN[:5]}\x1b[01;31m\x1b[K{PLAIN[5:9]}\x1b[m\x1b[K{PLAIN[9:]}"
    assert masker(PLAIN).mask_text(f"\x1b[1m{coloured}\x1b[0m") == f"\x1b[1m{MARK}\x1b[0m"


@pytest.mark.parametrize("ellipsis", ["...", "\u2026", "'...", '"...'])
def test_secrets_cut_by_an_ellipsis_are_masked(ellipsis: str) -> None:
    assert masker(PLAIN).mask_text(f"key  {PLAIN[:-3]}{ellipsis}") == f"key  {MARK}{ellipsis}"
    assert masker(PLAIN).mask_text(f"key  {PLAIN[:3]}{ellipsis}") == f"key  {PLAIN[:3]}{ellipsis}"


def test_the_longest_of_several_is_named() -> None:
    both = Masker([("SHORT", "abcdef"), ("LONG", "abcdefgh")])
    assert both.mask_text("abcdefgh abcdefg") == "[secret LONG] [secret SHORT]g"
    assert Masker([("ONE", PLAIN), ("TWO", PLAIN)]).mask_text(PLAIN) == "[secret ONE]"


def test_all_values_that_a_secret_has_had_are_masked() -> None:
    assert Masker([("KEY", "before-1"), ("KEY", "after-22")]).mask_text("before-1 after-22") == f"{MARK} {MARK}"


def test_no_mark_shows_a_secret_or_becomes_one_with_what_is_beside_it() -> None:
    assert Masker([("KEY", "secret")]).mask_text("a secret") == "a \u2588\u2588\u2588\u2588"
    assert Masker([("PASSWORD", "PASSWORD")]).mask_text("PASSWORD").count("PASSWORD") == 0
    assert "]abc" not in Masker([("KEY", "]abc")]).mask_text("]abcabc")


def test_without_secrets_a_text_stays_as_it_is() -> None:
    assert Masker().mask_text(AWKWARD) == AWKWARD
    flow = Masker().stream_masker()
    assert flow.feed(AWKWARD) == AWKWARD
    assert not flow.holds_text


def test_json_is_masked_in_all_its_depth() -> None:
    answer = {PLAIN: [{"a": f"x{PLAIN}"}, 1, None, True], "kept": PLAIN, "plain": "text"}
    assert masker(PLAIN).mask_value(answer, spared={"kept"}) == {
        MARK: [{"a": f"x{MARK}"}, 1, None, True],
        "kept": PLAIN,
        "plain": "text",
    }
    assert masker(PLAIN).mask_value({PLAIN: PLAIN}, keys=False) == {PLAIN: MARK}
    deep: Any = PLAIN
    for _ in range(5000):
        deep = [deep]
    assert PLAIN not in json.dumps(masker(PLAIN).mask_value(deep))


def test_a_cell_is_masked_in_every_part() -> None:
    assert masker(PLAIN).mask_cell(CodeCell(f"x = '{PLAIN}'")) == CodeCell(f"x = '{MARK}'")
    cell = ShellCell(f"%%bash\n{PLAIN}", PLAIN, persistent=True, work_dir=f"/{PLAIN}", stdin=PLAIN, language="bash")
    masked = ShellCell(f"%%bash\n{MARK}", MARK, persistent=True, work_dir=f"/{MARK}", stdin=MARK, language="bash")
    assert masker(PLAIN).mask_cell(cell) == masked


def test_a_secret_in_single_characters_is_found_and_nothing_else_waits() -> None:
    flow = masker(PLAIN).stream_masker()
    assert flow.feed("one line\n") == "one line\n"
    assert [flow.feed(char) for char in PLAIN] == [""] * (len(PLAIN) - 1) + [MARK]
    assert flow.feed("s") == ""
    assert flow.feed("o on\n") == "so on\n"


def test_the_rest_of_a_flushed_secret_is_masked() -> None:
    flow = masker(PLAIN).stream_masker()
    assert flow.feed(f"a {PLAIN[:6]}") == "a "
    assert flow.flush() == PLAIN[:6]
    assert flow.flush() == ""
    assert flow.feed(f"{PLAIN[6:]} b") == f"{MARK} b"
    assert flow.feed(PLAIN[:6]) + flow.flush() + flow.feed("other") == f"{PLAIN[:6]}other"


def test_a_beginning_at_the_end_of_all_output_is_masked_and_late_text_shows_no_rest() -> None:
    flow = Masker([("KEY", PLAIN)]).stream_masker()
    shown = flow.feed(f"it is {PLAIN[:6]}") + flow.flush(is_last=True) + flow.feed(f"{PLAIN[6:]} and more\n") + flow.flush()
    assert shown.startswith("it is [secret KEY]")
    assert shown.endswith(" and more\n")
    assert PLAIN[:6] not in shown
    assert PLAIN[6:] not in shown
    assert flow.feed("ordinary") + flow.flush(is_last=True) == "ordinary"


def test_held_text_is_bounded_by_the_longest_form() -> None:
    flow = masker(PLAIN).stream_masker()
    settings = sum(len(flow.feed(PLAIN[0] * 1000)) for _ in range(100))
    assert 100_000 - settings < max(map(len, encodings(PLAIN)))
    assert len(flow._text) < 1000


ALPHABETS = ["ab", "abc.", "ab\n", "aA1/+", "ab[]K secrt", "xyzé\\\"'", "0123456789abcdef\r\n", "KEYab%2F+-_ "]
BETWEEN = ["...", "'...", "..", "\u2026", "\n", "\r\n", "\\n", "\x1b[31m", "\x1b[m", "\r", "\\", "x" * 60, "x" * 61 + "\n"]


def random_text(dice: random.Random, forms: list[str], alphabet: str) -> str:
    parts = []
    for _ in range(dice.randint(1, 12)):
        form = dice.choice(forms)
        at = dice.randint(0, len(form))
        letters = "".join(dice.choices(alphabet, k=dice.randint(1, 10)))
        parts.append(dice.choice([form, form[:at], form[at:], f"{form[:at]}\n{form[at:]}", letters, dice.choice(BETWEEN)]))
    return "".join(parts)


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", [0, 1, *at_night(*range(2, 8))])
def test_however_a_text_is_cut_it_is_masked_as_in_one_and_holds_no_secret(seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311 - the same texts in every run
    for _ in range(400):
        alphabet = dice.choice(ALPHABETS)
        drawn = ["".join(dice.choices(alphabet, k=dice.choice([4, 5, 6, 12, 40, 90]))) for _ in range(dice.randint(1, 3))]
        values = [value for value in drawn if len("".join(value.split())) >= 4] or [PLAIN]
        several = Masker((f"K{number}", value) for number, value in enumerate(values))
        forms = sorted(guise for value in values for guise in encodings(value))
        text = random_text(dice, forms, alphabet)
        whole = several.mask_text(text)
        assert not any(form in whole for form in forms), (values, text)
        flow, parts, at = several.stream_masker(), [], 0
        while at < len(text):
            end = at + dice.randint(1, dice.choice([1, 2, 7, 50]))
            parts.append(flow.feed(text[at:end]))
            at = end
        assert "".join((*parts, flow.flush())) == whole, (values, text)
