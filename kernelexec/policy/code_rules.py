"""Rules for Python code: modules that it must not import, and built-in functions that it must not use.

Code is judged by its syntax tree, so lookalikes may run:
``import operator``, ``model.eval()``, ``x = "import sys"``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from kernelexec.config import Config
from kernelexec.policy.refusal import Refusal, shorten_command

#: Names and modules that a validator of AG2's tutorials refuses, and modules that reach the network.
TUTORIAL_MODULES = frozenset(["os", "subprocess", "sys", "requests", "urllib", "socket", "http"])
TUTORIAL_NAMES = frozenset(["exec", "eval", "open", "file", "__import__", "globals", "locals"])
_WAYS_TO_BUILTINS = frozenset(["__builtins__", "__globals__", "__subclasses__", "__loader__", "__import__"])


@dataclass(frozen=True, slots=True)
class CodeRules:
    """Modules, by their first name, that may not be imported, and names of built-in functions that may not be used."""

    modules: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Return the rules of a configuration."""
        rules, tutorial = config.rules, config.rules.code == "tutorial"
        modules, names = (TUTORIAL_MODULES, TUTORIAL_NAMES) if tutorial else (frozenset[str](), frozenset[str]())
        return cls(modules | set(rules.forbidden_modules), names | set(rules.forbidden_names))

    @property
    def has_rules(self) -> bool:
        """Tell whether there is any rule."""
        return bool(self.modules or self.names)

    def check(self, source: str) -> Refusal | None:
        """Return the refusal of code, or None if it may run."""
        if not self.has_rules:
            return None
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError) as exc:
            return Refusal("unread", shorten_command(source), f"It is not understood as Python: {exc}", "Correct the syntax.")
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
