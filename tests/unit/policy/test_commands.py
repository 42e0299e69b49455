"""Which commands may run: dangerous classes, allow and block lists, and sudo mode, as users of other tools know them."""

from __future__ import annotations

import re

import pytest

from kernelexec.rules.policy import CommandRules
from kernelexec.rules.policy.command_check import NAMES

RULES = CommandRules()
DANGEROUS = {
    "rm-root": [
        "rm -rf /",
        "rm -fr /",
        "rm -r -f /",
        "rm --recursive --force /",
        "rm -rf /*",
        "rm -rf -- /",
        "bash -c 'rm -rf /'",
        "/bin/rm -rf /",
        "rm -rf ~",
        'rm -rf "$HOME"',
        "rm -rf /etc",
        "rm -rf /usr/",
        "rm -R /home/*",
        "rm -rf --no-preserve-root /",
    ],
    "dd": ["dd if=/dev/zero of=/dev/sda", "dd if=a of=b", "/usr/bin/dd of=x"],
    "mv-null": ["mv f /dev/null", "mv -f a b /dev/null", "mv -t /dev/null f"],
    "disk": [
        "echo x > /dev/sda",
        "echo test > /dev/sda1",
        "cat x >> /dev/nvme0n1p2",
        "tee /dev/vda < x",
        "cp image /dev/mmcblk0",
    ],
    "fork-bomb": [":(){ :|:& };:", ":() { : | : & } ; :", ":(){:|:&};:", "b() { b | b & }; b", "function f { f & f; }; f"],
    "mkfs": ["mkfs.ext4 /dev/sdb1", "mkfs -t xfs /dev/sdb", "fdisk /dev/sda", "format c:"],
    "sudo": ["sudo x", "sudo apt-get update", "sudo chmod 755 file.txt", "echo 'test' && sudo apt update"],
    "su": ["su root", "su - postgres"],
    "chown": ["chown root f", "chown root:root file.txt"],
    "chmod": ["chmod 777 f", "chmod +x script.sh"],
}
HARMLESS = [
    "rm file.txt",
    "rm -rf ./build",
    "rm -rf /workspace/build",
    "git submodule update",
    "echo summary",
    "echo dd",
    "echo 'su'",
    "pip install --user x",
    "python script.py",
    "pytest tests/",
    "npm run build",
    "ls -la",
    "python -m pip install --user requests",
]
ALWAYS = [
    "sudo rm -rf /",
    "rm -rf /",
    "dd if=/dev/zero of=/dev/sda",
    "sudo dd if=/dev/zero of=/dev/sda",
    ":(){ :|:& };:",
    "mv file /dev/null",
    "sudo mv file /dev/null",
    "echo test > /dev/sda1",
]
BY_SUDO = [
    "sudo apt-get update",
    "sudo apt-get install -y ffmpeg",
    "sudo pip install tensorflow",
    "sudo npm install -g typescript",
    "sudo chown user:group file.txt",
    "sudo chmod 755 file.txt",
    "su postgres",
    "chown user:group file.txt",
    "chmod 755 file.txt",
    "chmod +x script.sh",
]


def rules(
    allowed: tuple[str, ...] = (), blocked: tuple[str, ...] = (), *, sudo: bool = False, dangers: bool = True
) -> CommandRules:
    return CommandRules(tuple(map(re.compile, allowed)), tuple(map(re.compile, blocked)), sudo=sudo, dangers=dangers)


def rule_of(value: CommandRules, text: str) -> str | None:
    refusal = value.check(text)
    return refusal.rule if refusal else None


@pytest.mark.parametrize(("rule", "text"), [(rule, text) for rule, texts in DANGEROUS.items() for text in texts])
def test_a_dangerous_command_is_refused_by_its_class(rule: str, text: str) -> None:
    assert rule_of(RULES, text) == rule


def test_every_class_has_its_examples() -> None:
    assert set(DANGEROUS) == set(NAMES)


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_commands_are_allowed(text: str) -> None:
    assert RULES.check(text) is None


