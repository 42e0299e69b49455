"""A script in the few forms that the grammar of bash reads surely, and where commands stand within its words.

Lines that are joined are one, backquotes are ``$( )``, what is written down to be read is a word behind ``<``, and nothing
stands before a loop or a block that the grammar takes for a command's name. What it runs stays the same.
"""

from __future__ import annotations

import re

from kernelexec.policy.shell.errors import UnparsableScript
from kernelexec.policy.shell.normalized import HERE, LITERAL, Bounds, Here, Out, Plain

_DEPTH_MAX, _TRIES_MAX, _LOOK_BACK = 40, 100, 40
#: What a script holds that is not plain from the beginning.
_SIGN = re.compile(r"[\\`$]|<<|[<>]\(|\(\(|\b(?:time|coproc)\b|!\s")
_CODE = re.compile(r"[\\'\"`$<>()#\n]|(?<![^\s;&|(])(?:(?:case|esac|time|coproc)(?=[\s;&|()]|\Z)|!(?=\s))")
_QUOTED = re.compile(r'[\\"`$]')
_BRACE = re.compile(r"[\\\"'`$<>}]")
_ARITHMETIC = re.compile(r"[\\`$()\[\]]")
_ESCAPED = re.compile(r"\\([$`\\])")
_ESCAPED_IN_QUOTES = re.compile(r'\\([$`\\"])')
_ANSI_C = re.compile(r"\$'(?:[^'\\]|\\.)*'", re.DOTALL)
_EDITS = re.compile(r"\$\{[!#]?(?:\w+|[@*#?$!-])[#%/^,]")
_BACKQUOTED = re.compile(r"(?:[^`\\]|\\.)*`", re.DOTALL)
_EMPTY = re.compile(r"\$\([ \t\n]*\)")
_HERE_STRING = re.compile(r"<<<[ \t]*")
_HERE_START = re.compile(r"<<(?P<tabs>-?)[ \t]*(?P<word>(?:'[^'\n]*'|\"[^\"\n]*\"|\\.|[^\s;&|()<>'\"\\])+)")
_QUOTES = re.compile(r"\\(.)|['\"]")
_BLOCK = r"(?:[({]|(?:if|for|while|until|case|select)\b|\[\[|!\s)"
_BEFORE_BLOCK = re.compile(rf"(?:(?:time(?:[ \t]+-p)?|!|coproc(?:[ \t]+\w+(?=[ \t]+{_BLOCK}))?)[ \t]+)+(?={_BLOCK})")
_COMMAND_BEGINS = re.compile(r"(?:\A|[;&|({`\n)]|\b(?:then|do|else|elif|if|while|until|time|in|!))[ \t]*\Z")


def plain(text: str, literals: list[str]) -> Plain:
    """A script in plain form; ``literals`` gets the texts that nothing in it expands.

    Raises:
        UnparsableScript: it is not clear where a part of it ends.
    """
    if _SIGN.search(text) is None:
        return Plain(text, frozenset())
    out = Out()
    _Lexer(text, out, Bounds(literals)).code("")
    return out.plain()


