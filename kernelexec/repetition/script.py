"""A shell script taken apart into its simple commands; what is too much for this reader is said, never guessed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_SPACE = " \t\r"
_OPERATORS = ("&&", "||", ";;", ";", "|&", "|", "&", "\n", "(", ")")
_REDIRECTION = re.compile(r"\d*(?P<operator>&>>|&>|<<<|<<-|<<|<>|<&|>>|>\||>&|<|>)")
_ESCAPABLE = '"\\$`\n'


class Unread(Exception):
    """The script holds what this reader does not take apart."""


@dataclass(slots=True)
class Simple:
    """One simple command: its words without quotes, its redirections, and what parts it from the next."""

    words: list[str] = field(default_factory=list)
    redirections: list[tuple[str, str]] = field(default_factory=list)
    after: str = ""


class _Reader:
    """Reads a script once from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.documents: list[tuple[str, bool, bool]] = []
        self.found = [Simple()]
        self._target: str | None = None

    def read(self) -> list[Simple]:
        while self.at < len(self.text):
            if not self._blank() and not self._operator() and not self._redirection():
                word, quoted = self._word()
                self._add(word, quoted=quoted)
        if self._target is not None or self.documents:
            raise Unread("a redirection without an end")
        return [simple for simple in self.found if simple.words or simple.redirections or simple.after == "&"]

    def _blank(self) -> bool:
        rest = self.text[self.at : self.at + 2]
        if rest[0] in _SPACE:
            self.at += 1
        elif rest == "\\\n":
            self.at += 2
        elif rest[0] == "#":  # a comment: a word begins here, or this would be within it
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        else:
            return False
        return True

    def _operator(self) -> bool:
        if _REDIRECTION.match(self.text, self.at):
            return False
        operator = next((found for found in _OPERATORS if self.text.startswith(found, self.at)), None)
        if operator is None:
            return False
        if self._target is not None:
            raise Unread("a redirection without a target")
        self.at += len(operator)
        self.found[-1].after = operator
        self.found.append(Simple())
        if operator == "\n":
            self._skip_documents()
        return True

    def _redirection(self) -> bool:
        match = _REDIRECTION.match(self.text, self.at)
        if match is None:
            return False
        if self._target is not None or self.text.startswith("(", match.end()):
            raise Unread("a process substitution")
        self._target = match["operator"]
        self.at = match.end()
        return True

    def _add(self, word: str, *, quoted: bool) -> None:
        if self._target is None:
            self.found[-1].words.append(word)
            return
        if self._target in ("<<", "<<-"):
            self.documents.append((word, quoted, self._target == "<<-"))
        self.found[-1].redirections.append((self._target, word))
        self._target = None

    def _word(self) -> tuple[str, bool]:
        begun, pieces, quoted = self.at, [], False
        while self.at < len(self.text) and (char := self.text[self.at]) not in " \t\r\n;|&()<>":
            if char in "'\"":
                quoted = True
                pieces.append(self._quoted(char))
                continue
            self._check_substitution()
            if char == "\\":
                quoted = True
                self.at += 1
            pieces.append(self.text[self.at : self.at + 1])
            self.at += 1
        if self.at == begun:
            raise Unread("what is no word")
        return "".join(pieces), quoted

    def _quoted(self, quote: str) -> str:
        pieces = []
        self.at += 1
        while self.at < len(self.text) and (char := self.text[self.at]) != quote:
            if quote == '"':
                self._check_substitution()
                if char == "\\" and self.text[self.at + 1 : self.at + 2] in _ESCAPABLE:
                    self.at += 1
            pieces.append(self.text[self.at : self.at + 1])
            self.at += 1
        if self.at >= len(self.text):
            raise Unread("a quote without an end")
        self.at += 1
        return "".join(pieces)

    def _check_substitution(self) -> None:
        if self.text[self.at] == "`" or self.text.startswith("$(", self.at):
            raise Unread("a command substitution")

    def _skip_documents(self) -> None:
        """Pass over here-documents, whose text begins after this line."""
        for delimiter, quoted, indented in self.documents:
            while True:
                if self.at >= len(self.text):
                    raise Unread("a here-document without an end")
                end = self.text.find("\n", self.at)
                line = self.text[self.at : end if end >= 0 else len(self.text)]
                self.at += len(line) + 1
                if (line.lstrip("\t") if indented else line) == delimiter:
                    break
                if not quoted and ("$(" in line or "`" in line):
                    raise Unread("a command substitution")
        self.documents = []


def simple_commands(text: str) -> list[Simple]:
    """The simple commands of a script, in order.

    Raises:
        Unread: a substitution, an open quote, or another thing that this reader does not take apart.
    """
    return _Reader(text).read()
