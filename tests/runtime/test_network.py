"""Keep-alive on real sockets, of both loops."""

from __future__ import annotations

import asyncio
import socket

import pytest
import uvloop

from quire.runtime import network


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_connection_probes_a_silent_peer(run):
    async def check() -> None:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, "127.0.0.1", port)
        network.keep_alive(transport)
        sock = transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == network.IDLE_S
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == network.UNACKNOWLEDGED_MS
        transport.abort()
        server.close()

    run(check())


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("/10.0.0.1:4711", "10.0.0.1"),
        ("/::ffff:10.0.0.1:4711", "10.0.0.1"),
        ("/2001:db8::1:4711", "2001:db8::/64"),
        ("/2001:db8:0:0:ffff::2:4711", "2001:db8::/64"),
        ("/fe80::1%eth0:4711", "fe80::/64"),
        ("", ""),
    ],
)
def test_one_machine_is_one_network(address: str, expected: str) -> None:
    assert network.network_of(address) == expected


def test_sites_have_many_networks() -> None:
    assert network.wide_network_of("/2001:db8:0:ffff::1:4711") == "2001:db8::/48"
    assert network.wide_network_of("/10.0.0.1:4711") == "10.0.0.1"
    assert network.site_of("/2001:db8:0:ffff::1:4711") == "2001:db8::/48"
    assert network.site_of("/::ffff:10.0.0.1:4711") == "10.0.0.0/24"
    assert network.site_of("") == ""
