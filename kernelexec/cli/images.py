"""What the commands about images do."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from kernelexec.cli.status import SIGNAL_BASE, CommandFailed
from kernelexec.cli.surroundings import minded, say, write_any
from kernelexec.cli.table import show_table
from kernelexec.config.images import NAMES
from kernelexec.docker.client import Engine
from kernelexec.docker.images.build import BuiltImage, build_image, built_images
from kernelexec.docker.images.build_options import BuildOrder
from kernelexec.docker.images.image_check import Finding, judge
from kernelexec.docker.images.image_probe import probe_image
from kernelexec.docker.images.recipes import how_to_get, recipe, write_template
from kernelexec.docker.images.wheels import fetch_wheels
from kernelexec.errors import ImageMissing, KernelexecError

_MEGA = 1_000_000  # sizes as the engine's own client says them


def build_one(order: BuildOrder) -> int:
    """Build it, and print its name, size and the seconds that it took.

    Raises:
        CommandFailed: a signal ended it; nothing of it stays.
    """
    begun = time.monotonic()
    with Engine() as engine, _ended_by_signals():
        image = build_image(engine, order, _progress)
    seconds = time.monotonic() - begun
    write_any(sys.stdout, f"{order.image}\t{image.size_bytes // _MEGA} MB\t{seconds:.0f} s\n")
    return 0


def check_one(image: str, *, as_json: bool) -> int:
    """Print all checks of an image; exit status 0 if kernels can run in it, else 1."""
    with Engine() as engine:
        try:
            facts = probe_image(engine, image, thorough=True)
        except ImageMissing as exc:
            message = f"{exc} {how_to_get(image)}"
            raise ImageMissing(message) from exc
    findings = judge(image, facts)
    if as_json:
        said = {"image": image, "facts": asdict(facts), "findings": [asdict(finding) for finding in findings]}
        write_any(sys.stdout, json.dumps(said, default=dict) + "\n")
    else:
        show_table(("", "check", "found", "to add it"), [_row(finding) for finding in findings])
    return 0 if all(finding.ok for finding in findings if finding.needed) else 1


def write_one(name: str, directory: Path) -> int:
    """Write a template and print the paths of its files."""
    written = write_template(name, directory)
    write_any(sys.stdout, "".join(f"{path}\n" for path in written))
    return 0


def fetch_for(name: str, directory: Path, *, python: str | None, platform: str | None) -> int:
    """Fetch the wheels of an image, and print where they are."""
    fetched = fetch_wheels(recipe(name), directory, python=python, platform=platform)
    size = sum(path.stat().st_size for path in fetched) // _MEGA
    write_any(sys.stdout, f"{directory}\t{len(fetched)} wheels\t{size} MB\n")
    return 0


def list_all(*, as_json: bool) -> int:
    """Print what can be built and what was; where no engine answers, what can be built, and why there is no more to say."""
    images: list[BuiltImage] = []
    try:
        with Engine() as engine:
            images = built_images(engine)
    except KernelexecError as exc:
        say(str(exc))
    purposes = {name: recipe(name).purpose for name in NAMES}
    if as_json:
        said = {"recipes": purposes, "images": [asdict(image) for image in images]}
        write_any(sys.stdout, json.dumps(said) + "\n")
        return 0
    rows = [[name, "", "", purpose] for name, purpose in purposes.items() if all(image.recipe != name for image in images)]
    built = [[", ".join(image.names) or image.id[7:19], *_state(image), purposes.get(image.recipe, "")] for image in images]
    show_table(("image", "state", "size", "what it is for"), [*built, *([row[0], "not built", *row[2:]] for row in rows)])
    return 0


def _state(image: BuiltImage) -> tuple[str, str]:
    return "built" if image.current else "built from another recipe", f"{image.size_bytes // _MEGA} MB"


def _row(finding: Finding) -> list[str]:
    mark = "ok" if finding.ok else "FAIL" if finding.needed else "no"
    return [mark, finding.check, finding.found, "" if finding.ok else finding.mend]


def _progress(line: str) -> None:
    with suppress(CommandFailed):  # nobody has to read it
        write_any(sys.stderr, f"{line}\n")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let a signal end the block as Ctrl+C does, so that what was begun is cleared away; a second one ends that too."""
    ended: list[int] = []

    def end(signum: int, _frame: object) -> None:
        ended.append(signum)
        for one, handler in before.items():
            signal.signal(one, handler)
        raise KeyboardInterrupt

    before = {one: signal.signal(one, end) for one in minded()}
    try:
        yield
    except KeyboardInterrupt:
        raise CommandFailed("The build was ended.", SIGNAL_BASE + (ended or [signal.SIGINT])[0]) from None
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
