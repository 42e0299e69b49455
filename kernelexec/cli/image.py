"""The commands about container images, and their options; what they do is in ``images``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelexec.cli.status import INTERRUPTED, OURSELVES

image_app = typer.Typer(
    name="image", help="Build and check the images that kernels run in.", no_args_is_help=True, add_completion=False
)

_FAILED = f"{OURSELVES} where kernelexec itself failed."
NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="minimal, data-science, web, ml, agent, server, or a directory that `template` wrote."),
]
PlatformOption = Annotated[
    str | None, typer.Option("--platform", metavar="PLATFORM", help="linux/amd64 or linux/arm64. Default: this machine's.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


@image_app.command(epilog=f"Exit status: 0; {INTERRUPTED} after Ctrl+C; {OURSELVES} where the image was not built.")
def build(
    name: NameArgument,
    base_image: Annotated[
        str | None, typer.Option("--base-image", metavar="IMAGE", help="What to build upon: a Debian or Ubuntu with Python.")
    ] = None,
    extra_ca: Annotated[
        list[Path] | None,
        typer.Option(
            "--extra-ca", metavar="PATH", help="A certificate authority, or a directory of some, to trust; repeatable."
        ),
    ] = None,
    host_ca: Annotated[bool, typer.Option("--host-ca", help="Trust what was added to this machine's authorities.")] = False,
    wheels: Annotated[
        Path | None, typer.Option("--wheels", metavar="DIRECTORY", help="Take Python packages from here only; see `wheels`.")
    ] = None,
    sudo: Annotated[bool, typer.Option("--sudo", help="Let users become root in it; the name gets -sudo.")] = False,
    platform: PlatformOption = None,
    tag: Annotated[str | None, typer.Option("--tag", "-t", metavar="IMAGE", help="What to call it instead.")] = None,
    network: Annotated[
        str | None, typer.Option("--network", metavar="NETWORK", help="none, host or default. Default: what fits.")
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Do every step again.")] = False,
) -> int:
    """Build an image, and tell each step on stderr; at the end its name, size and the seconds that it took."""
    from kernelexec.cli.images import build_one  # noqa: PLC0415 - the engine's library only where it is needed
    from kernelexec.docker.images.build_options import BuildOrder  # noqa: PLC0415 - see above
    from kernelexec.docker.images.ca_certificates import authorities, own_authorities  # noqa: PLC0415 - see above
    from kernelexec.docker.images.recipes import recipe, wheels_in  # noqa: PLC0415 - see above

    order = BuildOrder(
        recipe=recipe(name),
        base_image=base_image,
        authorities=authorities(extra_ca or []) | (own_authorities() if host_ca else {}),
        wheels=wheels_in(wheels) if wheels else {},
        sudo=sudo,
        platform=platform,
        tag=tag,
        network=network,
        cache=not no_cache,
    )
    return build_one(order)


@image_app.command(epilog=f"Exit status: 0 if kernels can run in it, else 1; {_FAILED}")
def check(
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="An image that the engine has.")], as_json: JsonOption = False
) -> int:
    """Say whether kernels can run in an image, what it lacks, and how to add that."""
    from kernelexec.cli.images import check_one  # noqa: PLC0415 - see build

    return check_one(image, as_json=as_json)


@image_app.command(epilog=f"Exit status: 0; {_FAILED}")
def template(
    name: NameArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIRECTORY", help="Where it goes. Default: ./NAME.")
    ] = None,
) -> int:
    """Write what an image is built from, for you to change; `kernelexec image build ./NAME` builds it then."""
    from kernelexec.cli.images import write_one  # noqa: PLC0415 - see build

    return write_one(name, output or Path(Path(name).name))


@image_app.command(epilog=f"Exit status: 0; {_FAILED}")
def wheels(
    name: NameArgument,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIRECTORY", help="Where they go.")],
    python: Annotated[
        str | None, typer.Option("--python", metavar="VERSION", help="The base image's Python, as 3.11. Default: 3.13.")
    ] = None,
    platform: PlatformOption = None,
) -> int:
    """Fetch the Python packages of an image, for a build without network: `kernelexec image build --wheels`."""
    from kernelexec.cli.images import fetch_for  # noqa: PLC0415 - see build

    return fetch_for(name, output, python=python, platform=platform)


@image_app.command(name="list", epilog=f"Exit status: 0; {_FAILED}")
def list_(as_json: JsonOption = False) -> int:
    """List the images that can be built here, and those that are there."""
    from kernelexec.cli.images import list_all  # noqa: PLC0415 - see build

    return list_all(as_json=as_json)
