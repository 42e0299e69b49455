"""This package as a wheel, for images that it runs in: from its installed files, without an index or a build tool."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import zipfile
from pathlib import Path

_PACKAGE, PACKAGE_DIRECTORY = "kernelexec", Path(__file__).resolve().parents[2]
_WHEEL = b"Wheel-Version: 1.0\nGenerator: kernelexec\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
#: The oldest time of a zip file, so that the same files always make the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)


def own_wheel(images: Path) -> dict[str, bytes]:
    """Return the wheel by its file name: the same bytes for the same files.

    Args:
        images: the directory of the recipes of images, which belong to the package.
    """
    installed = importlib.metadata.distribution(_PACKAGE)
    about = f"{_PACKAGE}-{installed.version}.dist-info"
    files = {f"{_PACKAGE}/{name}": path.read_bytes() for name, path in _package_files(PACKAGE_DIRECTORY).items()}
    files |= {f"{_PACKAGE}/images/{name}": path.read_bytes() for name, path in _package_files(images).items()}
    files |= {f"{about}/{name}": (installed.read_text(name) or "").encode() for name in ("METADATA", "entry_points.txt")}
    files[f"{about}/WHEEL"] = _WHEEL
    digests = {name: base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=") for name, content in files.items()}
    lines = [f"{name},sha256={digest.decode()},{len(files[name])}" for name, digest in digests.items()]
    files[f"{about}/RECORD"] = "\n".join([*lines, f"{about}/RECORD,,", ""]).encode()
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as wheel:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, content)
    return {f"{_PACKAGE}-{installed.version}-py3-none-any.whl": target.getvalue()}


def _package_files(directory: Path) -> dict[str, Path]:
    paths = {path.relative_to(directory): path for path in sorted(directory.rglob("*")) if path.is_file()}
    return {name.as_posix(): path for name, path in paths.items() if "__pycache__" not in name.parts}
