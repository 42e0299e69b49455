"""Names of other libraries for what classes here have under their own: the error of a missing attribute says what to write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: What to write instead of the attribute of a session, by its name elsewhere.
SESSION: Mapping[str, str] = {
    **dict.fromkeys(("run", "run_code", "run_cell"), "session.execute(code)"),
    **dict.fromkeys(("shell", "run_command"), 'session.execute_command("ls")'),
    "run_file": 'session.execute("%run a.py")',
    "set": 'session.put("x", 1)',
    "push": 'session.put({"x": 1})',
    "eval": 'session.execute("x + 1").value',
    "upload": 'session.files.upload("a.csv")',
    "download": 'session.files.download("a.csv")',
    "pip_install": 'session.install("x")',
    "reset": "session.restart()",
    "id": "session.name",
    "work_dir": "session.workspace",
    "info": "session.stats()",
}
EXECUTOR: Mapping[str, str] = {
    **dict.fromkeys(("execute", "run", "run_code"), "executor.session().execute(code)"),
    "close_all": "executor.close()",
    "names": "executor.sessions()",
}
RESULT: Mapping[str, str] = dict.fromkeys(("result", "data"), "result.value")
PACKAGE: Mapping[str, str] = {"connect": 'kernelexec.attach("a")'}


def explain_attribute(names: Mapping[str, str]) -> Callable[[object, str], Any]:
    """Return the ``__getattr__`` of a class, which is called for missing attributes only."""

    def fail(self: object, name: str) -> Any:  # noqa: ANN401 - of a property
        if hasattr(type(self), name):  # a property has failed with an AttributeError of its own
            return object.__getattribute__(self, name)
        message = f"{type(self).__name__!r} object has no attribute {name!r}{explain_name(names, name)}"
        raise AttributeError(message, name=name, obj=self)

    return fail


def explain_name(names: Mapping[str, str], name: str) -> str:
    """Return the end of the message about a missing name: what to write instead, or an empty text."""
    return f": write {names[name]}" if name in names else ""
