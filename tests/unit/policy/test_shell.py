"""The commands that are read from a script, and scripts that are not clear enough to be read."""

from __future__ import annotations

import pytest

from kernelexec.rules.policy import CommandRules
from kernelexec.rules.policy.shell_reader import UnparsableScript, read

UNCLEAR = [
    "echo `a",
    "echo $x 'a",
    'echo $x "a',
    "cat <<EOF\na",
    "echo ${ a; }",
    "(" * 50,
    "((" * 200,
    "echo `a \\`b\\``",
]
STDIN = [
    ("cat > f <<-'EOF' 2>&1\n\ta `b` $(c)\n\tEOF\n", "a `b` $(c)\n"),
    ("cat <<EOF\na\nb\nEOF", "a\nb\n"),
    ("cat <<EOF\na $x\nEOF", "\0"),
    ("cat <<< 'a b'c", "a bc\n"),
    ("cat <<< $x", "\0\n"),
]
ORDINARY = [
    'for f in *.csv; do wc -l "$f"; done',
    "x=$(ls); echo $x",
    "cd dir && make",
    "[ -f x ] && rm x",
    'd=$(mktemp -d); cd "$d"; rm -rf "$d"',
    'for d in build dist; do rm -rf "$d"; done',
    "find . -name __pycache__ | xargs rm -rf",
    "find . -name __pycache__ -exec rm -rf {} +",
    'rm -rf "$PWD/build" build/*',
    "set -e\ncat > a.py <<'EOF'\nprint('it\\'s `x` $(y)')\nEOF\npython a.py\ncat > b <<EOF\n$HOME $(date) ${x:-y}\nEOF\n",
    "if true; then\n  cat <<EOF\nhi $x\nEOF\nfi",
    "f() {\n  cat <<-'EOF'\n\tx\n\tEOF\n}\nf | wc",
    'while read -r line; do\n  echo "$line"\ndone <<EOF\na\nEOF',
    "${PYTHON:-python3} x.py",
    "a=1 b=2 c=3 d=4 e=5 f=6 g=7; echo $a $b $c $d $e $f $g",
    "for a in 1 2 3 4 5 6 7 8 9; do for b in 1 2 3 4 5 6 7 8 9; do echo $a $b; done; done",
]


@pytest.mark.parametrize("text", UNCLEAR)
def test_an_unclear_script_is_not_read(text: str) -> None:
    with pytest.raises(UnparsableScript):
        read(text)


@pytest.mark.parametrize(("text", "stdin"), STDIN)
def test_a_command_reads_the_text_that_the_script_holds(text: str, stdin: str) -> None:
    assert [command.stdin for command in read(text).commands] == [stdin]


@pytest.mark.parametrize("text", ORDINARY)
def test_an_ordinary_script_may_run(text: str) -> None:
    assert CommandRules().check(text) is None


def test_a_variable_has_the_newest_literal_of_the_script_or_an_unknown_value() -> None:
    words = [command.words for command in read("x=a; run $x; x='b c'; y=$x; run $y \"$y\"; y=$(z); run $y").commands]
    assert words == [("run", "a"), ("run", "b", "c", "b c"), ("z",), ("run", "\0")]


def test_a_loop_has_each_of_its_values_until_too_much_is_read_again() -> None:
    assert [command.words for command in read('for d in a b; do rm "$d"; done').commands] == [("rm", "a"), ("rm", "b")]
    loops = "for d in 1 2 3 4 5 6 7 8 9; do " * 20 + "ls;" + "done;" * 20
    assert len(read(loops).commands) < 10_000


def test_a_long_value_of_a_variable_is_unknown_since_it_may_be_used_many_times() -> None:
    (command,) = read(f"x={'a' * 300}; run $x").commands
    assert command.words == ("run", "\0")


def test_commands_of_all_branches_functions_and_substitutions_are_read() -> None:
    script = read("if a; then b; else c; fi; f() { d $(e); }; g | h &")
    assert {command.words[0] for command in script.commands} == set("abcdegh")
    assert script.has_substitution
    assert script.has_background


def test_a_large_script_is_read() -> None:
    assert CommandRules().check("echo 'x' | wc -l; y=$(date)\n" * 2000) is None
