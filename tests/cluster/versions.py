"""Older version of Quire, from this repository's history, and clusters whose members have either version."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import Final

import pytest

from quire.process.child import Child
from quire.testing.zookeeper_server import ZooKeeperServer, free_port
from tests.cluster.zookeeper import own_zookeeper

REPOSITORY: Final = Path(__file__).parents[2]

NEIGHBOUR: Final = "cbef5fcaf26a1767f151cf3d637b1800e41fc256"
"""Commit of the previous version, which is used until a release is tagged."""


def neighbour(folder: Path) -> Path:
    """Unpack the previous version, and return its module path. Skip the test if the clone has no history."""
    commit = _git("describe", "--tags", "--abbrev=0", "HEAD~1").decode().strip() or NEIGHBOUR
    packed = _git("archive", commit)
    if not packed:
        pytest.skip(f"this clone does not have the commit {commit[:7]}, which is the version before this one")
    with tarfile.open(fileobj=BytesIO(packed)) as files:
        files.extractall(folder / "clone", filter="data")
    package = folder / "modules" / "quire"
    package.mkdir(parents=True)
    for one in (folder / "clone").iterdir():
        if (one / "__init__.py").exists() and one.name not in ("quire", "tests", "bench"):
            (package / one.name).symlink_to(one)
    for file in (folder / "clone" / "quire").iterdir():
        (package / file.name).symlink_to(file)
    return package.parent


def _git(*words: str) -> bytes:
    try:
        return subprocess.run(["git", "-C", str(REPOSITORY), *words], capture_output=True, check=False).stdout
    except FileNotFoundError:
        return b""


class MixedCluster:
    """Cluster of ZooKeeper, bookies, brokers and two gateways, with mixed versions.

    In its methods, `modules` is the module path of the other version; None means this version.
    """

    def __init__(self, data: Path, zookeeper: ZooKeeperServer) -> None:
        self.data = data
        self.zookeeper = zookeeper
        self._gateways = {
            name: {"listen": f"127.0.0.1:{free_port()}", "http": f"127.0.0.1:{free_port()}"}
            for name in ("gateway-1", "gateway-2")
        }
        self.service_url = "pulsar://" + ",".join(one["listen"] for one in self._gateways.values())
        self.http_url = f"http://{self._gateways['gateway-1']['http']}"
        self.members: dict[str, Child] = {}
        self.metadata = f"{zookeeper.url}/quire?session_timeout=4s"
        self.broker_flags: dict[str, str] = {}
        """Additional flags for brokers that are started from now on."""

    async def run(self, name: str, modules: Path | None) -> None:
        """Start the member `name`, such as `bookie-1`. A running member of this name is stopped first."""
        if name in self.members:
            await self.members.pop(name).stop()
        kind, flags = kind_of(name), {"listen": "127.0.0.1:0", "http": "127.0.0.1:0"}
        flags["metadata"] = self.metadata
        if kind == "bookie":
            places = {
                "journal": str(self.data / name / "journal"),
                "entry-log": str(self.data / name / "entries"),
            }
            flags |= {"new-cluster": "true", **places}
        elif kind == "broker":
            flags |= {
                "archive": f"file://{self.data / 'archive'}",
                "archive-delay-ms": "1s",
            } | self.broker_flags
        else:
            flags |= self._gateways[name]
        words = [word for flag, value in flags.items() for word in (f"--{flag}", value)]
        where = [] if modules is None else ["env", f"PYTHONPATH={modules}"]
        argv = [*where, sys.executable, "-P", "-m", "quire", kind, *words]
        child = Child(name, kind, argv, self.data / "logs" / f"{name}.log")
        await child.start()
        self.members[name] = child

    async def run_all(self, names: Iterable[str], modules: Path | None = None) -> None:
        """Start several members, kind by kind.

        Brokers are started one after another, because the first one may initialize the cluster; others concurrently.
        """
        for kind, some in groupby(names, key=kind_of):
            if kind == "broker":
                for name in some:
                    await self.run(name, modules)
            else:
                await asyncio.gather(*(self.run(name, modules) for name in some))

    async def stop(self) -> None:
        for kind in ("gateway", "broker", "bookie"):
            await asyncio.gather(*(one.stop() for name, one in self.members.items() if kind_of(name) == kind))


def kind_of(name: str) -> str:
    return name.partition("-")[0]


@asynccontextmanager
async def mixed_cluster(data: Path) -> AsyncIterator[MixedCluster]:
    with own_zookeeper(data) as server:
        cluster = MixedCluster(data, server)
        try:
            yield cluster
        finally:
            await cluster.stop()
