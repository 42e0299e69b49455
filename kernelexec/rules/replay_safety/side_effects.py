"""Side effects of a cell, unsafe to repeat, judged by the syntax tree.

Only visible names are judged. They are followed through imports, simple assignments and the functions of earlier cells, not
through values. A function looked up by a computed name, hidden in a library, or taken out of a container is not seen. So a
passing cell is likely safe to repeat, no more. For every other cell there is a reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from kernelexec import cells
from kernelexec.errors import InvalidCode
from kernelexec.rules.recorded_history import RecordedCell
from kernelexec.rules.replay_safety import effects
from kernelexec.rules.replay_safety.effects import reason_against_script, words
from kernelexec.rules.replay_safety.names import COMPREHENSIONS, Function, free_names, parse_cell

_SOURCE_BYTES = 64 * 1024 * 1024
_SYNTAX_ERRORS = frozenset({"SyntaxError", "IndentationError", "TabError"})
_PYTHON_MAGICS = frozenset({"time", "timeit", "capture", "prun", "memit", "python", "py"})
_SHELL_MAGICS = frozenset({"bash", "sh", "sx", "system", "!"})
_SHOWING_MAGICS = frozenset({"html", "HTML", "javascript", "js", "latex", "markdown", "svg", "SVG"})
_LINE_MAGICS = frozenset(
    words("""cd pwd env set_env matplotlib pylab config load_ext reload_ext autoreload who whos who_ls precision pip conda mamba
    uv pinfo pinfo2 pdoc psource psearch pfile magic lsmagic alias colors xmode doctest_mode pprint automagic history
    dhist bookmark tb""")
)
_BUILTIN = re.compile(r"\A(?:builtins|__builtins__)\.")
_FILE_MAGICS = frozenset({"ls", "cat", "mkdir", "rm", "mv", "cp", "rmdir", "ll", "lf", "lk", "ldir", "lx"})


def reason_against(cell: RecordedCell) -> str | None:
    """Return the reason against repeating a cell, judged alone, or None."""
    return SideEffectChecker().reason(cell)


class SideEffectChecker:
    """A judge of cells in their order, with a memory of the imports and definitions of earlier cells."""

    def __init__(self) -> None:
        # By name, methods with a leading dot: the full name of the value; the reason against a function; the names used by a
        # function, which becomes unsafe with any of them; and its body, judged again when any of them is imported.
        self._known: dict[str, str] = {}
        self._unsafe: dict[str, str] = {}
        self._uses: dict[str, frozenset[str]] = {}
        self._bodies: dict[str, list[Function]] = {}
        self._depth = 0
        self._learns_all = False

    def learn(self, cell: RecordedCell) -> None:
        """Learn all definitions of a cell that has run."""
        self._learns_all = True
        try:
            self.reason(cell)
        finally:
            self._learns_all = False

    def reason(self, cell: RecordedCell) -> str | None:
        """Return the reason against repeating this cell, or None. Definitions after this place of the cell are not learned."""
        if cell.kind == "command" or cell.language == "bash":
            return reason_against_script(cell.source)
        if cell.language != "python":
            return f"it is {cell.language}: only Python and shell commands can be judged"
        return self._code(cell.source, failed_to_parse=cell.status == "error" and cell.ename in _SYNTAX_ERRORS)

    def _code(self, source: str, *, failed_to_parse: bool = False) -> str | None:
        try:
            cell = cells.parse(source, limit_bytes=_SOURCE_BYTES)
        except InvalidCode as exc:
            return str(exc)
        if isinstance(cell, cells.ShellCell) and "--bg" not in source.partition("\n")[0]:
            return reason_against_script(cell.command)
        tree = parse_cell(source)
        if tree is None:
            return None if failed_to_parse else "it cannot be parsed as Python"
        try:
            reasons = self._reasons(tree.body)
            return next(iter(list(reasons) if self._learns_all else reasons), None)
        except RecursionError:
            return "it is nested too deeply to be judged"

    def _reasons(self, body: Sequence[ast.AST]) -> Iterator[str]:
        for node in body:
            yield from self._of(node)

    def _of(self, node: ast.AST) -> Iterator[str]:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from self._reasons((*node.decorator_list, node.args))
                self._function(node.name, node)
                return
            case ast.ClassDef():
                yield from self._class(node)
                return
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda() as value):
                yield from self._of(value.args)
                self._function(name, value)
                return
            case ast.Import() | ast.ImportFrom():
                self._import(node)
                if not self._depth:
                    self._again({alias.asname or alias.name.partition(".")[0] for alias in node.names})
            case ast.For() | ast.AsyncFor() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                loops = node.generators if isinstance(node, COMPREHENSIONS) else [node]
                for part in [part for loop in loops for part in ast.walk(loop.target) if isinstance(part, ast.Name)]:
                    self._forget(part.id)
            case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()):
                yield from self._reasons_of_name(node)
            case ast.Call():
                yield from self._call(node)
        yield from self._reasons(list(ast.iter_child_nodes(node)))
        self._learn(node)

    def _function(self, name: str, node: Function) -> None:
        self._define(name, self._body(node))
        self._uses[name], self._bodies[name] = free_names(node), [node]

    def _body(self, node: Function) -> str | None:
        """Return the reason against calling a function, or None. The function's own names are forgotten afterwards."""
        self._depth += 1
        before = dict(self._known), dict(self._unsafe), dict(self._uses), dict(self._bodies)
        for argument in ast.walk(node.args):
            if isinstance(argument, ast.arg):
                self._forget(argument.arg)
        reason = next(self._reasons([node.body] if isinstance(node, ast.Lambda) else node.body), None)
        # Methods stay: instances of a function's classes may leave it, and a method is known by its name alone.
        before[1].update({name: text for name, text in self._unsafe.items() if name.startswith(".")})
        self._known, self._unsafe, self._uses, self._bodies = before
        self._depth -= 1
        return reason

    def _again(self, names: set[str]) -> None:
        """Judge again the functions with these names, defined before the import."""
        for user in [user for user, used in self._uses.items() if not names.isdisjoint(used)]:
            if user in self._uses and (reason := next(filter(None, map(self._body, self._bodies[user])), None)):
                self._define(user, reason)

    def _class(self, node: ast.ClassDef) -> Iterator[str]:
        yield from self._reasons((*node.decorator_list, *node.bases))
        self._forget(node.name)
        for part in node.body:
            match part:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    function: Function = part
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda() as function):
                    yield from self._of(function.args)
                case _:
                    yield from self._of(part)
                    continue
            owner = node.name if name.startswith("__") else f".{name}"
            if reason := self._body(function):
                self._define(owner, reason)
            else:
                self._unsafe.pop(f".{name}", None)
                self._uses[owner] = self._uses.get(owner, frozenset()) | free_names(function)
                self._bodies.setdefault(owner, []).append(function)

    def _define(self, name: str, reason: str | None) -> None:
        """Remember the reason against a function, or a method with a leading dot, and against all functions using this name."""
        use = "it calls" if name.startswith(".") else "it uses"
        if use == "it uses":
            self._forget(name)
        if reason:
            self._unsafe[name] = reason if reason.startswith(use) else f"{use} `{name}`, and {reason}"
            for user in [user for user, used in self._uses.items() if name in used]:
                if self._uses.pop(user, None) is not None:
                    self._define(user, self._unsafe[name])

    def _forget(self, name: str) -> None:
        for table in (self._known, self._unsafe, self._uses, self._bodies):
            table.pop(name, None)
        # A name bound by the user hides the built-in function of this name, so its use must not be judged as a call of that.
        if name in effects.EFFECTS or name == "open":
            self._known[name] = f"own.{name}"

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            self._forget(name)
            if isinstance(node, ast.Import):
                self._known[name] = alias.name if alias.asname else name
            elif alias.name == "*":
                known = (*effects.EFFECTS, *effects.STARTERS)
                self._known |= {full.rpartition(".")[2]: full for full in known if full.startswith(f"{node.module}.")}
            else:
                self._known[name] = f"{node.module}.{alias.name}"

    def _learn(self, node: ast.AST) -> None:
        """Remember the origin of a name's value, if the value is a plain call or another name."""
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=value)
                | ast.withitem(context_expr=value, optional_vars=ast.Name(id=name))
            ):
                self._forget(name)
                full_name = self._full_name(value)
                if "." in full_name or full_name == "get_ipython" or (full_name and isinstance(node, ast.withitem)):
                    self._known[name] = full_name

    def _full_name(self, node: ast.AST | None) -> str:
        """Return the full name of an expression or of its called function, imports followed, or an empty text."""
        match node:
            case ast.Name(id=name):
                return _BUILTIN.sub("", self._known.get(name, name))
            case ast.Attribute(value=value, attr=attr):
                return _BUILTIN.sub("", f"{self._full_name(value)}.{attr}")
            case ast.Call(func=inner) | ast.Await(value=inner):
                return self._full_name(inner)
        return ""

    def _reasons_of_name(self, node: ast.Name | ast.Attribute) -> Iterator[str]:
        name = node.id if isinstance(node, ast.Name) else f".{node.attr}"
        if name in self._unsafe:
            yield self._unsafe[name]
        if reason := effects.reason_against_name(self._full_name(node)):
            yield reason

    def _call(self, node: ast.Call) -> Iterator[str]:
        dotted = self._full_name(node.func)
        code = effects.constant(node.args[0] if node.args else None)
        if dotted.startswith("get_ipython.") and (reason := self._magic(dotted.rpartition(".")[2], node)):
            yield reason
        elif dotted in effects.STARTERS:
            if reason := effects.reason_against_start(node):
                yield f"{reason}, by `{dotted}`"
        elif dotted in ("exec", "eval", "compile"):
            if reason := self._code(code) if code else "it is not seen here":
                yield f"it runs code by `{dotted}`: {reason}"
        elif reason := effects.reason_against_call(dotted, node):
            yield reason

    def _magic(self, method: str, node: ast.Call) -> str | None:
        """Return the reason against the call of a magic, or None."""
        name, line, body = [*(effects.constant(argument) for argument in node.args), None, None, None][:3]
        if method in ("system", "getoutput"):
            return reason_against_script(name) if name else "it runs a command that cannot be seen"
        if method == "run_line_magic" and name:
            return self._line_magic(name, line or "")
        if method == "run_cell_magic" and name:
            return self._cell_magic(name, line or "", body or "")
        return f"it calls `get_ipython().{method}`" if method.startswith(("run_", "ex", "safe_")) else None

    def _line_magic(self, name: str, line: str) -> str | None:
        if name in ("time", "timeit"):
            return self._code(line) if line.strip() else None
        if name in ("sx", "system", "sc"):
            return reason_against_script(line)
        if name in _FILE_MAGICS:
            return reason_against_script(f"{'ls' if name.startswith('l') else name} {line}")
        if name == "pip" and line.split()[:1] == ["uninstall"]:
            return "it runs `%pip uninstall`"
        known = name in _LINE_MAGICS or (name == "reset" and "-f" in line.split())
        return None if known else f"it runs `%{name}`, which is not judged"

    def _cell_magic(self, name: str, line: str, body: str) -> str | None:
        if name in _PYTHON_MAGICS:
            return self._code(body) if body.strip() else None
        if name in _SHELL_MAGICS:
            return "it leaves a process behind" if "--bg" in line.split() else reason_against_script(body)
        if name in ("writefile", "file"):
            return f"it adds to a file (`%%{name} -a`)" if {"-a", "--append"} & set(line.split()) else None
        return None if name in _SHOWING_MAGICS else f"it runs `%%{name}`, which is not judged"
