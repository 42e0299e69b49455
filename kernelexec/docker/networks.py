"""The network of kernels that have none but for their ports, which are published: no way out, and none to one another."""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from ipaddress import ip_network
from typing import Any

from docker.types.networks import IPAMConfig, IPAMPool

from kernelexec.docker.client import Engine, mapped
from kernelexec.docker.create_options import LOOPBACK, NETWORK, Order
from kernelexec.errors import ContainerGone, EngineAway, EngineRefused

LABEL = "kernelexec.network"
_BRIDGE = "com.docker.network.bridge."
#: An engine makes no second bridge of a name: of several who make the network at once, one does. Containers do not hear each
#: other. What they send elsewhere goes to a gateway that is not there; the machine itself is reached at the bridge's address.
_OPTIONS = {
    f"{_BRIDGE}name": "kernelexec0",
    f"{_BRIDGE}enable_ip_masquerade": "false",
    f"{_BRIDGE}enable_icc": "false",
    f"{_BRIDGE}host_binding_ipv4": LOOPBACK,
}
#: How the engine's bridges call the address of a gateway that is not the bridge's own.
_NOWHERE = "DefaultGatewayIPv4"
_TRIES, _PAUSE_SECONDS = 10, 0.05


def start(engine: Engine, container: str, order: Order) -> None:
    """Let a container run; what it needs of networks is made. Another process may remove that, or take its addresses, before.

    Raises:
        ContainerGone, EngineRefused, EngineAway: it does not run.
    """
    if order.network != NETWORK:
        engine.start(container)
        return
    for attempt in range(1, _TRIES + 1):
        last = attempt == _TRIES
        if attempt > 1:
            time.sleep(secrets.randbelow(attempt) * _PAUSE_SECONDS)  # several who begin at once get out of each other's way
        try:
            _provide(engine)
        except (ContainerGone, EngineRefused):
            if last:
                raise
            continue
        try:
            engine.start(container)
        except ContainerGone:  # or its network
            if last:
                raise
        else:
            return


def remove_unused(engine: Engine) -> None:
    """Remove the network unless a container runs in it; then the engine refuses."""
    with suppress(EngineAway, EngineRefused):
        with mapped("list networks"):
            listed = engine.api.networks(filters={"label": LABEL})
        for found in listed:
            with suppress(ContainerGone, EngineRefused), mapped("remove the network"):
                engine.api.remove_network(found["Id"])


def _provide(engine: Engine) -> None:
    with suppress(ContainerGone):
        _check(_look(engine))
        return
    try:
        _make(engine)
    except EngineRefused:
        with suppress(ContainerGone):
            _check(_look(engine))  # somebody was faster
            return
        raise


def _make(engine: Engine) -> None:
    """Have the engine choose addresses that are free, and make the network of them, with a gateway that nobody is."""
    with mapped("choose addresses for a network"):
        name = f"{NETWORK}-{secrets.token_hex(4)}"
        trial = engine.api.create_network(name, "bridge", labels={LABEL: "1"}, enable_ipv6=False)["Id"]
        try:
            (chosen,) = engine.api.inspect_network(trial)["IPAM"]["Config"]
        finally:
            engine.api.remove_network(trial)
    nobody = {_NOWHERE: str(ip_network(chosen["Subnet"])[-2])}
    pool = IPAMPool(subnet=chosen["Subnet"], gateway=chosen["Gateway"], aux_addresses=nobody)
    ipam = IPAMConfig(pool_configs=[pool])
    with mapped("make a network"):
        engine.api.create_network(
            NETWORK, "bridge", _OPTIONS, ipam, labels={LABEL: "1"}, check_duplicate=True, enable_ipv6=False
        )


def _look(engine: Engine) -> dict[str, Any]:
    with mapped("describe the network"):
        found: dict[str, Any] = engine.api.inspect_network(NETWORK)
    return found


def _check(found: dict[str, Any]) -> None:
    kept = _OPTIONS.items() <= found["Options"].items() and _leads_nowhere(found)
    if LABEL not in (found["Labels"] or {}) or not kept:
        message = f"The network {NETWORK!r} is there and is not as it should be: remove it (`docker network rm {NETWORK}`)."
        raise EngineRefused(message)


def _leads_nowhere(found: dict[str, Any]) -> bool:
    return all(_NOWHERE in (pool.get("AuxiliaryAddresses") or {}) for pool in found["IPAM"]["Config"])
