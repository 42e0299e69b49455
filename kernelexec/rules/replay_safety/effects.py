"""Effects of calls and shell commands, unsafe to repeat: by full names, by names of methods, and by arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from kernelexec.rules.policy.magics import UNKNOWN
from kernelexec.rules.policy.shell_reader import Command, UnparsableScript, read


def words(text: str) -> list[str]:
    """Return the words of a text, the readable form of long lists."""
    return text.split()


def _table(text: str) -> dict[str, str]:
    """Return the effect of each name, from lines of an effect and its names."""
    lines = (line.partition(":") for line in text.strip().splitlines())
    return {name: effect.strip() for effect, _, names in lines for name in names.split()}


#: The bare name of one of these counts as its call, since it may be handed on and called elsewhere.
EFFECTS = _table("""
    deletes files: os.remove os.unlink os.rmdir os.removedirs shutil.rmtree send2trash.send2trash pathlib.Path.unlink
    deletes files: pathlib.Path.rmdir
    moves files: os.rename os.renames os.replace shutil.move pathlib.Path.rename pathlib.Path.replace
    changes a file in place: os.truncate
    asks for input: input getpass.getpass breakpoint pdb.set_trace
    ends the kernel: exit quit sys.exit os._exit os.abort SystemExit
    sends a signal: os.kill os.killpg signal.raise_signal signal.pthread_kill signal.pidfd_send_signal
    starts a process: os.fork os.forkpty pty.fork pty.spawn
    sends over the network: requests.post requests.put requests.patch requests.delete httpx.post httpx.put httpx.patch
    sends over the network: httpx.delete socket.create_server
    runs code that is not seen here: runpy.run_path runpy.run_module execfile
""")
_STARTS = re.compile(r"os\.(?:exec|spawn|posix_spawn)\w+")
#: Calls that start a program; the first argument may be a command that can be judged.
STARTERS = frozenset(
    words("""os.system os.popen subprocess.run subprocess.call subprocess.check_call subprocess.check_output subprocess.Popen
    subprocess.getoutput subprocess.getstatusoutput asyncio.create_subprocess_shell asyncio.create_subprocess_exec""")
)
#: Methods whose names say enough, whatever they are called on.
METHODS = _table("""
    deletes files: unlink rmdir rmtree removedirs
    sends over the network: sendmail send_message sendall sendto sendmsg storbinary storlines put_object delete_object post
    sends over the network: delete_objects upload_file upload_fileobj upload_blob upload_from_filename upload_from_string
    sends over the network: chat_postMessage basic_publish exec_command invoke_shell send_json send_text send_bytes
    sends over the network: push_to_hub upload_folder create_issue create_pull
    writes to a database: commit executemany executescript insert_one insert_many update_one update_many delete_one callproc
    writes to a database: delete_many replace_one bulk_write write_database copy_from copy_expert
    ends a process: terminate kill send_signal
