"""``code_execution_config`` as agent frameworks know it: a dictionary of few keys, or False for no execution at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationError

from kernelexec.config.container import Name, is_image
from kernelexec.config.docker_args import parse
from kernelexec.config.messages import explain, short_repr
from kernelexec.config.types import Directory, FrozenModel, LastMessages, Seconds
from kernelexec.errors import InvalidConfig

#: Words that say true or false elsewhere: as the name of an image they are a mistake.
_NO_IMAGES = frozenset({"0", "1", "f", "false", "no", "none", "t", "true", "yes"})
Docker = bool | tuple[str, ...] | None


def docker(given: object) -> Docker:
    """Whether containers are used; names of images say so too, and of which the first that can be had is taken.

    Raises:
        ValueError: it is neither.
    """
    if given is None or isinstance(given, bool):
        return given
    images = (given,) if isinstance(given, str) else given
    if isinstance(images, list | tuple) and images:
        names = tuple(image for image in images if isinstance(image, str) and _may_be_image(image))
        if len(names) == len(images):
            return names
    raise ValueError("it is True, False, the name of an image or a list of names")


def _may_be_image(name: str) -> bool:
    return is_image(name) and name.lower() not in _NO_IMAGES


class CodeExecution(FrozenModel):
    """The keys that are known; None is the same as a key that is not there."""

    work_dir: Directory | None = None
    """``Config.work_dir``."""
    use_docker: Annotated[Docker, BeforeValidator(docker)] = None
    """True, False, an image, or several of which the first that is there, or can be had, is taken."""
    timeout: Seconds | None = None
    """``budgets.timeout``."""
    last_n_messages: LastMessages | None = None
    """``Config.last_n_messages``."""
    docker_image: str | None = None
    """The same as an image as ``use_docker``."""
    docker_container_name: Name | None = None
    """``container.name``."""
    docker_run_args: tuple[str, ...] | None = None
    """Arguments as of ``docker run``."""

    def choices(self) -> Iterator[tuple[str, Docker]]:
        """What these keys say of containers, each with its name."""
        yield "use_docker", self.use_docker
        yield "docker_image", None if self.docker_image is None else (self.docker_image,)
        yield "docker_container_name", None if self.docker_container_name is None else True
        yield "docker_run_args", True if self.docker_run_args else None

    def options(self) -> dict[str, Any]:
        """The options of ``Config`` that these keys set.

        Raises:
            InvalidConfig: by the arguments for ``docker run``.
        """
        top: dict[str, Any] = {"work_dir": self.work_dir, "last_n_messages": self.last_n_messages}
        found = {name: value for name, value in top.items() if value is not None}
        found |= parse(self.docker_run_args or ())
        if self.timeout is not None:
            found["budgets"] = {"timeout": self.timeout}
        if self.docker_container_name is not None:
            container = found.setdefault("container", {})
            named = container.setdefault("name", self.docker_container_name)
            if named != self.docker_container_name:
                message = f"docker_container_name={self.docker_container_name!r} and --name {named} contradict each other."
                raise InvalidConfig(message)
        return found


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked for besides the configuration itself."""

    enabled: bool = True
    docker: Docker = None
    said: str = ""
    """How containers were asked for or refused, as the caller wrote it."""
    options: Mapping[str, Any] = field(default_factory=dict)


def read(use_docker: object, given: object) -> Asked:
    """Both ways to ask in the words of agent frameworks, as one.

    Raises:
        InvalidConfig: an unknown key or an unfit value, or two that contradict each other.
    """
    try:
        wanted = docker(use_docker)
    except ValueError as exc:
        message = f"use_docker={short_repr(use_docker)}: {exc}."
        raise InvalidConfig(message) from exc
    found = _checked({} if given is False else given)
    said = ""
    for name, value in (("use_docker", wanted), *found.choices()):
        now = f"{name}={_shown(value)}" if name in {"use_docker", "docker_image"} else name
        if not said or wanted is None:
            wanted, said = value, now if value is not None else ""
        elif value is not None:
            wanted, said = _both(wanted, said, value, now)
    options = found.options()
    if isinstance(wanted, tuple):
        options["container"] = {**options.get("container", {}), "image": wanted}
    return Asked(given is not False, wanted, said, options)


def _checked(given: object) -> CodeExecution:
    if given is not None and not isinstance(given, Mapping):
        message = f"code_execution_config={short_repr(given)}: it is a dictionary, False for no execution, or None."
        raise InvalidConfig(message)
    if given and "executor" in given:
        raise InvalidConfig("code_execution_config: executor is no option: where code runs is said by use_docker.")
    try:
        return CodeExecution.model_validate(given or {})
    except ValidationError as exc:
        raise InvalidConfig(explain(exc, CodeExecution, "code_execution_config")) from exc


def _both(first: Docker, said: str, second: Docker, also: str) -> tuple[Docker, str]:
    """Two that ask for containers agree if one of them names no image, or both name the same."""
    if first == second or (first is True and second):
        return second, also
    if second is True and first:
        return first, said
    message = f"{said} and {also} contradict each other: give one of them."
    raise InvalidConfig(message)


def _shown(value: Docker) -> str:
    return repr(value[0] if isinstance(value, tuple) and len(value) == 1 else value)
