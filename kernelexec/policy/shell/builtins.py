"""Names and texts that a shell takes for more than they seem."""

from __future__ import annotations

import re

#: A name with a subscript in which a command stands: where a shell reads that as a number, it runs.
SUBSCRIPT = re.compile(r"\w\[[^]]*(?:\$\(|`)")
#: Variables whose values a shell expands once more, and those that change what a command's name means.
EXPANDED = frozenset({"PS0", "PS1", "PS2", "PS4", "BASH_ENV", "PROMPT_COMMAND"})
#: Commands that may read a word as a number or as a variable's name.
NUMBERING = frozenset(
    [
        "let",
        "declare",
        "typeset",
        "local",
        "export",
        "readonly",
        "printf",
        "test",
        "read",
        "unset",
        "mapfile",
        "readarray",
        "wait",
    ]
)
NAMING = frozenset({"BASH_CMDS", "BASH_ALIASES"})
#: Words of the language that no command is called: where one seems to be, the grammar took something for another.
RESERVED = frozenset(
    ["!", "{", "}", "if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "select"]
)