""")
#: Libraries whose objects act elsewhere, without calls that only read or connect.
_REMOTE = re.compile(
    r"(?:boto3|paramiko|fabric|smtplib|ftplib|socket|websockets?|kafka|docker)\b.*|requests(?:\.[Ss]ession)?|httpx(?:\.\w*Client)?"
    r"|aiohttp(?:\.ClientSession)?"
)
_REMOTE_ACTS = re.compile(
    r"(?:send|put|post|patch|delete|upload|create_(?!connection)|update|publish|terminate|run_|start_|stop_|exec|write|rename|"
    r"rmd|mkd|storbinary|storlines|remove|copy|modify|invoke|sudo)\w*|run"
)
_HTTP_READS, _HTTP_WRITES = frozenset({"GET", "HEAD", "OPTIONS"}), frozenset({"POST", "PUT", "PATCH", "DELETE"})
_SQL_READS = re.compile(r"(?i)\s*(?:select|with|explain|show|describe|pragma|values)\b")
_SQL_WRITES = re.compile(r"(?i)\b(?:insert|update|delete|drop|alter|create|truncate|replace|merge|grant|call|copy)\b")
#: Calls whose first argument may be a statement: it is judged if it surely writes.
_ASKERS = frozenset(words("sql query read_sql read_sql_query read_database run raw query_and_wait"))
_SQL_SURELY_WRITES = re.compile(
    r"(?i)\s*(?:insert\s+(?:or\s+\w+\s+|overwrite\s+)?into|delete\s+from|update\s+\S+\s+set|merge\s+into|replace\s+into|"
    r"truncate\s+table|alter\s+table|drop\s+(?:table|view|index|schema|database))\b"
)
_OPENERS = frozenset(
    words("""open io.open builtins.open os.fdopen codecs.open gzip.open bz2.open lzma.open aiofiles.open tarfile.open
    zipfile.ZipFile h5py.File netCDF4.Dataset numpy.memmap pandas.HDFStore pandas.ExcelWriter zarr.open""")
)
_DEFAULT_IN_PLACE = {"numpy.memmap": "r+", "pandas.HDFStore": "a", "zarr.open": "a", "h5py.File": "r"}
_ADDING = re.compile(r"a|[rU]b?t?\+|r\+")
_MOVED = re.compile(r"[./\\]")
#: Commands that read, whatever their arguments, or that change their own shell only.
_READING = frozenset(
    words("""cd export set unset alias unalias pwd ls cat head tail grep egrep fgrep wc sort uniq cut tr rev nl fold column comm
    join paste echo printf whoami id groups uname which type true false : test [ [[ diff cmp du df stat file md5sum sha1sum
    sha224sum sha256sum sha384sum sha512sum cksum b2sum basename dirname realpath readlink seq sleep hostname ps free nproc
    uptime lscpu jq tree strings hexdump xxd od locale umask shift local return exit wait read touch pushd popd dirs
    printenv""")
)
_PIP = r"(?:list|show|freeze|check|install|--version|-V|config|debug)(?: .*)?"
_GIT_READS = "status|log|diff|show|rev-parse|describe|ls-files|blame|shortlog|grep|cat-file|ls-tree"
_CURL_READS = r"-[sSfLIkvio]+|-O|--(?:silent|show-error|fail|location|head|insecure|include|output|compressed)"
#: Arguments with which other commands are safe to repeat; a blank in an argument is an underscore.
_REPEATABLE = {
    "find": r"(?!(?:.* )?-(?:delete|exec|execdir|ok|okdir|fprint|fprint0|fprintf|fls)(?:[ =]|$)).*",
    "rg": r"(?!(?:.* )?--pre(?:[ =]|$)).*",
    "date": r"(?!(?:.* )?(?:-[uR]*s|--set)).*",
    "tee": r"(?!(?:.* )?(?:-\w*a|--ap)).*",
    "mkdir": r"(?:.* )?(?:-p|--parents)(?: .*)?",
    "command": r"-[vV](?: .*)?",
    "python": rf"--version|-VV?|-m pip {_PIP}",
    "pip": _PIP,
    "git": rf"(?:(?:-C [^ ]+|--no-pager) )*(?:(?:{_GIT_READS})(?!.* (?:--output|-O|--open-files-in-pager)(?:[ =]|$))(?: .*)?"
    r"|branch(?: -a| -r| -vv?| --show-current)*|remote(?: -v)*|tag(?: -l)*|stash(?: list)+)",
    "curl": rf"(?:(?:[^- ][^ ]*|{_CURL_READS})(?: |$))*",
    "sed": r"-n (?:[\d,$+~_]*[pq=];?)+(?: .*)?",
}
_SHOWN_CHARS = 60


def reason_against_script(text: str) -> str | None:
    """Return the reason against repeating a shell script, or None. Unparsable scripts are not safe."""
    try:
        script = read(text)
    except UnparsableScript as exc:
        return f"its command is not judged: {exc}"
    if script.has_substitution:
        return "its command holds a command substitution, which is not judged"
    if script.has_background:
        return "it leaves a process behind (`&`)"
    return next((reason for command in script.commands if (reason := _reason_against_command(command))), None)


def reason_against_start(node: ast.Call) -> str | None:
    """Return the reason against starting the program of a call again, or None. Unknown programs are not safe."""
    first = node.args[0] if node.args else None
    elements = first.elts if isinstance(first, ast.List | ast.Tuple) else None
    argv = ["python" if ast.unparse(word) == "sys.executable" else constant(word) for word in elements or node.args]
    is_script = len(argv) == 1 and elements is None
    if elements and argv[0] in ("bash", "sh") and argv[1:2] == ["-c"]:
        argv, is_script = argv[2:3], True
    if not argv or argv[0] is None or elements == []:
        return "it starts a command that cannot be seen"
    return (
        reason_against_script(argv[0])
        if is_script
        else _reason_against_command(Command(tuple("?" if word is None else word for word in argv)))
    )


def _reason_against_command(command: Command) -> str | None:
    if command.appends:
        return f"it adds to the file {command.appends[0]} or changes it in place"
    if not command.words or _is_repeatable(command.words):
        return None
    return f"it runs `{' '.join(command.words).replace(UNKNOWN, '…')[:_SHOWN_CHARS]}`"


def _is_repeatable(argv: Sequence[str]) -> bool:
    name, rest = argv[0].rpartition("/")[2], argv[1:]
    if name == "env":
        rest = [word for word in rest if not re.match(r"[A-Za-z_]\w*\+?=", word, re.ASCII)]
        return not rest or (not rest[0].startswith("-") and _is_repeatable(rest))
    # A blank within a word would look like the border of two words, and so could hide an option from the patterns.
    text = " ".join(re.sub(r"\s", "_", word) for word in rest)
    pattern = _REPEATABLE.get(re.sub(r"^(python|pip)[\d.]+$", r"\1", name))
    return name in _READING or (pattern is not None and re.fullmatch(pattern, text) is not None)


def reason_against_name(dotted: str) -> str | None:
    """Return the reason against using an object of this full name twice, or None."""
    if dotted in EFFECTS:
        return f"it {EFFECTS[dotted]} (`{dotted}`)"
    return f"it starts a process (`{dotted}`)" if _STARTS.fullmatch(dotted) else None


def reason_against_call(dotted: str, call: ast.Call) -> str | None:
    """Return the reason against making a call twice, by its arguments and its object, or None."""
    owner, _, method = dotted.rpartition(".")
    if isinstance(call.func, ast.Attribute) and method in METHODS and not owner.startswith(("multiprocessing", "signal")):
        return f"it {METHODS[method]} (`.{method}`)"
    if _REMOTE.fullmatch(owner) and _REMOTE_ACTS.fullmatch(method):
        return f"it sends over the network (`{dotted}`)"
    reasons = (rule(dotted, method, call) for rule in (_request, _opening, _statement, _export, _moving))
    return next(filter(None, reasons), None)


def constant(node: ast.AST | None) -> str | None:
    """Return the text of a literal expression, or None."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """Return an argument by its position or by its name."""
    keyword_value = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    return keyword_value if keyword_value is not None else (call.args[position] if position < len(call.args) else None)


def _request(dotted: str, method: str, call: ast.Call) -> str | None:
    """Judge HTTP requests by their arguments; on an unknown object only requests to a literal address."""
    verb, owner = (constant(argument(call, 0, "method")) or "").upper(), dotted.rpartition(".")[0]
    if dotted in ("urllib.request.urlopen", "urllib.request.Request"):
        other = argument(call, 9, "method")
        sends = argument(call, 1, "data") is not None or (other is not None and constant(other) not in _HTTP_READS)
    elif method in ("request", "stream") and dotted.startswith(("requests.", "httpx.", "aiohttp.")):
        sends = verb not in _HTTP_READS
    elif method in ("put", "patch", "delete") and call.args:
        address = call.args[0].values[0] if isinstance(call.args[0], ast.JoinedStr) and call.args[0].values else call.args[0]
        sends = (constant(address) or "").startswith("http")
    else:
        is_socket = method == "send" and re.search(r"sock|conn|client|producer|ws", owner, re.IGNORECASE) is not None
        sends = is_socket or (method == "request" and verb in _HTTP_WRITES)
    return f"it sends over the network (`{dotted}`)" if sends else None


def _opening(dotted: str, method: str, call: ast.Call) -> str | None:
    """Judge files opened for appending or for changes in place."""
    if dotted == "shelve.open" or dotted.startswith("dbm."):
        return f"it changes a file in place (`{dotted}`)" if constant(argument(call, 1, "flag")) != "r" else None
    is_method = method == "open" and dotted not in _OPENERS and isinstance(call.func, ast.Attribute)
    if dotted not in _OPENERS and not is_method:
        return None
    mode = argument(call, 0 if is_method else (2 if dotted == "numpy.memmap" else 1), "mode")
    text = _DEFAULT_IN_PLACE.get(dotted, "r") if mode is None else constant(mode)
    if text is None:
        return None if is_method else f"it opens a file in a way that cannot be seen (`{dotted}`)"
    return f"it adds to a file or changes it in place (`{dotted}`, mode {text!r})" if _ADDING.match(text) else None


def _statement(_dotted: str, method: str, call: ast.Call) -> str | None:
    """Judge SQL: statements that write, and in ``execute`` statements that are not literal."""
    if method not in {*_ASKERS, "execute"} or not isinstance(call.func, ast.Attribute) or not call.args:
        return None
    query = call.args[0]
    if method in _ASKERS:
        shown = (constant(query) or "").strip()
        return f"it writes to a database (`{shown[:40]}`)" if _SQL_SURELY_WRITES.match(shown) else None
    if isinstance(query, ast.Call) and query.args:  # text("...")
        query = query.args[0]
    if isinstance(query, ast.JoinedStr):
        query = ast.Constant("".join(constant(part) or " ? " for part in query.values))
    statement = constant(query)
    if statement is None:
        return "it runs a statement that cannot be seen (`.execute`)"
    reads = _SQL_READS.match(statement) and not _SQL_WRITES.search(statement)
    return None if reads else f"it writes to a database (`{statement.strip()[:40]}`)"


def _export(_dotted: str, method: str, call: ast.Call) -> str | None:
    """Judge appended tables, and objects deleted whole."""
    if method == "to_sql":
        return "it writes to a database (`.to_sql`)" if constant(argument(call, 3, "if_exists")) != "replace" else None
    if method in ("delete", "drop") and isinstance(call.func, ast.Attribute) and not call.args and not call.keywords:
        return f"it deletes something (`.{method}()`)"
    append = argument(call, 99, "append") if method.startswith("to_") else None
    if getattr(append, "value", False) is True or (method == "mode" and constant(argument(call, 0, "saveMode")) == "append"):
        return f"it adds to what is there (`.{method}`)"
    mode = argument(call, 99, "mode") if method.startswith(("to_", "write_", "save")) else None
    return (
        f"it adds to a file (`.{method}`, mode 'a')" if mode is not None and (constant(mode) or "a").startswith("a") else None
    )


def _moving(dotted: str, method: str, call: ast.Call) -> str | None:
    """Judge ``rename`` and ``replace`` with a single argument: on a path, or to a text like a path."""
    if method not in ("rename", "replace") or not isinstance(call.func, ast.Attribute) or len(call.args) != 1 or call.keywords:
        return None
    target, owner = call.args[0], call.func.value
    if isinstance(target, ast.Dict | ast.List | ast.Lambda) or (isinstance(target, ast.Constant) and constant(target) is None):
        return None  # of a table
    pathlike = _is_path(owner) or _is_path(target) or re.search(r"path|file|dir", dotted.rpartition(".")[0], re.IGNORECASE)
    return f"it moves a file (`.{method}`)" if pathlike or _MOVED.search(constant(target) or "") else None


def _is_path(node: ast.expr) -> bool:
    """Return whether an expression is visibly a path."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Div)
    called = node.func if isinstance(node, ast.Call) else None
    name = getattr(called, "id", getattr(called, "attr", None))
    return name in ("Path", "PosixPath", "with_suffix", "with_name", "joinpath")
