"""Operators' mistakes among the faults of the chaos test: wrong flags, missing mounts, commands at a bad moment.

| mistake | required behaviour |
|---|---|
| a broker, a bookie or the gateway is started with a typing error in a URL | it refuses to start, with a clear error |
| the mount of the objects' directory is missing for a while, so that it is empty | no object counts as deleted |
| `archive verify --delete-orphans`, and the deletion of orphaned ledgers | they delete nothing that is needed |
| `wal scrub --delete` and `wal close`, also with `--accept-loss` | they delete and give up nothing that is needed |
| the same with another chroot, prefix or bucket | they refuse, with a clear error |
| a drain of a bookie is begun and taken back, also while ZooKeeper is away | no data is lost, even if it was retired |

Commands run on an operator's machine, whose wall clock may be hours ahead, so that the grace period of a scrub does not
hide errors. A command may fail while another process is away, but never with a traceback. A command that must refuse is
repeated until it does.
"""

from __future__ import annotations

import asyncio
import http.client
import re
import signal
import urllib.error
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Any

from quire.runtime.errors import QuireError
from quire.wal import scrub
from tests.machine_speed import times_slower

from .fault import Fault, Kind, some_time
from .local import POLL_S
from .wired import Ran, Wired

SOON_S = 60.0 * times_slower()
"""Time within which a mistake is refused, and a request succeeds, whatever other faults there are."""

AHEAD_S = 2 * 3600.0
"""Offset of an operator's wall clock. It exceeds the hour for which a scrub does not delete new objects."""

MISTYPED = {
    "metadata": (("/quire?", "/quier?"),),
    "wal": (("/cluster?", "/clutser?"), ("/objects", "/obejcts")),
    "archive": (("/cluster?", "/clutser?"), ("/archive", "/acrhive"), ("/objects", "/obejcts")),
}
"""Typing errors by flag, as pairs (right, wrong). The first pair whose right text the URL contains is used."""

REFUSED = re.compile(
    r"there is no cluster at|knows of no cluster|has never used|belongs to cluster|no marker of cluster"
    r"|the metadata store has no cluster|but this process uses"
)
"""Pattern of the errors that name the mistake."""


def mistyped(flag: str, url: str) -> str:
    """Return the URL with a typing error."""
    right, wrong = next(pair for pair in MISTYPED[flag] if pair[0] in url)
    return url.replace(right, wrong)


