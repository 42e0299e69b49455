"""Copy this image's Python, with loader and libraries, into a directory for use in any Linux image. Sent as text.

In the copies new paths overwrite the old ones, so loader and libraries find each other, and the other image needs no C
library at all. An environment variable with the paths would affect the other image's own programs too.
"""

import fcntl
import json
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
from pathlib import Path

#: Short, because it overwrites the old paths.
HOME = Path("/opt/kernelexec/rt")
LOADER = HOME / "ld"
WHOLE = HOME / "whole"
VERSION = "python{}.{}".format(*sys.version_info)
#: Files that are not needed at run time, or are useless without the rest of their image.
STANDARD = ("test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "dist-packages", "site-packages")
PACKAGES = ("pip", "pip-*", "setuptools", "setuptools-*", "pkg_resources", "_distutils_hack", "distutils-precedence.pth")
#: Libraries that the C library loads only when it needs them.
LATER = ("libgcc_s.so.1", "libnss_dns.so.2", "libnss_files.so.2", "libresolv.so.2")
INTERPRETER = 3  # PT_INTERP of elf(5)
TRIAL = "import ssl, sqlite3, ctypes, zmq, ipykernel, sys; assert sys.executable == sys.argv[1], sys.executable"


def loader_of(program: bytes) -> bytes:
    """Return the loader of a 64-bit program."""
    # Elf64_Ehdr has e_phoff at 32, e_phentsize and e_phnum at 54. Elf64_Phdr: p_type, p_flags, p_offset, p_vaddr, p_paddr,
    # p_filesz.
    (table,) = struct.unpack_from("<Q", program, 32)
    size, count = struct.unpack_from("<HH", program, 54)
    for number in range(count):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", program, table + number * size)
        if kind == INTERPRETER:
            return program[offset : offset + length].rstrip(b"\0")
    sys.exit("its Python is no program that a loader starts")


def written_over(program: bytes, old: bytes, new: bytes, fill: bytes) -> bytes:
    """Return the program with a new path over an old one, filled up to the old length."""
    if len(new) > len(old) or old not in program:
        sys.exit(f"{new!r} cannot be written over {old!r}")
    return program.replace(old, new + fill * (len(old) - len(new)))


def libraries(loader: str, files: list[Path]) -> dict[str, Path]:
    """Return the libraries needed by ``files``, by name, without libraries in packages, which are copied with them."""
    paths = {}
    for file in files:
        output = subprocess.run([loader, "--list", file], capture_output=True, text=True, check=False).stdout
        for name, path in re.findall(r"^\s*(\S+) => (/\S+)", output, re.MULTILINE):
            if "-packages/" not in path:
                paths[name] = Path(path)
    for directory in {path.parent for path in paths.values()}:
        paths |= {name: directory / name for name in LATER if (directory / name).exists()}
    return paths


def copy_tree(source: Path, target: Path, left_out: tuple[str, ...]) -> None:
    """Copy a directory, compiled files included."""
    ignored = shutil.ignore_patterns(*left_out)
    shutil.copytree(source, target, ignore=ignored, ignore_dangling_symlinks=True, dirs_exist_ok=True)


def write(path: Path, content: bytes) -> None:
    """Write a program."""
    path.write_bytes(content)
    path.chmod(0o755)


def fill() -> None:
    """Copy everything."""
    program = Path(sys.executable).resolve().read_bytes()
    loader = loader_of(program)
    standard = Path(sysconfig.get_path("stdlib"))
    packages = {Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("platlib"))}
    loaded = [path for directory in (standard, *packages) for path in directory.rglob("*.so*")]
    needed = libraries(loader.decode(), [Path(sys.executable).resolve(), *loaded])
    for directory in ("bin", "base/bin", "base/lib"):
        (HOME / directory).mkdir(parents=True)
    copy_tree(standard, HOME / "base/lib" / VERSION, STANDARD)
    for package in packages:
        copy_tree(package, HOME / "lib" / VERSION / "site-packages", PACKAGES)
    for name, path in needed.items():
        write(HOME / name, path.read_bytes())
    # The loader's own directory for libraries. Further slashes fill the length, and change no path.
    searched = str(needed["libc.so.6"].parent).removeprefix("/usr").encode() + b"/"
    linker = written_over(Path(os.fsdecode(loader)).read_bytes(), searched, bytes(HOME) + b"/", b"/")
    # No directory has this name: the cache and the preloads of the other image name libraries of another C library.
    write(LOADER, written_over(linker, b"/etc/ld.so.", b"/-/./ld.so.", b""))
    write(HOME / "base/bin" / VERSION, written_over(program, loader + b"\0", bytes(LOADER) + b"\0", b"\0"))
    for name in ("python3", "python", VERSION):
        (HOME / "bin" / name).symlink_to(f"../base/bin/{VERSION}")
    (HOME / "pyvenv.cfg").write_text(f"home = {HOME}/base/bin\n")
    subprocess.run([HOME / "bin/python3", "-c", TRIAL, HOME / "bin/python3"], check=True)


def clear() -> None:
    """Remove an unfinished copy."""
    for path in HOME.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != "lock":
            path.unlink()


if __name__ == "__main__":
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other containers may fill the same volume; a killed one leaves no lock
        if not WHOLE.exists():
            clear()
            fill()
            WHOLE.touch()  # last: without it the next container begins again
    sys.stdout.write("\nkernelexec=" + json.dumps({"python": platform.python_version()}) + "\n")
