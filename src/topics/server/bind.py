"""The address: what a host name means, sockets on it, and the file that tells which port it became.

    resolve     host and port → addresses, once; what is judged is also what is bound
    is_loopback every address is one of this machine alone [BOOT-1]
    listening   bound sockets, all on the same port [BOOT-5]

Runs before the loop accepts anything.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Sequence
from typing import Final, NamedTuple

from topics import paths
from topics.fs import Fs, close_quietly, pwrite_all

BACKLOG: Final = 4096
_ABSENT: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class Address(NamedTuple):
    """One address a host resolves to."""

    family: int
    place: tuple[str, int] | tuple[str, int, int, int]

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        ip = ipaddress.ip_address(self.place[0].partition("%")[0])
        mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
        return (mapped or ip).is_loopback


def resolve(host: str, port: int) -> list[Address]:
    """The addresses of a host; an `OSError` when it has none."""
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [Address(one[0], one[4]) for one in dict.fromkeys(found)]  # type: ignore[arg-type]


def is_loopback(addresses: Sequence[Address]) -> bool:
    """Every one of them; none is not [BOOT-1]."""
    return bool(addresses) and all(one.is_loopback for one in addresses)


def listening(addresses: Sequence[Address]) -> list[socket.socket]:
    """Bound sockets; when the system chooses the port, it is the same for all.

    Of several addresses one that this machine does not have is left out: `localhost` may mean `::1` where there is no
    IPv6.
    """
    bound: list[socket.socket] = []
    for number, one in enumerate(addresses, 1):
        try:
            bound.append(_bound(one, bound[0].getsockname()[1] if bound else one.place[1]))
        except OSError as error:
            if error.errno in _ABSENT and (bound or number < len(addresses)):
                continue
            close(bound)
            raise
    return bound


def _bound(address: Address, port: int) -> socket.socket:
    sock = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((address.place[0], port, *address.place[2:]))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def close(sockets: Sequence[socket.socket]) -> None:
    """Let go of the addresses."""
    for sock in sockets:
        sock.close()


def spelled(name: Sequence[object]) -> str:
    """`host:port` of a socket's name; IPv6 in brackets."""
    host, port = name[0], name[1]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def write_port_file(fs: Fs, path: str, text: str) -> None:
    """In one step: whoever reads it sees all of it, or what was there before. A device or a pipe is not replaced."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(errno.EINVAL, "it is not a regular file")
    temporary = paths.tmp(path)
    try:
        file = fs.open(temporary, "create")
        try:
            pwrite_all(file, text.encode(), 0)
            file.truncate(len(text))
        finally:
            close_quietly(file)
        fs.rename(temporary, path)
    except OSError:
        if fs.exists(temporary):
            fs.remove(temporary)
        raise
