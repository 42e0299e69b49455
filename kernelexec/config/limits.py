"""Changes of limits in an open session."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pydantic import ValidationError

from kernelexec.config.container import Container
from kernelexec.config.loading import check_seconds, find_profile
from kernelexec.config.messages import explain
from kernelexec.config.settings import Budgets, Config
from kernelexec.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class LimitChange:
    """New limits. None means no change, or the profile's value if there is a profile."""

    profile: str | None = None
    memory_bytes: int | None = None
    cpus: float | None = None
    timeout: float | None = None

    def resolve_profile(self, config: Config) -> LimitChange:
        """Return the change with the profile's values.

        Raises:
            InvalidConfig: the profile does not exist.
        """
        if self.profile is None:
            return self
        limits = find_profile(config, self.profile).model_dump()
        return replace(self, **{name: value for name, value in limits.items() if getattr(self, name) is None})

    def apply_to(self, config: Config) -> Config:
        """Return the configuration with these limits. The amount of swap in addition to memory does not change.

        Raises:
            InvalidConfig, InvalidTimeout: a limit is invalid for any container.
        """
        before = config.container
        budgets, options = config.budgets.model_dump(exclude_unset=True), before.model_dump(exclude_unset=True)
        if self.timeout is not None:
            budgets["timeout"] = check_seconds(self.timeout, "timeout")
        if self.memory_bytes is not None:
            options["memory_bytes"] = self.memory_bytes
            if before.memory_swap_bytes is not None and isinstance(self.memory_bytes, int):
                options["memory_swap_bytes"] = self.memory_bytes + before.memory_swap_bytes - (before.memory_bytes or 0)
        if self.cpus is not None:
            options["cpus"] = self.cpus
        try:
            container = Container.model_validate(options)
        except ValidationError as exc:
            raise InvalidConfig(explain(exc, Container, "Limits")) from None
        chosen = {"profile": self.profile} if self.profile is not None else {}
        return config.model_copy(update={"container": container, "budgets": Budgets.model_validate(budgets), **chosen})