class Mistakes:
    """Mistakes that can be made with one cluster. `tell` receives the lines of the timeline."""

    def __init__(self, cluster: Wired, session_s: float, tell: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._session_s = session_s
        self._tell = tell

    def kinds(self) -> dict[str, Kind]:
        """Return all kinds of mistakes for this cluster, by name."""
        return self._of_all() | (self._of_bookies() if self._cluster.bookies else self._of_logs())

    def _of_all(self) -> dict[str, Kind]:
        cluster = self._cluster
        kinds: dict[str, Kind] = {
            "mistyped broker": lambda rng: self._mistype(
                rng.choice(cluster.brokers),
                rng.choice(["metadata", "archive", *["wal"][: not cluster.bookies]]),
            ),
            "mistyped gateway": lambda rng: self._mistype("gateway", "metadata"),
            "orphans deleted": lambda rng: self._delete_orphans(),
        }
        if cluster.mount is not None:
            mount = cluster.mount
            kinds["missing mount"] = lambda rng: self._unmount(mount, rng)
        return kinds

    def _of_bookies(self) -> dict[str, Kind]:
        bookies = self._cluster.bookies
        return {
            "mistyped bookie": lambda rng: self._mistype(rng.choice(bookies), "metadata"),
            "drain taken back": lambda rng: self._drain(rng.choice(bookies), rng, is_away=False),
            "drain without zookeeper": lambda rng: self._drain(rng.choice(bookies), rng, is_away=True),
        }

    def _of_logs(self) -> dict[str, Kind]:
        return {
            "logs scrubbed": lambda rng: self._scrub(rng),
            "log closed": lambda rng: self._close(rng),
        }

    # -- processes that are started wrong --------------------------------------------------------------

    def _mistype(self, name: str, flag: str) -> Fault:
        cluster = self._cluster

        async def act() -> None:
            self._tell(f"SIGKILL {name}, and its --{flag} is mistyped")
            await cluster.kill(name)
            wrong = mistyped(flag, cluster.flags[name][flag])
            said = await self._until_refused(lambda: cluster.refused(name, **{flag: wrong}))
            await cluster.up(name)
            self._tell(f"{name} refused to start, and is up again: {said[:100]}")

        return Fault(f"{name} with a wrong {flag}", frozenset({name, "store"}), act)

    async def _until_refused(self, attempt: Callable[[], Awaitable[str]]) -> str:
        """Repeat `attempt` until its error names the mistake. Before, it may fail because another process is away."""
        async with asyncio.timeout(SOON_S):
            while True:
                if REFUSED.search(said := await attempt()):
                    return said
                await asyncio.sleep(POLL_S)

    # -- mounts ----------------------------------------------------------------------------------------

    def _unmount(self, mount: Path, rng: Random) -> Fault:
        """Return a fault in which `mount` is missing. Data written into the empty directory meanwhile is lost."""
        away_s = some_time(rng, self._session_s)

        async def act() -> None:
            self._tell(f"{mount} is an empty directory")
            disk = mount.readlink()
            below = mount.with_name(f"below-{rng.getrandbits(32):08x}")
            below.mkdir()
            self._cluster.lead(mount, below)
            await asyncio.sleep(away_s)
            self._cluster.lead(mount, disk)
            written = sum(path.is_file() for path in below.rglob("*"))
            self._tell(f"{mount} is mounted again; {written} files lie below it")

        return Fault("missing mount", frozenset({"mount"}), act)

    # -- commands --------------------------------------------------------------------------------------

    def _delete_orphans(self) -> Fault:
        async def act() -> None:
            found = await self._ask("POST", "/quire/v1/ledgers/orphans?delete=true")
            ran = await self._run(
                "archive", "verify", "--delete-orphans", "--admin-url", self._cluster.http_url
            )
            self._tell(f"orphans deleted: {found}; archive verify: {_last_line(ran)}")

        return Fault("orphans deleted", frozenset({"orphans"}), act)

    def _scrub(self, rng: Random) -> Fault:
        ahead_s = rng.choice((0.0, AHEAD_S))
        flag = rng.choice(("metadata", "wal"))

        async def act() -> None:
            words = ("wal", "scrub", "--delete")
            ran = await self._run(*words, **self._cluster.stores, ahead_s=ahead_s)
            self._tell(f"wal scrub --delete, the clock {ahead_s:+.0f} s: {_last_line(ran)}")
            await self._refuses(flag, *words, ahead_s=ahead_s)

        return Fault("logs scrubbed", frozenset({"store"}), act)

    def _close(self, rng: Random) -> Fault:
        accept = ["--accept-loss"][: rng.random() < 0.5]
        flag = rng.choice(("metadata", "wal"))
        which = rng.random()

        async def act() -> None:
            uuid = await self._some_log(which)
            close = ("wal", "close", uuid, "--force", *accept)
            await self._refuses(flag, *close)
            ran = await self._run(*close, **self._cluster.stores)
            self._tell(f"wal close {uuid[:8]} {' '.join(accept)}: {_last_line(ran)}")
            assert "given up: object" not in ran.out, ran

        return Fault("log closed", frozenset({"store"}), act)

    async def _some_log(self, which: float) -> str:
        """Return the UUID of a WAL. Newer ones, which are open, are chosen more often."""
        async with asyncio.timeout(SOON_S):
            while True:
                try:
                    found = await scrub.records(self._cluster.store)
                    return found[-1 - int(which * min(len(found), 4))].uuid
                except QuireError:
                    await asyncio.sleep(POLL_S)  # the metadata store is away

    async def _refuses(self, flag: str, *words: str, ahead_s: float = 0.0) -> None:
        """Run the command with a typing error in `flag` until it is refused."""
        stores = self._cluster.stores
        wrong = stores | {flag: mistyped(flag, stores[flag])}

        async def attempt() -> str:
            ran = await self._run(*words, **wrong, ahead_s=ahead_s)
            # it fails in any case: an empty prefix has no objects to delete, and a wrong chroot has no WALs
            assert ran.code != 0, f"{words} with {wrong}: {ran}"
            return ran.err

        said = await self._until_refused(attempt)
        self._tell(f"{' '.join(words[:2])} with a wrong {flag} is refused: {said.strip()[:100]}")

    async def _run(self, *words: str, ahead_s: float = 0.0, **flags: str) -> Ran:
        ran = await self._cluster.operate(*words, ahead_s=ahead_s, **flags)
        assert "Traceback" not in ran.err, ran.err
        return ran

    # -- drains ----------------------------------------------------------------------------------------

    def _drain(self, name: str, rng: Random, *, is_away: bool) -> Fault:
        before_s, away_s, after_s = (some_time(rng, self._session_s) for _ in range(3))
        cluster = self._cluster

        async def act() -> None:
            path = f"/quire/v1/bookies/{await self._uuid(name)}"
            if not await self._change(f"{path}/decommission"):
                return
            self._tell(f"{name} is drained")
            await asyncio.sleep(before_s)
            if is_away:
                self._tell("SIGSTOP zookeeper")
                cluster.signal("zookeeper", signal.SIGSTOP)
                await asyncio.sleep(away_s)
                cluster.signal("zookeeper", signal.SIGCONT)
                self._tell("SIGCONT zookeeper")
                await asyncio.sleep(after_s)
            if not await self._change(f"{path}/keep"):
                await cluster.kill(name)
                await cluster.up(name)
            await cluster.until_bookie(name, lambda record: not record.read_only, SOON_S)
            self._tell(f"{name} takes blocks again")

        victims = {name, "zookeeper"} if is_away else {name}
        return Fault(f"{name} drained and kept", frozenset(victims), act)

    async def _uuid(self, name: str) -> str:
        """Return the UUID of the bookie that runs as `name`, not of a former bookie with the same address."""
        async with asyncio.timeout(SOON_S):
            while True:
                try:
                    if (record := await self._cluster.bookie(name)) is not None:
                        return record.uuid
                except QuireError:
                    pass  # the metadata store is away
                await asyncio.sleep(POLL_S)

    async def _change(self, path: str) -> bool:
        """Request a change of a bookie. Return False if it is refused, or if the bookie is retired already."""
        try:
            await self._ask("PUT", path)
        except urllib.error.HTTPError as error:
            said = error.read().decode()
            self._tell(f"PUT {path}: {error.code} {said[:200]}")
            assert error.code in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED)
            return False
        return True

    async def _ask(self, method: str, path: str) -> Any:
        """Send a REST request, and retry it while the gateway, its broker or the metadata store is away."""
        async with asyncio.timeout(SOON_S):
            while True:
                try:
                    return await self._cluster.rest(method, path)
                except urllib.error.HTTPError as error:
                    if error.code < HTTPStatus.INTERNAL_SERVER_ERROR:
                        raise
                except (OSError, http.client.HTTPException):
                    pass
                await asyncio.sleep(POLL_S)


def _last_line(ran: Ran) -> str:
    lines = (ran.err if ran.code else ran.out).strip().splitlines()
    return f"exit code {ran.code}, {lines[-1][:120] if lines else 'no word'}"
