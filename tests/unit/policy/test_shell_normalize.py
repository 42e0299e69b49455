"""A script in plain form runs the same, and is clear about where commands stand in its words."""

from __future__ import annotations

import pytest

from kernelexec.policy.shell.errors import UnparsableScript
from kernelexec.policy.shell.normalize import plain
from kernelexec.policy.shell.reader import read

PLAIN = {
    "ls -la": "ls -la",
    "ch\\\nmod": "chmod",
    '"a`b \\`c\\``"': '"a$(b $(c))"',
    "ch``mod": "chmod",
    'a$"b"': 'a"b"',
    "'a`b' \\`c # it's `d`": "'a`b' \\`c # it's `d`",
    "time -p { ls; }": "{ ls; }",
    "! ! ls": "! ls",
    "coproc X { ls; }": "{ ls; }",
    "awk '{print $(NF)}'": "awk '{print $(NF)}'",
}
PLACES = {
    "echo $(a `b`)": {"$(a $(b))", "$(b)"},
    "é <(a) >(b)": {"<(a)", ">(b)"},
    "echo $((1 + $(a))) '$(b)' \\$(c) \"\\$(d)\" # $(e)": {"$(a)"},
    "x=$(case y in a) b;; esac)": {"$(case y in a) b;; esac)"},
    "cat <<'EOF'\n$(a)\nEOF": set[str](),
    "cat <<-EOF\n\t$(a)\n\tEOF": {"$(a)"},
    "(( x << 2 )); $((a) | b)": {"$((a) | b)"},
}
UNCLEAR = ["echo `a", "echo $x 'a", 'echo $x "a', "cat <<EOF\na", "cat <<EOF $(\na)\nEOF", "echo ${ a; }", "(" * 50, "((" * 200]


@pytest.mark.parametrize(("text", "made"), PLAIN.items())
def test_what_the_grammar_misreads_gets_another_form(text: str, made: str) -> None:
    assert plain(text, []).text == made


@pytest.mark.parametrize(("text", "places"), PLACES.items())
def test_commands_within_words_are_found_where_nothing_quotes_them(text: str, places: set[str]) -> None:
    found = plain(text, [])
    assert {found.text.encode()[begin:end].decode() for begin, end in found.commands} == places


@pytest.mark.parametrize("text", UNCLEAR)
def test_what_has_no_clear_end_is_not_read(text: str) -> None:
    with pytest.raises(UnparsableScript):
        plain(text, [])


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ('cat <<EOF\n"a" \\$b \\\\c \\d\nEOF', '"a" $b \\c \\d\n'),
        ('x=1; cat <<EOF\n"a" \\$b \\\\c \\d $x\nEOF', '"a" $b \\c \\d 1\n'),
        ("cat > f <<-'EOF' 2>&1\n\ta `b` $(c)\n\tEOF\n", "a `b` $(c)\n"),
        ("x='a b'; cat > f <<< $x'c'", "a bc\n"),
    ],
)
def test_what_is_written_down_is_what_the_command_reads(text: str, given: str) -> None:
    assert [command.stdin for command in read(text).commands] == [given]
