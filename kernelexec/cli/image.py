"""The commands about container images."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelexec.cli.console import show_table
from kernelexec.cli.doctor import Check
from kernelexec.cli.options import ResultJsonOption, option
from kernelexec.cli.stdio import INTERRUPTED, OWN_FAILURE, SIGNAL_BASE, CommandFailed, eprint, handled_signals, write_text
from kernelexec.config.container import NAMES
from kernelexec.errors import ImageMissing, KernelexecError

if TYPE_CHECKING:
    from kernelexec.docker.images.build import BuiltImage
    from kernelexec.docker.images.image_info import ImageFacts

_MEGABYTE = 1_000_000  # the unit of the engine's own client
_FACT_CHARS = 300


image_app = typer.Typer(
    name="image", help="Build and check the images that kernels run in.", no_args_is_help=True, add_completion=False
)

_FAILED = f"{OWN_FAILURE} if kernelexec itself failed."
NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="minimal, data-science, web, ml, agent, server, or a directory that `template` wrote."),
]


@image_app.command(epilog=f"Exit status: 0; {INTERRUPTED} after Ctrl+C; {OWN_FAILURE} if the image was not built.")
def build(
    name: NameArgument,
    base_image: Annotated[str | None, option("--base-image", "The base image: Debian or Ubuntu with Python.", "IMAGE")] = None,
    extra_ca: Annotated[
        list[Path] | None,
        option("--extra-ca", "A certificate authority to trust (PEM), or a directory of *.crt files. Repeatable.", "PATH"),
    ] = None,
    wheels: Annotated[
        Path | None,
        option("--wheels", "Install Python packages only from the wheels in this directory.", "DIRECTORY"),
    ] = None,
    sudo: Annotated[bool, option("--sudo", "Let users become root by sudo; the name gets -sudo.")] = False,
    platform: Annotated[
        str | None, option("--platform", "linux/amd64 or linux/arm64. Default: this machine's.", "PLATFORM")
    ] = None,
    tag: Annotated[str | None, option("--tag -t", "The name of the image.", "IMAGE")] = None,
    network: Annotated[
        str | None, option("--network", "none, host or default. Default: chosen automatically.", "NETWORK")
    ] = None,
    no_cache: Annotated[bool, option("--no-cache", "Do not use the build cache.")] = False,
) -> int:
    """Build an image, with the output on stderr; print its name, its size and the build time in seconds."""
    from kernelexec.docker.client import Engine
    from kernelexec.docker.images.build import BuildOrder, build_image
    from kernelexec.docker.images.recipes import authorities, recipe, wheels_in

    order = BuildOrder(
        recipe=recipe(name),
        added={**authorities(extra_ca or []), **(wheels_in(wheels) if wheels else {})},
        base_image=base_image,
        sudo=sudo,
        platform=platform,
        tag=tag,
        network=network,
        cache=not no_cache,
    )
    begun = time.monotonic()
    with Engine() as engine, _interrupt_on_signals():
        image = build_image(engine, order, _show_output)
    seconds = time.monotonic() - begun
    write_text(sys.stdout, f"{order.image}\t{image.size_bytes // _MEGABYTE} MB\t{seconds:.0f} s\n")
    return 0


@image_app.command(epilog=f"Exit status: 0 if kernels can run in it, else 1; {_FAILED}")
def check(
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="An image that the engine has.")],
    as_json: ResultJsonOption = False,
) -> int:
    """Check whether kernels can run in an image, and print how to add missing parts."""
    from kernelexec.docker.client import Engine
    from kernelexec.docker.images.image_python import probe_image
    from kernelexec.docker.images.recipes import how_to_get

    with Engine() as engine:
        try:
            facts = probe_image(engine, image, thorough=True)
        except ImageMissing as exc:
            message = f"{exc} {how_to_get(image)}"
            raise ImageMissing(message) from exc
    findings = check_image(image, facts)
    if as_json:
        report = {
            "image": image,
            "facts": asdict(facts),
            "findings": [finding.to_dict() | {"needed": finding.needed} for finding in findings],
        }
        write_text(sys.stdout, json.dumps(report, default=dict) + "\n")
    else:
        show_table(("", "check", "result", "fix"), [finding.to_row() for finding in findings])
    return 0 if all(finding.ok for finding in findings if finding.needed) else 1


@image_app.command(epilog=f"Exit status: 0; {_FAILED}")
def template(
    name: NameArgument,
    output: Annotated[Path | None, option("--output -o", "The directory to write. Default: ./NAME.", "DIRECTORY")] = None,
) -> int:
    """Write the build files of an image, for you to change; `kernelexec image build ./NAME` then builds it."""
    from kernelexec.docker.images.recipes import write_template

    written = write_template(name, output or Path(Path(name).name))
    write_text(sys.stdout, "".join(f"{path}\n" for path in written))
    return 0


@image_app.command(name="list", epilog=f"Exit status: 0; {_FAILED}")
def list_(as_json: ResultJsonOption = False) -> int:
    """List the images that can be built, and the built ones."""
    from kernelexec.docker.client import Engine
    from kernelexec.docker.images.build import built_images
    from kernelexec.docker.images.recipes import recipe

    images: list[BuiltImage] = []
    try:
        with Engine() as engine:
            images = built_images(engine)
    except KernelexecError as exc:
        eprint(str(exc))
    purposes = {name: recipe(name).purpose for name in NAMES}
    if as_json:
        report = {"recipes": purposes, "images": [asdict(image) for image in images]}
        write_text(sys.stdout, json.dumps(report) + "\n")
        return 0
    rows = [
        [
            ", ".join(image.names) or image.id[7:19],
            "built" if image.current else "built from another recipe",
            f"{image.size_bytes // _MEGABYTE} MB",
            purposes.get(image.recipe, ""),
        ]
        for image in images
    ]
    built = {image.recipe for image in images}
    rows += [[name, "not built", "", purpose] for name, purpose in purposes.items() if name not in built]
    show_table(("image", "state", "size", "purpose"), rows)
    return 0


def check_image(image: str, facts: ImageFacts) -> list[Check]:
    """Return all checks of an image."""
    from kernelexec.docker.images.image_info import PYTHON_MIN, at_least, ipykernel_min

    def check_version(name: str, version: str | None, minimum: str, remedy: str, *, needed: bool = True) -> Check:
        return Check(name, at_least(version, minimum), version or "missing", remedy, needed)

    wanted = ipykernel_min()
    upon = f"`kernelexec image build minimal --base-image {image} --tag NAME` builds an image upon it that has it."
    install = f"{upon} Or in a Dockerfile of yours: RUN python3 -m pip install 'ipykernel>={wanted}'"
    alone = facts.any_user and facts.failure is None
    how = facts.failure or "its Python runs for its own user only"
    return [
        check_version("python", facts.python, PYTHON_MIN, f"{PYTHON_MIN} or newer is needed. {upon}"),
        check_version("ipykernel", facts.ipykernel, wanted, f"{wanted} or newer is needed. {install}"),
        check_version("jupyter_client", facts.jupyter_client, "", f"It comes with ipykernel. {upon}"),
        Check(
            "any user, read-only root",
            alone and facts.python is not None,
            "works" if alone and facts.python else how[:_FACT_CHARS] if facts.python else "nothing runs",
            "Everybody must be able to read the interpreter and its packages: chmod -R a+rX, and nothing below /root.",
        ),
        Check("bash", "bash" in facts.shells, ", ".join(facts.shells) or "no shell", "sh is used.", needed=False),
        check_version("node", facts.node, "", "Without it there is no JavaScript.", needed=False),
        check_version("git", facts.git, "", "RUN apt-get install -y git", needed=False),
    ]


def _show_output(text: str) -> None:
    with suppress(CommandFailed):  # a closed stderr must not stop the build
        write_text(sys.stderr, text)


@contextmanager
def _interrupt_on_signals() -> Iterator[None]:
    """Let signals end the block as Ctrl+C does, so that the build is cleaned up; a second signal ends the cleanup."""
    received: list[int] = []

    def end(signum: int, _frame: object) -> None:
        received.append(signum)
        raise KeyboardInterrupt

    before = {each: signal.signal(each, end) for each in handled_signals()}
    try:
        yield
    except KeyboardInterrupt:
        raise CommandFailed("The build was ended.", SIGNAL_BASE + received[0]) from None
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
