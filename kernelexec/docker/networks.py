"""The network of kernels whose ports are published: no way out, and no way to each other."""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from ipaddress import ip_network
from typing import Any

from docker.types.networks import IPAMConfig, IPAMPool

from kernelexec.docker.client import Engine, map_docker_errors
from kernelexec.docker.create_options import LOOPBACK, NETWORK, Order
from kernelexec.errors import ContainerGone, EngineRefused, EngineUnavailable

LABEL = "kernelexec.network"
_BRIDGE = "com.docker.network.bridge."
#: An engine creates no second bridge of a name: of several callers, one creates the network. Containers do not see each
#: other. Packets to elsewhere go to a gateway that does not exist; the machine itself is reached at the bridge's address.
_OPTIONS = {
    f"{_BRIDGE}name": "kernelexec0",
    f"{_BRIDGE}enable_ip_masquerade": "false",
    f"{_BRIDGE}enable_icc": "false",
    f"{_BRIDGE}host_binding_ipv4": LOOPBACK,
}
#: The engine's option for the address of a gateway that is not the bridge's own.
_NOWHERE = "DefaultGatewayIPv4"
_TRIES, _PAUSE_SECONDS = 10, 0.05


def start(engine: Engine, container: str, order: Order) -> None:
    """Start a container after creating its network, which another process may remove, or whose addresses it may take."""
    if order.network != NETWORK:
        engine.start(container)
        return
    for attempt in range(1, _TRIES + 1):
        last = attempt == _TRIES
        if attempt > 1:
            time.sleep(secrets.randbelow(attempt) * _PAUSE_SECONDS)  # concurrent callers avoid each other
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


def delete_network(engine: Engine) -> None:
    """Remove the network; the engine refuses if a container runs in it."""
    with suppress(EngineUnavailable, EngineRefused):
        with map_docker_errors("list networks"):
            listed = engine.api.networks(filters={"label": LABEL})
        for network in listed:
            with suppress(ContainerGone, EngineRefused), map_docker_errors("remove the network"):
                engine.api.remove_network(network["Id"])


def _provide(engine: Engine) -> None:
    """Create the network where it is missing; another process may be faster."""
    with suppress(ContainerGone):
        _check(_look(engine))
        return
    try:
        _make(engine)
    except EngineRefused:
        with suppress(ContainerGone):
            _check(_look(engine))
            return
        raise


def _make(engine: Engine) -> None:
    """Create the network of free addresses that the engine chooses, with a gateway that does not exist."""
    with map_docker_errors("choose addresses for a network"):
        name = f"{NETWORK}-{secrets.token_hex(4)}"
        trial = engine.api.create_network(name, "bridge", labels={LABEL: "1"}, enable_ipv6=False)["Id"]
        try:
            (chosen,) = engine.api.inspect_network(trial)["IPAM"]["Config"]
        finally:
            engine.api.remove_network(trial)
    unused_addresses = {_NOWHERE: str(ip_network(chosen["Subnet"])[-2])}
    pool = IPAMPool(subnet=chosen["Subnet"], gateway=chosen["Gateway"], aux_addresses=unused_addresses)
    ipam = IPAMConfig(pool_configs=[pool])
    with map_docker_errors("make a network"):
        engine.api.create_network(
            NETWORK, "bridge", _OPTIONS, ipam, labels={LABEL: "1"}, check_duplicate=True, enable_ipv6=False
        )


def _look(engine: Engine) -> dict[str, Any]:
    with map_docker_errors("describe the network"):
        network: dict[str, Any] = engine.api.inspect_network(NETWORK)
    return network


def _check(network: dict[str, Any]) -> None:
    leads_nowhere = all(_NOWHERE in (pool.get("AuxiliaryAddresses") or {}) for pool in network["IPAM"]["Config"])
    if LABEL not in (network["Labels"] or {}) or not _OPTIONS.items() <= network["Options"].items() or not leads_nowhere:
        message = f"The network {NETWORK!r} is there and is not as it should be: remove it (`docker network rm {NETWORK}`)."
        raise EngineRefused(message)
