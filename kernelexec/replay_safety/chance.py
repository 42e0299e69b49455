"""Judges whether a cell could come out otherwise if it were run again after the same: by time, chance, or what others do.

It sees what ``side_effects.SideEffectChecker`` sees, and no more: what a library draws by itself is not. In doubt it could.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from kernelexec.recorded_history import PastCell
from kernelexec.replay_safety import effect_tables
from kernelexec.replay_safety.effect_tables import words
from kernelexec.replay_safety.side_effects import SideEffectChecker

#: Libraries and calls by their full names: whoever names one uses it. Of ``time`` only sleeping is always the same.
_VARYING = re.compile(
    r"time\.(?!sleep$)\w+|datetime\.(?:datetime|date)\.(?:now|today|utcnow)|uuid\.(?:uuid[14]|getnode)|random\.SystemRandom.*|"
    r"os\.(?:open|urandom|getpid|getppid|times|getloadavg|getrandom|[fl]?stat\w*|access|listdir|scandir|f?walk|f?chdir)|"
    r"os\.path\.get[amc]time|sys\.(?:path|path_hooks|meta_path|modules|argv)(?:\..*)?|__import__|shutil\.disk_usage|"
    r"(?:os|shutil)\.get_terminal_size|email\.utils\.(?:localtime|formatdate|make_msgid)|logging\.(?:Formatter|basicConfig)|"
    r"(?:secrets|posix|_thread|_random|timeit|resource|psutil|importlib|gc|tracemalloc|glob|socket|requests|httpx|aiohttp|http|urllib3|urllib\.request|websockets?|ftplib|"
    r"smtplib|boto3|paramiko|docker|threading|multiprocessing|concurrent|asyncio|signal|tempfile|openai|anthropic)\..*"
)
#: What draws from a generator that the whole process has, and how that one is set.
_DRAWING = re.compile(
    r"(random)\.(?!seed$|setstate$|Random$)\w+|(torch)\.(?:rand\w*|normal|poisson|bernoulli|multinomial)|"
    r"(numpy\.random)\.(?!seed$|set_state$|default_rng$|RandomState$|SeedSequence$|Generator$|PCG64\w*$|MT19937$|Philox$|SFC64$)\w+"
)
_SEEDS = {"random.seed": "random", "numpy.random.seed": "numpy.random", "torch.manual_seed": "torch"}
#: What makes a generator of its own, which is the same each time if it is given a number.
_GENERATORS = frozenset(
    words("""random.Random numpy.random.default_rng numpy.random.RandomState numpy.random.SeedSequence numpy.random.PCG64
    numpy.random.PCG64DXSM numpy.random.MT19937 numpy.random.Philox numpy.random.SFC64""")
)
#: Modules that nobody follows further than by their names: handed on, or taken apart, they may be used in any way.
_MODULES = frozenset(words("time random numpy.random secrets uuid timeit resource importlib sys.modules"))
#: What else has such parts: all that it has is not taken by names that nobody sees.
_STARRED = _MODULES | frozenset(words("os os.path posixpath shutil sys torch"))
_ADDRESS = re.compile(r"(?:https?|ftps?|s3|gs|az|abfss?|hdfs|wss?)://", re.IGNORECASE)
#: What a statement of SQL asks of the clock, or of chance.
_ASKING = re.compile(
    r"\b(?:select|insert|update|values|with)\b[\s\S]*\b(?:now|today|random|rand|uuid\w*|newid|getdate|sysdate|current_\w+|localtime\w*)\b",
    re.IGNORECASE,
)
_ASKING_BY_NOTHING = re.compile(
    r"\bselect\b[\s\S]*\b(?:(?:date|time|datetime|julianday|unixepoch)\s*\(\s*\)|strftime\s*\([^,()]*\))", re.IGNORECASE
)
_CLOCKS = frozenset(words("now today utcnow"))
_METHODS = _CLOCKS | frozenset(words("urandom read_html stat lstat iterdir glob rglob iglob __hash__"))
#: Paths of devices and of the system's figures, and those in a workspace at which nobody looks for changes.
_UNSEEN_PATHS = re.compile(
    r"/(?:dev(?!/null\Z)|proc|sys)/.*|(?:.*/)?(?:\.git|\.venv|node_modules|__pycache__|\.ipynb_checkpoints|\.mypy_cache|"
    r"\.pytest_cache|\.kernelexec)(?:/.*)?|(?:.*/)?(?:cell-\d{4,}-\d.*|[^/]*\.ipynb)"
)
#: What writes files, by the names of methods and functions: a kernel may write in more places than are looked at.
_WRITES = frozenset(
    words("""write_text write_bytes mkdir makedirs touch symlink symlink_to hardlink_to link savefig imsave copy2 copyfile
    copytree copystat mkfifo mknod chmod chown utime savetxt savez savez_compressed tofile to_csv to_parquet to_feather
    to_excel to_hdf to_pickle to_stata to_sql to_gbq to_orc to_disk save_model
    write_image write_html NamedTemporaryFile ExcelWriter"""),
)
_TO_A_PATH = frozenset(words("to_json to_html to_xml to_latex to_markdown to_string dump save"))
#: What opens a file in a mode, and the modules whose function it is where it is named with a dot.
_OPENERS, _OF_MODULES = frozenset(words("open ZipFile TarFile File HDFStore memmap Dataset")), re.compile(r"[a-z0-9_]+\.\w+")
#: Variables that differ from one session, terminal or desktop to the next, though all else is alike.
PASSING = re.compile(
    r"_|SHLVL|PWD|OLDPWD|TERM\w*|COLUMNS|LINES|WINDOWID|INVOCATION_ID|JOURNAL_STREAM|TMPDIR|(?:KERNELEXEC|XDG|SSH|DBUS|PYTEST|"
    r"COVERAGE|VSCODE|TMUX|STY|ITERM|KITTY|WEZTERM|VTE|GNOME|KDE|GIT_ASKPASS|DISPLAY|WAYLAND)\w*"
)
_ENVIRONMENT = frozenset(words("os.environ os.environb os.getenv"))
_UNSEEN = frozenset(words("exec eval compile id hash input globals locals vars"))
#: Magics that set something, always alike.
_STEADY = frozenset(words("matplotlib pylab config precision alias colors xmode"))


class Chance(SideEffectChecker):
    """Remembers what of it was set to a number by an earlier cell.

    Args:
        follows: whether a module, by its first name, is known beyond what cells can write; others may do anything.
    """

    def __init__(self, follows: Callable[[str], bool] = lambda _name: True) -> None:
        super().__init__()
        self._follows = follows
        self._seeded: set[str] = set()
        self._steps: frozenset[ast.AST] = frozenset()
        self._parts: frozenset[ast.AST] = frozenset()
        self._told: frozenset[ast.AST | None] = frozenset()

    def reason(self, cell: PastCell) -> str | None:
        """The reason why this cell could come out otherwise, or None. What it set counts only if it ended well."""
        before = set(self._seeded)
        why = super().reason(cell)
        if cell.ename is not None:
            self._seeded = before
        return why

    def _of_cell(self, tree: ast.Module) -> Iterator[str]:
        self._steps = frozenset(step.value for step in tree.body if isinstance(step, ast.Expr))  # which surely run
        self._parts = frozenset(node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute))
        self._told = frozenset(_told(node) for node in ast.walk(tree))
        for node in ast.walk(tree):
            if (text := effect_tables.constant(node)) is not None and (why := _of_text(text)):
                yield why
        yield from super()._of_cell(tree)

    def _of(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from self._imported(node)
        yield from super()._of(node)

    def _imported(self, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        module = node.module if isinstance(node, ast.ImportFrom) else None
        for name in [module] if module else [alias.name for alias in node.names]:
            if not self._follows(name.partition(".")[0]):
                yield f"it imports a file of the workspace, which is not followed (`{name}`)"
        starred = module in _STARRED or (module and _VARYING.fullmatch(f"{module}.all"))
        if starred and any(alias.name == "*" for alias in node.names):
            yield f"it takes all that `{module}` has"

    def _named(self, node: ast.Name | ast.Attribute) -> Iterator[str]:
        yield from super()._named(node)
        if node not in self._parts and (dotted := self._dotted(node)) in _MODULES:
            yield f"it hands on `{dotted}`, and may use it in any way"
        if isinstance(node, ast.Attribute) and node.attr in _CLOCKS:
            yield f"it depends on time (`.{node.attr}`)"
        if node not in self._told and self._dotted(node) in _ENVIRONMENT:
            yield "it may read any variable of the environment"

    def _of_name(self, dotted: str) -> str | None:
        if _VARYING.fullmatch(dotted):
            return f"it depends on time, chance or other programs (`{dotted}`)"
        if (drawing := _DRAWING.fullmatch(dotted)) and not self._seeded.intersection(drawing.groups()):
            return f"it draws at random (`{dotted}`)"
        return None

    def _call(self, node: ast.Call) -> Iterator[str]:
        dotted = self._dotted(node.func)
        method = dotted.rpartition(".")[2]
        named = [word.value for word in node.keywords if word.arg in ("seed", "a", "x", "entropy")]
        numbered = any(isinstance(given, ast.Constant) and given.value is not None for given in (*node.args[:1], *named))
        if _writes(dotted, node):
            yield f"it may write a file (`{dotted}`)"
        elif dotted in _SEEDS and numbered:
            self._seeded |= {_SEEDS[dotted]} if node in self._steps else set()
        elif dotted in _SEEDS or (dotted in _GENERATORS and not numbered):
            yield f"it draws at random (`{dotted}`)"
        elif dotted in effect_tables.STARTERS or (dotted.startswith("get_ipython.") and not _is_steady(method, node)):
            yield f"it runs what is not followed (`{dotted}`)"
        elif dotted in _UNSEEN:
            yield f"it depends on what is not seen here (`{dotted}`)"
        elif isinstance(node.func, ast.Attribute) and method in _METHODS:
            yield f"it depends on time (`.{method}`)"
        elif dotted == "getattr" and (why := self._looked_up(node)):
            yield why
        elif (
            method == "sample" and "numpy.random" not in self._seeded and not any(_is_numbered(word) for word in node.keywords)
        ):
            yield f"it draws at random (`.{method}`)"

    def _looked_up(self, call: ast.Call) -> str | None:
        name = effect_tables.constant(effect_tables.argument(call, 1, "name"))
        if name is None:
            return "it looks up a name that is not seen here (`getattr`)"
        found = ast.Attribute(call.args[0], name, ast.Load())
        return next(self._named(found), None)


def _of_text(text: str) -> str | None:
    """Why a cell that has this text in it could come out otherwise, or None."""
    if _ADDRESS.search(text):
        return "it may read over the network: it holds an address"
    asks = "%(asctime)" in text or _ASKING.search(text) or _ASKING_BY_NOTHING.search(text)
    if asks or text.lower().rpartition(".")[2] in _CLOCKS:
        return "it asks for the time, or chance, in a text"
    if _UNSEEN_PATHS.fullmatch(text):
        return f"it may read what nobody looks at for changes ({text:.80})"
    return f"it reads the variable {text}, which differs from one session to the next" if PASSING.fullmatch(text) else None


def _told(node: ast.AST) -> ast.AST | None:
    """The environment, where one variable of it is read by its name, as in ``os.environ["A"]`` or ``os.getenv("A")``."""
    match node:
        case ast.Subscript(value=value, slice=ast.Constant()):
            return value
        case ast.Call(func=ast.Attribute(value=value, attr="get"), args=[ast.Constant(), *_]):
            return value
        case ast.Call(func=value, args=[ast.Constant(), *_]):
            return value
    return None


def _writes(dotted: str, call: ast.Call) -> bool:
    """Whether a call writes a file, as far as it shows: by its name, or by the mode in which it opens one."""
    method = dotted.rpartition(".")[2]
    if method in _OPENERS:
        is_function = isinstance(call.func, ast.Name) or dotted == method or _OF_MODULES.fullmatch(dotted) is not None
        mode = effect_tables.constant(effect_tables.argument(call, 1 if is_function else 0, "mode"))
        return mode is not None and (mode[:1] in {"w", "a", "x"} or "+" in mode)
    return method in _WRITES or (method in _TO_A_PATH and bool(call.args or call.keywords))


def _is_numbered(word: ast.keyword) -> bool:
    return word.arg == "random_state" and isinstance(word.value, ast.Constant) and word.value.value is not None


def _is_steady(method: str, call: ast.Call) -> bool:
    return method == "run_line_magic" and bool(call.args) and effect_tables.constant(call.args[0]) in _STEADY
