"""Use of files, other machines and values different each time by cells, judged by words.

Words suffice for a judge that may refuse too much. They are followed through functions, classes, instances, and other names of
these, but not through values, nor through containers filled by a call.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from kernelexec.rules.replay_safety.names import parse_cell

#: Words of cells that read or list files, and of those that change files.
_READS = re.compile(
    r"read|load|open|scan|fromfile|fromtxt|glob|listdir|iterdir|walk|exists|is_file|is_dir|\bstat\b|\bcd\b|chdir"
)
_CHANGES = re.compile(
    r"open\(|write|savefig|\.save|dump|to_(?:csv|parquet|pickle|json|excel|feather|hdf|sql|html|file)|shutil|unlink|rmtree|"
    r"os\.(?:remove|rename|replace)|mkdir|touch|^[^\S\n]*+[!%][^\n]*>",
    re.MULTILINE,
)
#: Words of cells that talk to others, and of those whose values differ each time.
_OTHERS = re.compile(
    r"requests|httpx|aiohttp|urllib|urlopen|socket|connect|cursor|execute\(|Session\(|boto|client", re.IGNORECASE
)
_DIFFERS = re.compile(
    r"uuid|urandom|secrets|\btime\(|time\.|\bnow\(|today\(|perf_counter|getpid|default_rng\(\)|SystemRandom|tempfile|environ|"
    r"Thread|Timer|Executor|Pool\(|Process\(|Parallel|async|await|create_task|ensure_future"
)
#: Words of cells whose values differ in a new kernel, which has another state of random numbers and no display of before.
_DIFFERS_IN_NEW = re.compile(r"rand|shuffle|sample|choice|display")
_NAMES = re.compile(r"\w+")


class OutsideUse:
    """A judge of cells in their order, with a memory of the functions of earlier cells.

    Args:
        has_module: whether the session can change the source of a module, and so its effects are unknown.
    """

    def __init__(self, has_module: Callable[[str], bool]) -> None:
        self._has_module = has_module
        self._callables: dict[str, bool] = {}
        """Names of functions that may use files; true for those that may do more, or are not seen."""
        self._classes: set[str] = set()
        self._unseen = ""
        """A module that has bound names that are not known."""

    def learn(self, source: str) -> None:
        """Remember the functions defined or named by a cell."""
        tree = parse_cell(source)
        try:
            for node in _walk_statements(tree) if tree is not None else ():
                self._learn_node(node)
        except RecursionError:
            self._unseen = self._unseen or "a cell that is nested too deeply"

    def _learn_node(self, node: ast.AST) -> None:
        match node:
            case ast.Import() | ast.ImportFrom():
                self._learn_import(node)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                self._add([name], self._judge(ast.unparse(node)))
                if isinstance(node, ast.ClassDef) and name in self._callables:
                    self._classes.add(name)
            case ast.Assign(targets=targets, value=value):
                self._learn_value(targets, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
                self._learn_value([target], value)
            case ast.For(target=target, iter=value):
                self._learn_value([target], value)
            case ast.Call(args=[ast.Constant(value="run"), ast.Constant(value=str(line)), *_]) if line.strip():
                self._unseen = self._unseen or line.split()[-1]  # `%run`

    def explain_difference(self, source: str, *, is_new: bool) -> str:
        """Return why a cell may have other values or effects than before; empty without a reason.

        ``is_new`` means a repetition in a new kernel, with another state of random numbers and without earlier displays.
        """
        if word := _DIFFERS.search(source) or (_DIFFERS_IN_NEW.search(source) if is_new else None):
            return f"its values may be others each time (`{word[0]}`)"
        if word := _OTHERS.search(source):
            return f"it may talk to others (`{word[0]}`)"
        if self._unseen:
            return f"it may use functions of `{self._unseen}`, whose effects are not known"
        unknown = [name for name in self._find_called(source) if self._callables[name]]
        return f"it uses `{min(unknown)}`, whose effects are not known" if unknown else ""

    def reads_files(self, source: str) -> bool:
        """Return whether a cell may read or list files."""
        return bool(_READS.search(source) or self._find_called(source))

    def changes_files(self, source: str) -> bool:
        """Return whether a cell may change files."""
        return bool(_CHANGES.search(source) or self._unseen or self._find_called(source))

    def _find_called(self, source: str) -> set[str]:
        return self._callables.keys() & _NAMES.findall(source)

    def _judge(self, code: str) -> bool | None:
        """Return whether code may do more than use files; None for code without a sign of either."""
        called = self._find_called(code)
        if _OTHERS.search(code) or _DIFFERS.search(code) or any(self._callables[name] for name in called):
            return True
        return False if called or _READS.search(code) or _CHANGES.search(code) else None

    def _add(self, names: list[str], does_more: bool | None) -> None:  # noqa: FBT001 - of `_judge`
        if does_more is not None:
            self._callables |= {name: does_more or self._callables.get(name, False) for name in names}

    def _learn_import(self, node: ast.Import | ast.ImportFrom) -> None:
        module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            is_own = self._has_module((module or alias.name).partition(".")[0])
            if is_own and alias.name == "*":
                self._unseen = self._unseen or module
            elif alias.asname or module or is_own:
                name = alias.asname or alias.name.partition(".")[0]
                self._add([name], does_more=True if is_own else self._judge(f"{module}.{alias.name}("))

    def _learn_value(self, targets: list[ast.expr], value: ast.expr) -> None:
        """Remember new names of functions mentioned but not called, and instances of classes."""
        names = [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
        for node in _list_uncalled(value):
            match node:
                case ast.Lambda():
                    self._add(names, self._judge(ast.unparse(node)))
                case ast.Attribute(attr=attribute):
                    self._add(names, self._judge(f".{attribute}("))
                case ast.Name(id=name) if name == "open" or name in self._callables:
                    self._add(names, self._judge(name))
        for call in ast.walk(value):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in self._classes:
                self._add(names, self._callables[call.func.id])


def _walk_statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes of a cell in order, without those inside functions and classes."""
    nodes: list[ast.AST] = [tree]
    while nodes:
        yield (node := nodes.pop())
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            nodes += reversed(list(ast.iter_child_nodes(node)))


def _list_uncalled(value: ast.expr) -> Iterator[ast.Lambda | ast.Name | ast.Attribute]:
    """Yield the visible functions mentioned but not called in an expression."""
    nodes: list[ast.AST] = [value]
    while nodes:
        match nodes.pop():
            case ast.Lambda() as node:
                yield node
            case ast.Name() as node:
                yield node
            case ast.Attribute(value=owner) as node:
                yield node
                nodes.append(owner)
            case ast.Call(func=func, args=args, keywords=keywords):
                if isinstance(func, ast.Attribute) and not isinstance(func.value, ast.Name):
                    nodes.append(func.value)
                nodes += [*args, *(keyword.value for keyword in keywords)]
            case node:
                nodes += ast.iter_child_nodes(node)
