"""Effects of calls that must not happen twice: by full names, by names of methods, and by arguments."""

from __future__ import annotations

import ast
import re


def words(text: str) -> list[str]:
    """Return the words of a text; long lists are easier to read in this form."""
    return text.split()


#: The bare name of one of these counts as its call, since it may be handed on and called elsewhere.
EFFECTS: dict[str, str] = {
    **dict.fromkeys(
        words("""os.remove os.unlink os.rmdir os.removedirs shutil.rmtree send2trash.send2trash pathlib.Path.unlink
        pathlib.Path.rmdir"""),
        "deletes files",
    ),
    **dict.fromkeys(
        words("os.rename os.renames os.replace shutil.move pathlib.Path.rename pathlib.Path.replace"), "moves files"
    ),
    "os.truncate": "changes a file in place",
    **dict.fromkeys(words("input getpass.getpass breakpoint pdb.set_trace"), "asks for input"),
    **dict.fromkeys(words("exit quit sys.exit os._exit os.abort SystemExit"), "ends the kernel"),
    **dict.fromkeys(
        words("os.kill os.killpg signal.raise_signal signal.pthread_kill signal.pidfd_send_signal"), "sends a signal"
    ),
    **dict.fromkeys(words("os.fork os.forkpty pty.fork pty.spawn"), "starts a process"),
    **dict.fromkeys(
        words("""requests.post requests.put requests.patch requests.delete httpx.post httpx.put httpx.patch httpx.delete
        socket.create_server"""),
        "sends over the network",
    ),
    **dict.fromkeys(words("runpy.run_path runpy.run_module execfile"), "runs code that is not seen here"),
}
_STARTS = re.compile(r"os\.(?:exec|spawn|posix_spawn)\w+")
#: Calls that start a program; the first argument may be a command that can be judged.
STARTERS = frozenset(
    words("""os.system os.popen subprocess.run subprocess.call subprocess.check_call subprocess.check_output subprocess.Popen
    subprocess.getoutput subprocess.getstatusoutput asyncio.create_subprocess_shell asyncio.create_subprocess_exec""")
)
#: Methods whose names say enough, whatever they are called on.
METHODS: dict[str, str] = {
    **dict.fromkeys(words("unlink rmdir rmtree removedirs"), "deletes files"),
    **dict.fromkeys(
        words("""sendmail send_message sendall sendto sendmsg storbinary storlines put_object delete_object delete_objects
        upload_file upload_fileobj upload_blob upload_from_filename upload_from_string post chat_postMessage basic_publish
        exec_command invoke_shell send_json send_text send_bytes push_to_hub upload_folder create_issue create_pull"""),
        "sends over the network",
    ),
    **dict.fromkeys(
        words("commit executemany executescript insert_one insert_many update_one update_many delete_one callproc"),
        "writes to a database",
    ),
    **dict.fromkeys(words("delete_many replace_one bulk_write write_database copy_from copy_expert"), "writes to a database"),
    **dict.fromkeys(words("terminate kill send_signal"), "ends a process"),
}
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
_SQL_READS = re.compile(r"\s*(?:select|with|explain|show|describe|pragma|values)\b", re.IGNORECASE)
_SQL_WRITES = re.compile(
    r"\b(?:insert|update|delete|drop|alter|create|truncate|replace|merge|grant|call|copy)\b", re.IGNORECASE
)
#: Calls whose first argument may be a statement: it is judged if it surely writes.
_ASKERS = frozenset(words("sql query read_sql read_sql_query read_database run raw query_and_wait"))
_SQL_SURELY_WRITES = re.compile(
    r"\s*(?:insert\s+(?:or\s+\w+\s+|overwrite\s+)?into|delete\s+from|update\s+\S+\s+set|merge\s+into|replace\s+into|"
    r"truncate\s+table|alter\s+table|drop\s+(?:table|view|index|schema|database))\b",
    re.IGNORECASE,
)
_OPENERS = frozenset(
    words(
        "open io.open builtins.open os.fdopen "
        "codecs.open gzip.open bz2.open lzma.open aiofiles.open tarfile.open zipfile.ZipFile h5py.File "
        "netCDF4.Dataset numpy.memmap pandas.HDFStore pandas.ExcelWriter zarr.open"
    )
)
_DEFAULT_IN_PLACE = {"numpy.memmap": "r+", "pandas.HDFStore": "a", "zarr.open": "a", "h5py.File": "r"}
_ADDING = re.compile(r"a|[rU]b?t?\+|r\+")
_MOVED = re.compile(r"[./\\]")


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
    for rule in (_request, _opening, _statement, _export, _moving):
        if reason := rule(dotted, method, call):
            return reason
    return None


