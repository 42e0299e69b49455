"""The judge of cells by all rules of a configuration: those of commands first, then those of code.

Code is judged by its syntax tree, so lookalikes may run: ``import operator``, ``model.eval()``, ``x = "import sys"``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from kernelexec.cells import Cell, CodeCell, ShellCell
from kernelexec.config import Config
from kernelexec.rules.policy.magics import may_run_commands, split_cell
from kernelexec.rules.policy.refusal import Refusal, shorten_command

if TYPE_CHECKING:
    from kernelexec.rules.policy.command_check import CommandCheck

#: Names and modules that a validator of AG2's tutorials refuses, and modules that reach the network.
TUTORIAL_MODULES = frozenset(["os", "subprocess", "sys", "requests", "urllib", "socket", "http"])
TUTORIAL_NAMES = frozenset(["exec", "eval", "open", "file", "__import__", "globals", "locals"])
_WAYS_TO_BUILTINS = frozenset(["__builtins__", "__globals__", "__subclasses__", "__loader__", "__import__"])


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules for cells of an executor's sessions."""

    commands: CommandRules
    code: CodeRules

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Return the rules of a configuration."""
        return cls(CommandRules.from_config(config), CodeRules.from_config(config))

    def check(self, cell: Cell) -> Refusal | None:
        """Return the refusal of a cell, or None if it may run."""
        refusal = self.commands.check_cell(cell)
        if refusal is None and self.code.has_rules and isinstance(cell, CodeCell) and cell.language == "python":
            refusal = self.code.check(split_cell(cell.source).python)
        return refusal


@dataclass(frozen=True, slots=True)
class CommandRules:
    """The rules for the commands of a session.

    ``allowed`` and ``blocked`` are regular expressions, matched from the beginning of each simple command, with the words as
    expanded by a shell and a single blank between. ``match`` is the place: each ``command``, or the ``prefix`` of the whole
    text only, as in MassGen. A wrapper of another command (``env``, ``timeout``, ``sh -c``) need not be allowed itself. In
    ``sudo`` mode commands to change users and permissions are not dangerous.
    """

    allowed: tuple[re.Pattern[str], ...] = ()
    blocked: tuple[re.Pattern[str], ...] = ()
    sudo: bool = False
    match: Literal["command", "prefix"] = "command"
    dangers: bool = True

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Return the rules of a configuration."""
        rules, sudo = config.rules, config.isolation == "container" and config.container.sudo
        return cls(rules.allowed_commands, rules.blocked_commands, sudo, rules.match, rules.dangers)

    @property
    def has_rules(self) -> bool:
        """Whether there is any rule."""
        return self.dangers or bool(self.allowed or self.blocked)

    def check(self, text: str) -> Refusal | None:
        """Return the refusal of a text for a shell, or None if it may run."""
        return self._open_check().check_text(text) if self.has_rules else None

    def check_cell(self, cell: Cell) -> Refusal | None:
        """Return the refusal of a cell for its visible commands, or None if it may run."""
        if not self.has_rules:
            return None
        match cell:
            case ShellCell(persistent=True, command=text):
                return self.check(text)
            case ShellCell(source=source) | CodeCell(source=source, language="python") if may_run_commands(source):
                cell_parts = split_cell(source)
                refusals = (self.check(command) for command in cell_parts.commands)
                return next(filter(None, refusals), None) or self.check_python(cell_parts.python)
            case CodeCell(source=source, language="bash"):
                return self.check(source)
        return None

    def check_words(self, words: Sequence[str]) -> Refusal | None:
        """Return the refusal of a program with these words, or None if the program may start."""
        return self._open_check().check_words(words) if self.has_rules else None

    def check_python(self, source: str) -> Refusal | None:
        """Return the refusal of Python code for commands started by literal words, or None if the code may run."""
        return self._open_check().check_python(source) if self.has_rules else None

    def _open_check(self) -> CommandCheck:
        from kernelexec.rules.policy.command_check import CommandCheck  # noqa: PLC0415 - most cells have no command to read

        return CommandCheck(self.allowed, self.blocked, self.sudo, self.match, self.dangers)


@dataclass(frozen=True, slots=True)
class CodeRules:
    """The rules for Python code: forbidden modules, by their first name, and forbidden names of built-in functions."""

    modules: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Return the rules of a configuration."""
        rules, tutorial = config.rules, config.rules.code == "tutorial"
        modules, names = (TUTORIAL_MODULES, TUTORIAL_NAMES) if tutorial else (frozenset[str](), frozenset[str]())
        return cls(modules | set(rules.forbidden_modules), names)

    @property
    def has_rules(self) -> bool:
        """Whether there is any rule."""
        return bool(self.modules or self.names)

    def check(self, source: str) -> Refusal | None:
        """Return the refusal of code, or None if it may run."""
        if not self.has_rules:
            return None
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError) as exc:
            return Refusal("unread", shorten_command(source), f"It is not understood as Python: {exc}", "Correct the syntax.")
        # Names that the cell defines itself are not the built-in functions of these names.
        defined_names = {
            node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        }
        defined_names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        return next((refusal for node in ast.walk(tree) for refusal in self._check_node(node, defined_names)), None)

    def _check_node(self, node: ast.AST, defined_names: set[str]) -> Iterator[Refusal]:
        match node:
            case ast.Import(names=aliases):
                yield from (self._module(node, alias.name) for alias in aliases if self._is_forbidden(alias.name))
            case ast.ImportFrom(module=str() as name, level=0) if self._is_forbidden(name):
                yield self._module(node, name)
            case ast.Call(func=ast.Attribute(attr="import_module") | ast.Name(id="import_module"), args=[first, *_]):
                module = first.value if isinstance(first, ast.Constant) else None
                if not isinstance(module, str) or self._is_forbidden(module):
                    yield self._module(node, str(module or "a module that is computed"))
            case ast.Name(id=name) if self.names and (name in self.names - defined_names or name in _WAYS_TO_BUILTINS):
                yield self._name(node, name)
            case ast.Attribute(attr=name) if self.names and name in _WAYS_TO_BUILTINS:
                yield self._name(node, name)

    def _is_forbidden(self, module: str) -> bool:
        first = module.partition(".")[0]
        return first in self.modules or (first == "builtins" and bool(self.names))

    def _module(self, node: ast.AST, name: str) -> Refusal:
        allowed = f"All modules may be imported but {', '.join(sorted(self.modules))}."
        return Refusal("forbidden-module", shorten_command(ast.unparse(node)), f"It imports {name}", allowed)

    def _name(self, node: ast.AST, name: str) -> Refusal:
        allowed = f"All built-in functions may be used but {', '.join(sorted(self.names))}."
        return Refusal("forbidden-name", shorten_command(ast.unparse(node)), f"It uses {name}", allowed)
