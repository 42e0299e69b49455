"""Telling an MCP client of the server, in its own settings, of which all else stays as it is."""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kernelexec.cli.stdio import CommandFailed, eprint, here, write_any
from kernelexec.config import jsonc
from kernelexec.config.client_settings import Client, Scope, client_of, reached, settings_path, started
from kernelexec.config.clients import server_entry
from kernelexec.provisioning.platform import HERE

#: What clients take as a server's name.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KNOWN = 1
#: What some editors begin a file with; it stays.
_BOM = "\ufeff"
_PRIVATE, _SHARED = 0o600, 0o644


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be told to which client."""

    client: Client
    name: str
    scope: Scope
    entry: Mapping[str, Any]
    replace: bool = False
    """Whether an entry of that name may go."""


def ordered(
    client: str,
    *,
    name: str,
    scope: str,
    url: str | None,
    variable: str | None,
    options: Sequence[str],
    replace: bool = False,
) -> Order:
    """What was asked for, checked.

    Raises:
        CommandFailed: it does not fit together.
        InvalidConfig: no such client, or it has no such setting.
    """
    found = client_of(client)
    if not _NAME.fullmatch(name):
        raise CommandFailed(f"--name {name!r:.100}: it is 1 to 64 letters, digits, dashes and underscores.")
    if scope not in ("user", "project"):
        raise CommandFailed(f"--scope {scope!r:.50}: it is user or project.")
    if variable is not None and (url is None or not _VARIABLE.fullmatch(variable)):
        message = "--token-env: it is the name of an environment variable that has the token, for a server at --url."
        raise CommandFailed(message)
    if url is None:
        if "--http" in options:
            raise CommandFailed("--http: clients do not start such a server: start it yourself, and give its address by --url.")
        entry = started(found, server_entry(options, cwd=here()))
    else:
        if options:
            raise CommandFailed(f"{options[0]}: a server at --url has options of its own: give it to `kernelexec mcp --http`.")
        _check(url)
        entry = reached(found, url, variable)
    return Order(found, name, "user" if scope == "user" else "project", entry, replace)


def show(order: Order) -> int:
    """Print what is to stand in the client's settings, and say on stderr which file that is."""
    write_any(sys.stdout, _with_entry(order, ""))
    eprint(f"{order.client.title}: this belongs into {_path(order)}")
    return 0


def install(order: Order) -> int:
    """Write it into the client's settings.

    Raises:
        CommandFailed: an entry of that name is there, or the file cannot be read, or written; it is as it was.
    """
    path = _path(order)
    try:
        target = path.resolve()
        found, before = _read(target)
        text = found.removeprefix(_BOM)
        if order.name in _servers(order, text) and not order.replace:
            message = (
                f"{path} has a server {order.name!r}, which stays as it is: --replace replaces it, --name gives another name."
            )
            raise CommandFailed(message, _KNOWN)
        made = found[: len(found) - len(text)] + _with_entry(order, text)
        _write(target, made, before, _PRIVATE if order.scope == "user" else _SHARED)
    except jsonc.Malformed as exc:
        write_any(sys.stdout, _with_entry(order, ""))
        message = f"{path}, line {exc.line}: {exc.why}. Nothing was changed; what belongs there is on stdout."
        raise CommandFailed(message) from exc
    except (OSError, RuntimeError) as exc:  # RuntimeError: a link that leads to itself
        why = getattr(exc, "strerror", None) or str(exc)
        raise CommandFailed(f"{path}: it cannot be changed: {why}.") from exc
    eprint(f"{order.client.title}: {order.name!r} is in {path} now. Restart it if it runs.")
    return 0


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise CommandFailed(f"--url {url!r:.200}: it is the server's address, as http://127.0.0.1:8000/mcp.")


def _path(order: Order) -> Path:
    try:
        home = Path.home()
    except RuntimeError as exc:
        raise CommandFailed("This user has no home directory: set HOME, or take --print.") from exc
    return settings_path(order.client, order.scope, platform=HERE.name, home=home, here=here(), environ=os.environ)


def _with_entry(order: Order, text: str) -> str:
    made: str = _module(order).with_entry(text, order.client.section, order.name, order.entry)
    return made


def _servers(order: Order, text: str) -> Mapping[str, Any]:
    """The servers that are there; none, too, where the text has another form, which is refused when it is to be changed."""
    found = _module(order).parsed(text) if text.strip() else {}
    servers = found.get(order.client.section) if isinstance(found, dict) else None
    return servers if isinstance(servers, dict) else {}


def _module(order: Order) -> Any:  # noqa: ANN401 - one of two modules with the same functions
    if order.client.form == "json":
        return jsonc
    try:
        from kernelexec.config import toml_text
    except ImportError as exc:
        raise CommandFailed("Codex's settings need tomlkit, which is not installed: pip install 'kernelexec[mcp]'.") from exc
    return toml_text


def _read(target: Path) -> tuple[str, os.stat_result | None]:
    """A file's text, and which state of it that is; empty where there is none."""
    try:
        with target.open("rb") as file:
            about = os.fstat(file.fileno())
            content = file.read()
    except FileNotFoundError:
        return "", None
    if not stat.S_ISREG(about.st_mode):
        raise CommandFailed(f"{target}: it is no plain file.")
    try:
        return content.decode("utf-8"), about
    except UnicodeDecodeError as exc:
        raise jsonc.Malformed(content.count(b"\n", 0, exc.start) + 1, "it is not UTF-8") from exc


def _write(target: Path, text: str, before: os.stat_result | None, mode: int) -> None:
    """Put the text in the file's place, whole or not at all, with its mode and owner; not if it has changed meanwhile."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(text.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        if before is not None and HERE.users and (before.st_uid, before.st_gid) != _owner(temporary):
            os.chown(temporary, before.st_uid, before.st_gid)
        Path(temporary).chmod(mode if before is None else stat.S_IMODE(before.st_mode))
        _refuse_changed(target, before)
        Path(temporary).replace(target)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise


def _refuse_changed(target: Path, before: os.stat_result | None) -> None:
    if _state(before) != _state(_seen(target)):
        raise CommandFailed(f"{target}: somebody changed it meanwhile: nothing was written. Try again.")


def _owner(path: str) -> tuple[int, int]:
    about = Path(path).stat()
    return about.st_uid, about.st_gid


def _seen(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _state(about: os.stat_result | None) -> tuple[int, ...]:
    return () if about is None else (about.st_ino, about.st_mtime_ns, about.st_size)