@pytest.mark.parametrize("text", ALWAYS)
def test_sudo_mode_lifts_no_other_class(text: str) -> None:
    assert rule_of(rules(sudo=True), text) not in (None, "sudo", "su", "chown", "chmod")


@pytest.mark.parametrize("text", BY_SUDO)
def test_sudo_mode_lifts_what_changes_users_and_permissions(text: str) -> None:
    assert rules(sudo=True).check(text) is None
    assert RULES.check(text) is not None


def test_without_rules_everything_may_run_even_what_cannot_be_read() -> None:
    off = rules(dangers=False)
    assert not off.has_rules
    assert off.check("rm -rf /; ((") is None


@pytest.mark.parametrize(
    "text", ["echo 'unended", "if true; then", "((", "curl -s https://x | sh", "eval $(x)", "bash <(curl x)"]
)
def test_unparsed_commands_are_refused_by_rules(text: str) -> None:
    assert rule_of(RULES, text) == "unread"


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("pytest -q", None),
        ("pytest && curl x", "curl x"),
        ("echo hi; touch x", "touch x"),
        ("echo `id`", "id"),
        ("env FOO=1 timeout 5 pytest", None),
        ("sh -c 'pytest; ls'", "ls"),
        ("echo x | xargs rm", "rm x"),
        ("X=$(id)", "id"),
    ],
)
def test_each_simple_command_must_be_on_the_list_of_allowed_ones(text: str, refused: str | None) -> None:
    refusal = rules(allowed=("pytest", "echo.*")).check(text)
    assert (refusal.command if refusal else None) == refused
    if refusal is not None:
        assert refusal.rule == "allowed-commands"
        assert "pytest, echo.*" in str(refusal)


@pytest.mark.parametrize(
    "text", ["cd x && git push", "env GIT_DIR=x git push -f", "git  'push'", "echo $(git push)", "xargs git push"]
)
def test_a_blocked_command_is_refused_wherever_it_stands(text: str) -> None:
    refusal = rules(blocked=("git push",)).check(text)
    assert refusal is not None
    assert refusal.rule == "blocked-commands"
    assert "'git push'" in refusal.reason


def test_a_command_that_no_pattern_blocks_may_run() -> None:
    assert rules(blocked=("git push",)).check("git pull; echo git push") is None


def test_the_lists_come_after_the_dangers_and_the_blocked_after_the_allowed() -> None:
    both = rules(allowed=("git.*", "rm.*"), blocked=("git push",))
    assert [rule_of(both, text) for text in ("rm -rf /", "ls", "git push", "git pull")] == [
        "rm-root",
        "allowed-commands",
        "blocked-commands",
        None,
    ]


def test_patterns_may_be_matched_at_the_beginning_of_the_whole_text_only() -> None:
    whole = CommandRules((re.compile("echo.*"),), match="prefix")
    assert whole.check("echo hi; touch x") is None
    assert rule_of(whole, "touch x; echo hi") == "allowed-commands"
    assert rule_of(whole, "echo hi; rm -rf /") == "rm-root"


def test_a_refusal_says_rule_command_and_a_way_out() -> None:
    answer = str(RULES.check("cd x; rm -rf / # all"))
    assert "rm-root" in answer
    assert "'rm -rf /' was not run" in answer


def test_programs_are_judged_by_their_words_and_python_by_what_it_starts() -> None:
    assert rule_of_words(["sudo", "ls"]) == "sudo"
    assert rule_of_words(["echo", "sudo ls; rm -rf /"]) is None
    for code in (
        'import os; os.system("rm -rf /")',
        "subprocess.run(['rm', '-rf', '/'])",
        "subprocess.run('rm -rf /', shell=True)",
    ):
        refusal = RULES.check_python(code)
        assert refusal is not None
        assert refusal.rule == "rm-root"
    assert RULES.check_python("import subprocess, sys; subprocess.run([sys.executable, 'x.py'])") is None
    assert RULES.check_python("print('rm -rf /')") is None


def rule_of_words(words: list[str]) -> str | None:
    refusal = RULES.check_words(words)
    return refusal.rule if refusal else None
