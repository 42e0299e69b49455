"""The check for pure cells: a pure cell only computes and shows a value, so that skipping it leaves the kernel unchanged.

The check reads the syntax tree, and its rules are a list of allowed syntax. A pure cell has no statement that binds a name. It
calls builtins without side effects, methods that change no object, and functions of earlier cells that do the same with local
names. The values of all variables that it reads are plain data (``launcher/features/fingerprint``), so their methods and
operators are those of Python, numpy or pandas.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernelexec.replay_safety.effects import words
from kernelexec.replay_safety.names import changes_in, parse_cell

_BUILTINS = frozenset(
    words("""abs all any ascii bin bool bytes chr complex dict display divmod enumerate filter float format frozenset hex int
    isinstance issubclass iter len list map max min next oct ord pow print range repr reversed round set slice sorted str sum
    tuple zip ArithmeticError AssertionError Exception IndexError KeyError OverflowError RuntimeError TypeError ValueError
    ZeroDivisionError""")
)
#: Methods and functions of Python's mutable types, of numpy and of pandas that change none of their arguments.
_METHODS = frozenset(
    words("""keys values items get copy union intersection difference symmetric_difference issubset issuperset isdisjoint
    mean sum std var min max median mode count describe head tail groupby agg corr cov value_counts unique nunique sort_values
    sort_index idxmax idxmin argmax argmin argsort cumsum cumprod prod quantile round abs astype tolist to_list to_dict isna
    notna isnull notnull fillna dropna drop_duplicates dot transpose ravel flatten all any nlargest nsmallest
    reset_index set_index pivot_table isin between total_seconds isoformat weekday""")
).union(
    name
    for kind in (str, bytes, int, float, tuple, frozenset, range)
    for name in vars(kind)
    if not name.startswith("_") and name != "partition"  # numpy's sorts in place
)
#: Attributes that contain data. Other attributes may be methods, which must be called or be listed above.
_ATTRIBUTES = frozenset(
    words("""shape size ndim dtype dtypes columns index T loc iloc at iat str dt cat name names empty real imag numerator
    denominator start stop step year month day hour minute second microsecond days seconds""")
)
_MODULES = frozenset({"math", "cmath", "numpy", "pandas"})
#: Arguments by which a method or function writes into an object.
_WRITING_ARGUMENTS = frozenset({"out", "inplace", "file", "where", None})
#: Names by which code can bind or change names without syntax that this module sees.
_DYNAMIC = frozenset(
    words("exec eval compile globals locals vars setattr delattr __import__ __builtins__ builtins importlib ctypes gc inspect")
)
_DYNAMIC_ATTRIBUTES = frozenset(
    words("run_line_magic run_cell_magic user_ns modules __dict__ __code__ __globals__ __defaults__")
)
_EXPRESSIONS = (
    ast.Constant, ast.Name, ast.expr_context, ast.Attribute, ast.Subscript, ast.Slice, ast.Starred, ast.Call, ast.keyword,
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
    ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension,
    ast.JoinedStr, ast.FormattedValue, ast.Lambda, ast.arguments, ast.arg,
)  # fmt: skip
_STATEMENTS = (ast.Expr, ast.If, ast.Assert, ast.Pass)
_LOCAL_STATEMENTS = (
    *_STATEMENTS, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For, ast.While, ast.Return, ast.Raise, ast.Break, ast.Continue
)  # fmt: skip
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class ImpureError(Exception):
    """Code that may do more than compute and show a value."""


class PurityChecker:
    """The functions and modules that one kernel's cells have bound; ``is_opaque`` is true after a cell that may bind others."""

    def __init__(self) -> None:
        self.is_opaque = False
        self._functions: dict[str, ast.FunctionDef] = {}
        self._modules: set[str] = set()
        self._bound: set[str] = set()

    def record_cell(self, source: str, *, ok: bool) -> None:
        """Record the names that a cell has bound. The functions and modules of a cell that failed are not trusted."""
        tree = parse_cell(source)
        if tree is None:
            self.is_opaque = self.is_opaque or ok
            return
        self.is_opaque = self.is_opaque or any(map(_is_dynamic, ast.walk(tree)))
        for statement in tree.body:
            for name, _ in changes_in(ast.Module([statement], [])):
                self._bound.add(name)
                self._functions.pop(name, None)
                self._modules.discard(name)
            match statement:
                case ast.FunctionDef(name=name, decorator_list=[]) if ok:
                    self._functions[name] = statement
                case ast.Import(names=aliases) if ok:
                    self._modules |= {alias.asname or alias.name for alias in aliases if alias.name in _MODULES}

    def find_variables(self, source: str) -> frozenset[str] | None:
        """Return the variables that a pure cell and its functions read, or None for a cell that may not be pure."""
        tree = None if self.is_opaque else parse_cell(source)
        if tree is None or not tree.body:
            return None
        try:
            return frozenset(_PurityReader(self._functions, self._modules, self._bound).read(tree))
        except (ImpureError, RecursionError):
            return None