class _Lexer:
    """Goes through a text once; each method reads one kind of part, from where it begins to behind its end."""

    def __init__(self, text: str, out: Out, bounds: Bounds) -> None:
        self._text, self._out, self._bounds, self._at = text, out, bounds, 0
        self._waiting: list[Here] = []
        self._unfilled = 0

    def _put(self, end: int) -> None:
        if end > self._at:
            text = self._text[self._at : end]
            if self._unfilled and "\n" in text:
                raise UnparsableScript("it is not clear where a here-document begins")
            self._out.parts.append(text)
            self._at = end

    def _next(self, signs: re.Pattern[str], end: str) -> str:
        """Go on to the next sign; its text."""
        match = signs.search(self._text, self._at)
        if match is None:
            self._put(len(self._text))
            if end:
                raise UnparsableScript(f"{end!r} is missing")
            return ""
        self._put(match.start())
        return match[0]

    def _escaped(self) -> None:
        if self._text.startswith("\\\n", self._at):
            self._at += 2
        else:
            self._put(min(self._at + 2, len(self._text)))

    def _deeper(self) -> None:
        self._bounds.depth += 1
        if self._bounds.depth > _DEPTH_MAX:
            raise UnparsableScript("its parts stand too deep in each other")

    def code(self, end: str) -> None:
        """Commands, to ``end`` or to the end of the text."""
        cases, outer, self._waiting = 0, self._waiting, []
        self._deeper()
        while sign := self._next(_CODE, end):
            match sign:
                case ")" if end and not cases:
                    break
                case "\n":
                    self._bodies()
                case "case" | "esac" if self._begins():
                    cases = max(0, cases + (1 if sign == "case" else -1))
                    self._put(self._at + len(sign))
                case "time" | "coproc" | "!" if self._begins() and (block := _BEFORE_BLOCK.match(self._text, self._at)):
                    self._at = block.end()
                case _:
                    self._sign(sign)
        if self._waiting:
            raise UnparsableScript("a here-document has no end")
        self._put(self._at + len(end))
        self._waiting = outer
        self._bounds.depth -= 1

    def _begins(self) -> bool:
        """Whether a command begins here."""
        return _COMMAND_BEGINS.search(self._text, max(0, self._at - _LOOK_BACK), self._at) is not None

    def _sign(self, sign: str) -> None:
        """A sign that means the same in all code."""
        match sign:
            case "\\":
                self._escaped()
            case "'":
                self._raw("'")
            case '"':
                self._quoted()
            case "`":
                self._backquotes(_ESCAPED)
            case "$":
                self._dollar(quoted=False)
            case "<" | ">":
                self._redirected()
            case "(" | "#":
                self._unquoted(sign)
            case _:
                self._put(self._at + len(sign))

    def _redirected(self) -> None:
        if string := _HERE_STRING.match(self._text, self._at):
            self._out.parts.append(f'< "{HERE}"')
            self._at = string.end()
        elif self._text.startswith("<<", self._at):
            self._here()
        elif self._text.startswith("(", self._at + 1):
            self._command(2)
        else:
            self._put(self._at + 1)

    def _unquoted(self, sign: str) -> None:
        """A parenthesis, or the beginning of a comment."""
        before = self._out.parts[-1] if self._out.parts else "\n"
        word_begins = isinstance(before, str) and before[-1] in " \t\n;&|("
        if sign == "#":
            end = self._text.find("\n", self._at)
            self._put(self._at + 1 if not word_begins else len(self._text) if end < 0 else end)
        elif not (word_begins and self._text.startswith("((", self._at) and self._arithmetic(2)):
            self._put(self._at + 1)
            self.code(")")

    def _raw(self, sign: str) -> None:
        end = self._text.find(sign, self._at + 1)
        if end < 0:
            raise UnparsableScript(f"{sign!r} is missing")
        self._put(end + 1)

    def _command(self, begin: int) -> None:
        self._out.parts.append(True)
        self._put(self._at + begin)
        self.code(")")
        self._out.parts.append(False)

    def _quoted(self) -> None:
        self._put(self._at + 1)
        while (sign := self._next(_QUOTED, '"')) != '"':
            self._live(sign)
        self._put(self._at + 1)

    def _live(self, sign: str) -> None:
        """A sign that means something in double quotes too."""
        if sign == "\\":
            self._escaped()
        elif sign == "`":
            self._backquotes(_ESCAPED_IN_QUOTES)
        else:
            self._dollar(quoted=True)

    def _backquotes(self, escaped: re.Pattern[str]) -> None:
        match = _BACKQUOTED.match(self._text, self._at + 1)
        if match is None or (self._unfilled and "\n" in match[0]):
            raise UnparsableScript("it is not clear where its backquotes end")
        within = escaped.sub(r"\1", match[0][:-1].replace("\\\n", ""))
        self._at = match.end()
        if not within.strip():
            return
        self._deeper()
        self._out.parts += [True, "$( " if within.startswith("(") else "$("]
        _Lexer(within, self._out, self._bounds).code("")
        self._out.parts += ["\n)" if "#" in within or "<<" in within else ")", False]
        self._bounds.depth -= 1

    def _dollar(self, *, quoted: bool) -> None:
        text, at = self._text, self._at
        if empty := _EMPTY.match(text, at):
            self._at = empty.end()
        elif text.startswith("$(", at):
            if not (text.startswith("$((", at) and self._arithmetic(3)):
                self._command(2)
        elif text.startswith("${", at):
            self._brace(quoted=quoted)
        elif text.startswith("$[", at):
            self._arithmetic(2)
        elif not quoted and (ansi_c := _ANSI_C.match(text, at)):
            self._put(ansi_c.end())
        elif text.startswith('$"', at) and not quoted:
            self._at += 1  # translated, where anybody does that
        else:
            self._put(at + 1)

    def _brace(self, *, quoted: bool) -> None:
        """``${ }``, in which single quotes are none where it stands in double ones, but for what edits a value."""
        if self._text[self._at + 2 : self._at + 3] in (" ", "\t", "\n", "|"):
            raise UnparsableScript("commands within ${ } are not followed")
        raw = not quoted or _EDITS.match(self._text, self._at) is not None
        self._deeper()
        self._put(self._at + 2)
        while (sign := self._next(_BRACE, "}")) != "}":
            match sign:
                case "'" if raw:
                    self._raw("'")
                case '"':
                    self._quoted()
                case "<" | ">" if not quoted and self._text.startswith("(", self._at + 1):
                    self._command(2)
                case "'" | "<" | ">":
                    self._put(self._at + 1)
                case "$":
                    self._dollar(quoted=quoted)
                case _:
                    self._live(sign)
        self._put(self._at + 1)
        self._bounds.depth -= 1

    def _arithmetic(self, begin: int) -> bool:
        """``(( ))``, ``$(( ))`` or ``$[ ]``; False where the parentheses are those of commands, and nothing is read."""
        start, made = self._at, len(self._out.parts)
        closing = "]" if self._text.startswith("$[", start) else "))"
        self._deeper()
        self._put(start + begin)
        depth = 0
        while sign := self._next(_ARITHMETIC, closing):
            if depth == 0 and self._text.startswith(closing, self._at):
                self._put(self._at + len(closing))
                break
            if depth == 0 and sign == ")" and closing == "))":
                self._at, self._bounds.tries = start, self._bounds.tries + 1
                del self._out.parts[made:]
                break
            if sign in "()[]":
                depth += sign in ("(", "[")
                depth -= sign in (")", "]") and depth > 0
                self._put(self._at + 1)
            else:
                self._live(sign)
        if self._bounds.tries > _TRIES_MAX:
            raise UnparsableScript("it is not clear what its parentheses mean")
        self._bounds.depth -= 1
        return self._at > start

    def _here(self) -> None:
        match = _HERE_START.match(self._text, self._at)
        if match is None:
            raise UnparsableScript("it is not clear where a here-document ends")
        word = match["word"]
        slot = Out()
        self._out.parts += ['< "', slot, '"']
        self._unfilled += 1
        self._waiting.append(Here(_QUOTES.sub(r"\1", word), bool(match["tabs"]), any(sign in word for sign in "'\"\\"), slot))
        self._at = match.end()

    def _bodies(self) -> None:
        """The line has ended: the here-documents that began in it."""
        waiting, self._waiting = self._waiting, []
        self._unfilled -= len(waiting)
        self._put(min(self._at + 1, len(self._text)))
        for here in waiting:
            body, self._at = here.body(self._text, self._at)
            if here.quoted or not ("$" in body or "`" in body):
                here.slot.parts.append(f"{LITERAL}{len(self._bounds.literals)}")
                self._bounds.literals.append(body if here.quoted else body.replace("\\\\", "\\"))
            else:
                here.slot.parts.append(HERE)
                _Lexer(body, here.slot, self._bounds).here()

    def here(self) -> None:
        """A here-document's body, as what stands in double quotes."""
        while sign := self._next(_QUOTED, ""):
            if sign == '"' or (sign == "\\" and self._text[self._at + 1 : self._at + 2] not in ("$", "`", "\\")):
                self._out.parts.append("\\")
                self._put(self._at + 1)
            elif sign == "`":
                self._backquotes(_ESCAPED)
            else:
                self._live(sign)
