"""``code_execution_config`` of agent frameworks: a dictionary, or False for no execution."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ValidationError

from kernelexec.config import Config, override
from kernelexec.config.container import Name
from kernelexec.config.loading import ContainerRequest, UseDocker, container_request, image_repr, parse_use_docker
from kernelexec.config.loading import load as config_load
from kernelexec.config.messages import explain, short_repr
from kernelexec.config.short_options import ShortOptions, check_isolation, expand
from kernelexec.config.types import CellSeconds, Directory, FrozenModel, LastMessages
from kernelexec.dialects.docker_run_args import parse_run_args
from kernelexec.errors import InvalidConfig


class CodeExecutionConfig(FrozenModel):
    """The keys of a ``code_execution_config``. None is the same as a missing key."""

    work_dir: Directory | None = None
    """``Config.work_dir``."""
    use_docker: Annotated[UseDocker, BeforeValidator(parse_use_docker)] = None
    """True, False, an image name, or a list of names, of which the first available one is used."""
    timeout: CellSeconds | None = None
    """``budgets.timeout``."""
    last_n_messages: LastMessages | None = None
    """``Config.last_n_messages``."""
    docker_image: str | None = None
    """An image name, as for ``use_docker``."""
    docker_container_name: Name | None = None
    """``container.name``."""
    docker_run_args: tuple[str, ...] | None = None
    """Arguments of ``docker run``."""

    def container_requests(self) -> Iterator[tuple[str, UseDocker]]:
        """Yield the keys that choose containers, with their values."""
        yield "use_docker", self.use_docker
        yield "docker_image", None if self.docker_image is None else (self.docker_image,)
        yield "docker_container_name", None if self.docker_container_name is None else True
        yield "docker_run_args", True if self.docker_run_args else None

    def options(self) -> dict[str, Any]:
        """Return the options of ``Config`` that these keys set.

        Raises:
            InvalidConfig: an argument of ``docker run`` is refused or invalid.
        """
        top: dict[str, Any] = {"work_dir": self.work_dir, "last_n_messages": self.last_n_messages}
        options = {name: value for name, value in top.items() if value is not None}
        options |= parse_run_args(self.docker_run_args or ())
        if self.timeout is not None:
            options["budgets"] = {"timeout": self.timeout}
        if self.docker_container_name is not None:
            container = options.setdefault("container", {})
            named = container.setdefault("name", self.docker_container_name)
            if named != self.docker_container_name:
                message = f"docker_container_name={self.docker_container_name!r} and --name {named} contradict each other."
                raise InvalidConfig(message)
        return options


def load(
    isolation: str | None = None,
    *,
    use_docker: bool | str | Sequence[str] | None = None,
    workspace: str | os.PathLike[str] | None = None,
    config: Config | Mapping[str, Any] | None = None,
    code_execution_config: Mapping[str, Any] | Literal[False] | None = None,
    short: ShortOptions | None = None,
    environ: Mapping[str, str] | None = None,
    inside: bool | None = None,
) -> Config:
    """Return the settings of one executor: see ``kernelexec.config.load``.

    ``code_execution_config`` is the dictionary of agent frameworks; it overrides the configuration. Its keys are ``work_dir``,
    ``use_docker``, ``timeout``, ``last_n_messages``, ``docker_image``, ``docker_container_name``, ``docker_run_args``. False
    switches execution off. ``short`` has the usual options by their short names.

    Raises:
        InvalidConfig: an option is unknown, a value is invalid, or two options contradict each other.
    """
    request = container_request(use_docker)
    execution = _validate({} if code_execution_config is False else code_execution_config)
    for name, value in execution.container_requests():
        if value is not None:
            source = f"{name}={image_repr(value)}" if name in {"use_docker", "docker_image"} else name
            request = _merge_requests(request, ContainerRequest(value, source))
    usual = dict(short or {})
    if (image := usual.pop("image", None)) is not None:
        request = _merge_requests(request, replace(container_request(image), source=f"image={short_repr(image)}"))
    options: dict[str, Any] = override(override(config, execution.options()), expand(usual))
    if code_execution_config is False:
        options["enabled"] = False
    loaded = config_load(isolation, use_docker=request, workspace=workspace, config=options, environ=environ, inside=inside)
    check_isolation(usual, loaded.isolation)
    return loaded


def _validate(value: object) -> CodeExecutionConfig:
    if value is not None and not isinstance(value, Mapping):
        message = f"code_execution_config={short_repr(value)}: must be a dictionary, False for no execution, or None."
        raise InvalidConfig(message)
    if not value:
        return CodeExecutionConfig.model_construct()  # without a validator, which takes time to build
    if "executor" in value:
        raise InvalidConfig("code_execution_config: executor is not an option: choose where code runs with use_docker.")
    try:
        return CodeExecutionConfig.model_validate(value)
    except ValidationError as exc:
        raise InvalidConfig(explain(exc, CodeExecutionConfig, "code_execution_config")) from None


def _merge_requests(first: ContainerRequest, second: ContainerRequest) -> ContainerRequest:
    """Return the more specific of two requests. They agree if one names no image, or both name the same."""
    if first.use_docker in (None, second.use_docker) or (first.use_docker is True and second.use_docker):
        return second
    if second.use_docker is True and first.use_docker:
        return first
    raise InvalidConfig(f"{first.source} and {second.source} contradict each other: set only one of them.")