def constant(node: ast.AST | None) -> str | None:
    """Return the text of a literal expression, or None."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """Return an argument by its position or by its name."""
    keyword_value = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    return keyword_value if keyword_value is not None else (call.args[position] if position < len(call.args) else None)


def _request(dotted: str, method: str, call: ast.Call) -> str | None:
    """Judge HTTP requests by their arguments; on an unknown object only those that go to an address."""
    reason = f"it sends over the network (`{dotted}`)"
    if dotted in ("urllib.request.urlopen", "urllib.request.Request"):
        verb = argument(call, 9, "method")
        return reason if argument(call, 1, "data") is not None or (verb and constant(verb) not in _HTTP_READS) else None
    if method in ("request", "stream") and dotted.startswith(("requests.", "httpx.", "aiohttp.")):
        return reason if (constant(argument(call, 0, "method")) or "").upper() not in _HTTP_READS else None
    if method == "request" and (constant(argument(call, 0, "method")) or "").upper() in _HTTP_WRITES:
        return reason
    if method in ("put", "patch", "delete") and call.args and _starts_with(call.args[0], "http"):
        return reason
    is_socket = method == "send" and re.search(r"sock|conn|client|producer|ws", dotted.rpartition(".")[0], re.IGNORECASE)
    return reason if is_socket else None


def _starts_with(node: ast.expr, text: str) -> bool:
    first = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
    return (constant(first) or "").startswith(text)


def _opening(dotted: str, method: str, call: ast.Call) -> str | None:
    """Judge files that are opened to add to them or to change them in place."""
    if dotted == "shelve.open" or dotted.startswith("dbm."):
        return f"it changes a file in place (`{dotted}`)" if constant(argument(call, 1, "flag")) != "r" else None
    is_method = method == "open" and dotted not in _OPENERS and isinstance(call.func, ast.Attribute)
    if dotted not in _OPENERS and not is_method:
        return None
    mode = argument(call, 0 if is_method else (2 if dotted == "numpy.memmap" else 1), "mode")
    if mode is None:
        mode_text: str | None = _DEFAULT_IN_PLACE.get(dotted, "r")
    else:
        mode_text = constant(mode)
    if mode_text is None:
        return None if is_method else f"it opens a file in a way that cannot be seen (`{dotted}`)"
    return f"it adds to a file or changes it in place (`{dotted}`, mode {mode_text!r})" if _ADDING.match(mode_text) else None


def _statement(_dotted: str, method: str, call: ast.Call) -> str | None:
    """Judge SQL that writes or that is not literal."""
    if method in _ASKERS and isinstance(call.func, ast.Attribute) and call.args:
        shown = (constant(call.args[0]) or "").strip()
        return f"it writes to a database (`{shown[:40]}`)" if _SQL_SURELY_WRITES.match(shown) else None
    if method != "execute" or not isinstance(call.func, ast.Attribute) or not call.args:
        return None
    query = call.args[0]
    if isinstance(query, ast.Call) and query.args:  # text("...")
        query = query.args[0]
    if isinstance(query, ast.JoinedStr):
        pieces = [constant(part) or " ? " for part in query.values]
        query = ast.Constant("".join(pieces))
    statement = constant(query)
    if statement is None:
        return "it runs a statement that cannot be seen (`.execute`)"
    reads = _SQL_READS.match(statement) and not _SQL_WRITES.search(statement)
    return None if reads else f"it writes to a database (`{statement.strip()[:40]}`)"


def _export(_dotted: str, method: str, call: ast.Call) -> str | None:
    """Judge tables that are appended, and objects that are deleted whole."""
    if method == "to_sql":
        return "it writes to a database (`.to_sql`)" if constant(argument(call, 3, "if_exists")) != "replace" else None
    if method in ("delete", "drop") and isinstance(call.func, ast.Attribute) and not call.args and not call.keywords:
        return f"it deletes something (`.{method}()`)"
    adds = method == "mode" and constant(argument(call, 0, "saveMode")) == "append"
    if adds or getattr(argument(call, 99, "append") if method.startswith("to_") else None, "value", False) is True:
        return f"it adds to what is there (`.{method}`)"
    mode = argument(call, 99, "mode") if method.startswith(("to_", "write_", "save")) else None
    if mode is not None and (constant(mode) or "a").startswith("a"):
        return f"it adds to a file (`.{method}`, mode 'a')"
    return None


def _moving(dotted: str, method: str, call: ast.Call) -> str | None:
    """Judge ``rename`` and ``replace`` with one argument: on a path, or to a text that looks like one."""
    if method not in ("rename", "replace") or not isinstance(call.func, ast.Attribute) or len(call.args) != 1 or call.keywords:
        return None
    target, owner = call.args[0], call.func.value
    if isinstance(target, ast.Dict | ast.List | ast.Lambda) or (isinstance(target, ast.Constant) and constant(target) is None):
        return None  # of a table
    pathlike = _is_path(owner) or _is_path(target) or re.search(r"path|file|dir", dotted.rpartition(".")[0], re.IGNORECASE)
    return f"it moves a file (`.{method}`)" if pathlike or _MOVED.search(constant(target) or "") else None


def _is_path(node: ast.expr) -> bool:
    """Tell whether an expression is visibly a path."""
    match node:
        case ast.BinOp(op=ast.Div()):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in ("Path", "PosixPath", "with_suffix", "with_name", "joinpath")
        case _:
            return False
