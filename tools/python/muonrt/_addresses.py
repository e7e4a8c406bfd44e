"""Finds an address at which ranks on other machines can reach a rank, for muonrt.torch."""

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
import time

import muonrt

GREETING = b"muonrtG1"  # the first bytes that a listening rank sends
TRY_S = 3.0  # timeout in seconds of one attempt to connect
SIOCGIFADDR = 0x8915


def machine(name: str) -> tuple:
    """Returns a value that identifies a machine or container. Ranks with equal values can connect
    over 127.0.0.1.

    The host name alone is not enough, because multiple machines can have the same name.
    """
    boot = network = None
    with contextlib.suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
    with contextlib.suppress(OSError):
        network = os.readlink("/proc/self/ns/net")
    return name, boot, network


def own_addresses() -> dict[str, list[str]]:
    """Returns the addresses of each network interface: IPv4 before IPv6, without link-local
    addresses."""
    found: dict[str, list[str]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # the interface has no IPv4 address
                answer = fcntl.ioctl(any_socket, SIOCGIFADDR, struct.pack("256s", name.encode()))
                found.setdefault(name, []).append(socket.inet_ntoa(answer[20:24]))
    with contextlib.suppress(OSError), open("/proc/net/if_inet6") as file:
        for digits, *_, name in map(str.split, file):
            address = ipaddress.IPv6Address(int(digits, 16))
            if not address.is_link_local:
                found.setdefault(name, []).append(str(address))
    return found


def select(own: dict[str, list[str]], names: str | None, likely: list[str]) -> list[str]:
    """Returns the addresses to listen on, in the order in which other ranks try them.

    own: the addresses of each interface.
    names: interfaces or addresses, separated by commas. None allows every address. If this machine
        has none of them, the result is empty.
    likely: host names and addresses that other ranks try first.
    """
    every = [address for addresses in own.values() for address in addresses]
    if names is not None:
        parts = [part.strip() for part in names.split(",")]
        ordered = [a for part in parts for a in own.get(part, [part] if part in every else [])]
    else:
        ordered = sorted([*likely, *every], key=_is_loopback)
    version = next((v for v in map(_version, ordered) if v), 4)
    return [a for a in dict.fromkeys(ordered) if _version(a) in (None, version)]


def _version(address: str) -> int | None:
    """Returns 4 or 6, or None for a host name."""
    try:
        return ipaddress.ip_address(address).version
    except ValueError:
        return None


def _is_loopback(address: str) -> bool:
    return _version(address) is not None and ipaddress.ip_address(address).is_loopback


def listening_addresses(interface: str | None, store_host: str | None, has_store: bool) -> list[str]:
    """Returns the addresses at which ranks on other machines may be able to reach this machine.

    interface: the name or an address of an interface. None: the interfaces in GLOO_SOCKET_IFNAME,
        or all if it is not set.
    store_host: MASTER_ADDR. All ranks can reach this host, so they can probably also reach the
        address from which this machine connects to it.
    has_store: whether `store_host` is a name or an address of this machine.
    """
    own = own_addresses()
    if interface is not None:
        if chosen := select(own, interface, []):
            return chosen
        raise muonrt.InvalidArgumentError(
            f"interface '{interface}' is not one of this machine's ("
            f"{', '.join(f'{name} {address[0]}' for name, address in own.items())}); pass one of these "
            "names or addresses")
    if names := os.environ.get("GLOO_SOCKET_IFNAME"):
        if chosen := select(own, names, []):
            return chosen
    likely = [store_host] if store_host and has_store else []
    with contextlib.suppress(OSError):
        for family, *_, to in socket.getaddrinfo(store_host or "localhost", 9, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as s:
                s.connect(to)  # sends no data
                likely.append(s.getsockname()[0])
    with contextlib.suppress(OSError):
        likely += [to[0] for *_, to in socket.getaddrinfo(socket.gethostname(), None)]
    return select(own, None, likely)


def reachable(hosts: list[str], port: int, timeout: float) -> str:
    """Returns the first of `hosts` at which a muonrt rank listens."""
    end = time.monotonic() + timeout
    why = {}
    while time.monotonic() < end:
        for host in hosts:
            try:
                with socket.create_connection((host, port), TRY_S) as s:
                    if s.recv(len(GREETING), socket.MSG_WAITALL) == GREETING:
                        return host
                    why[host] = "not muonrt"
            except OSError as error:
                why[host] = str(error)
        time.sleep(0.1)
    raise muonrt.CommError(
        f"the first rank of the process group does not answer at port {port} of "
        f"{', '.join(f'{host} ({text})' for host, text in why.items())}; pass the interface of a network "
        "that connects all machines, or set GLOO_SOCKET_IFNAME to its name")