class _PurityReader:
    """One reading of a cell and all functions that it calls."""

    def __init__(self, functions: dict[str, ast.FunctionDef], modules: set[str], bound: set[str]) -> None:
        self._functions = functions
        self._modules = modules
        self._bound = bound
        self._seen: set[str] = set()

    def read(self, tree: ast.Module) -> Iterator[str]:
        """Yield the variables that the cell reads; raise ``ImpureError`` if it may do more than compute."""
        for statement in tree.body:
            yield from self._statement(statement, _STATEMENTS, frozenset())

    def _statement(self, node: ast.stmt, allowed: tuple[type[ast.stmt], ...], local: frozenset[str]) -> Iterator[str]:
        if not isinstance(node, allowed):
            raise ImpureError
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                yield from self._statement(child, allowed, local)
            else:
                yield from self._expression(child, local)

    def _function(self, name: str) -> Iterator[str]:
        if name in self._seen:
            return
        self._seen.add(name)
        function = self._functions[name]
        defaults = (*function.args.defaults, *(default for default in function.args.kw_defaults if default is not None))
        if not all(isinstance(default, ast.Constant) for default in defaults):
            raise ImpureError
        _check_augmented_names(function)
        local = _find_bound_names(function)
        for statement in function.body:
            yield from self._statement(statement, _LOCAL_STATEMENTS, local)

    def _expression(self, node: ast.AST, local: frozenset[str]) -> Iterator[str]:
        if not isinstance(node, _EXPRESSIONS):
            raise ImpureError
        match node:
            case ast.Name(id=name, ctx=ast.Load()) if name not in local:
                yield from self._name(name)
            case ast.Attribute(ctx=ast.Load()) if self._is_math(node.value, local):
                return
            case ast.Attribute(ctx=ast.Load(), attr=attribute) if attribute in _METHODS or attribute in _ATTRIBUTES:
                pass
            case ast.Attribute() | ast.Subscript(ctx=ast.Store() | ast.Del()):
                raise ImpureError
            case ast.Call():
                yield from self._call(node, local)
                return
        if isinstance(node, _COMPREHENSIONS):
            yield from self._expression(node.generators[0].iter, local)
        if isinstance(node, (*_COMPREHENSIONS, ast.Lambda)):
            local |= _find_bound_names(node)
        for child in ast.iter_child_nodes(node):
            yield from self._expression(child, local)

    def _name(self, name: str) -> Iterator[str]:
        if name in self._functions:
            yield from self._function(name)
        elif name in self._modules or name.startswith("_"):
            raise ImpureError
        elif name in self._bound:
            yield name
        elif name not in _BUILTINS:
            raise ImpureError

    def _call(self, node: ast.Call, local: frozenset[str]) -> Iterator[str]:
        function = node.func
        if any(keyword.arg in _WRITING_ARGUMENTS for keyword in node.keywords):
            raise ImpureError
        match function:
            case ast.Name(id=name) if name not in local and (name in self._functions or name not in self._bound):
                yield from self._name(name)
            case ast.Attribute(value=value, attr=method):
                allowed = 2 if hasattr(str, method) else 1  # further arguments may be objects to write into
                has_more = len(node.args) > allowed or any(isinstance(argument, ast.Starred) for argument in node.args)
                if not self._is_math(value, local) and (method not in _METHODS or has_more):
                    raise ImpureError
                if not (isinstance(value, ast.Name) and value.id in self._modules and value.id not in local):
                    yield from self._expression(value, local)
            case _:
                raise ImpureError
        for argument in (*node.args, *node.keywords):
            yield from self._expression(argument, local)

    def _is_math(self, node: ast.expr, local: frozenset[str]) -> bool:
        return isinstance(node, ast.Name) and node.id in ("math", "cmath") and node.id in self._modules - local


def _is_dynamic(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name) | ast.alias(name=name):
            return name.partition(".")[0] in _DYNAMIC or name == "*"
        case ast.Attribute(attr=name):
            return name in _DYNAMIC_ATTRIBUTES
        case ast.Global():
            return True
    return False


def _find_bound_names(scope: ast.AST) -> frozenset[str]:
    """Return the names that a function, a lambda or a comprehension binds, without the names of inner scopes."""
    names: set[str] = set()
    pending = [*ast.iter_child_nodes(scope)]
    while pending:
        node = pending.pop()
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                names.add(name)
        if not isinstance(node, (*_COMPREHENSIONS, ast.Lambda)):
            pending += ast.iter_child_nodes(node)
    return frozenset(names)


def _check_augmented_names(function: ast.FunctionDef) -> None:
    """Raise ``ImpureError`` if a name in ``+=`` and the like may refer to a mutable object: it must start as a constant."""
    updated = {
        node.target.id for node in ast.walk(function) if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }
    arguments = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name()], value=ast.Constant()):
                continue
            case ast.Assign(targets=targets) if not updated.isdisjoint(_list_targets(*targets)):
                raise ImpureError
            case ast.AnnAssign(target=target) | ast.For(target=target) if not updated.isdisjoint(_list_targets(target)):
                raise ImpureError
    if not updated.isdisjoint(arguments):
        raise ImpureError


def _list_targets(*targets: ast.expr) -> set[str]:
    return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
