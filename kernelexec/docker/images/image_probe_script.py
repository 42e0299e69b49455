"""Print facts about an image's own Python as a line of JSON. Sent as text; runs on old versions too."""

import importlib
import json
import os
import platform
import sys
import sysconfig


def version(package: str) -> "str | None":
    """Return the version of an installed package."""
    try:
        return str(importlib.import_module("importlib.metadata").version(package))
    except Exception:  # noqa: BLE001 - not installed, or unknown
        return None


def kernelspecs() -> "dict[str, dict[str, object]]":
    """Return the kernelspecs for every user of the image."""
    data = os.path.join(sysconfig.get_path("data"), "share")  # noqa: PTH118 - pathlib costs half of the start
    specs = {}  # type: dict[str, dict[str, object]]
    for share in (data, "/usr/local/share", "/usr/share"):
        kernels = os.path.join(share, "jupyter", "kernels")  # noqa: PTH118 - see above
        for name in sorted(os.listdir(kernels))[:64] if os.path.isdir(kernels) else ():  # noqa: PTH112, PTH208 - see above
            directory = os.path.join(kernels, name)  # noqa: PTH118 - see above
            try:
                with open(os.path.join(directory, "kernel.json"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
                    specs.setdefault(name.lower(), {"directory": directory, "spec": json.load(file)})
            except (OSError, ValueError):
                continue
    return specs


def failure() -> "str | None":
    """Return why ipykernel cannot be imported."""
    try:
        importlib.import_module("ipykernel.kernelapp")
    except BaseException as exc:  # noqa: BLE001 - any error keeps kernels from starting
        return type(exc).__name__ + ": " + str(exc)
    return None


if __name__ == "__main__":
    facts = {
        "python": platform.python_version(),
        "executable": sys.executable,
        "ipykernel": version("ipykernel"),
        "jupyter_client": version("jupyter_client"),
        "kernelspecs": kernelspecs(),
    }
    if "thorough" in sys.argv and facts["ipykernel"]:
        facts["failure"] = failure()
    # A line of its own, also after output of the image that has no newline at its end.
    sys.stdout.write("\nkernelexec=" + json.dumps(facts) + "\n")
