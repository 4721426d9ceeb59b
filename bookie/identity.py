"""Who a bookie is: a UUID and an incarnation, written as a cookie into each of its directories.

An address can be inherited, an identity cannot: requests, ensembles and metadata name (UUID, incarnation). The
cookie ties journal and entry logs together, so that a disk that was swapped, wiped or mounted elsewhere is
noticed before anything is answered from it (rule 18).

    cookie    a JSON object in `identity.json`:
              layout, uuid, incarnation, lossy_before, role ("journal" or "entries"), ready, trusted, cluster, leaving,
              run, next_run

`incarnation` grows only when state may have been lost; `lossy_before` is the incarnation after the last time
that *blocks* may have been lost: of ledgers from before it this bookie cannot deny anything. `ready` turns true
when both directories were made completely, so that a kill during the very first start does no harm. `trusted`
is false on the journal's side while a bookie without durable writes (`unsafe_no_sync`) runs, and from the moment when
blocks are found to be lost until every ledger says so: a start that ends in between leaves two cookies that agree, and
the next one must find the loss all the same. `layout` is the version of everything that lies in the two directories: a
newer one than this program knows is refused. `cluster` is the id of the cluster that the bookie joined, empty in a
standalone. `leaving` is true while its copies are being made elsewhere, so that the next start looks whether all of
them were; see `bookie.membership`.

| journal's cookie | entries' cookie | means |
|---|---|---|
| none, directory empty | none, directory empty | a new bookie |
| not ready | none or not ready | the first start was interrupted: go on with it |
| ready | ready, same UUID | this bookie; the greater incarnation holds |
| all else | | refuse, and say which directory |

Two incarnations that differ mean that a raise was interrupted, or that one directory is an older copy. Nobody
can tell which, so it counts as loss.

`run` is a random word of the last start: an older copy of one directory has another one than its neighbour, and lacks
what was acknowledged since. So that an interrupted start is not taken for that, the entries' cookie first gets
`next_run`, then the journal's its `run`, then the entries' the same; of the two words in the entries' cookie the
journal's must be one. (A copy that was made since the last start is not noticed by this.)
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final
from uuid import UUID

import msgspec

from quire.runtime.disk import Disk
from quire.runtime.errors import ConfigurationError
from quire.wire.bookie import BookieId

COOKIE: Final = "identity.json"
LAYOUT: Final = 1
"""Version of journal, entry logs and index as they lie on disk; grows when an older program would misread them."""

_HARMLESS: Final = frozenset({"lock", COOKIE, COOKIE + ".new", "lost+found"})


class Cookie(msgspec.Struct, frozen=True, kw_only=True):
    layout: int = LAYOUT
    uuid: str
    role: str
    incarnation: int = 1
    lossy_before: int = 0
    ready: bool = False
    trusted: bool = True
    cluster: str = ""
    leaving: bool = False
    run: str = ""
    next_run: str = ""


class _Layout(msgspec.Struct, frozen=True):
    """What every layout's cookie can be asked for first."""

    layout: int = LAYOUT


class Identity:
    """The cookies of both directories, kept equal."""

    def __init__(
        self, journal: Disk, entries: Disk, cookie: Cookie, *, is_new: bool, is_suspect: bool
    ) -> None:
        self._disks = {"entries": entries, "journal": journal}
        self._cookie = cookie
        self.is_new = is_new
        """Nothing was ever acknowledged: there is no index yet."""
        self.is_suspect = is_suspect
        """Blocks may have been lost, for a reason that the cookies show."""

    @property
    def bookie_id(self) -> BookieId:
        return BookieId(self._cookie.uuid, self._cookie.incarnation)

    @property
    def lossy_before(self) -> int:
        """Requests for an incarnation before this one may be about blocks that were lost."""
        return self._cookie.lossy_before

    @property
    def uuid_bytes(self) -> bytes:
        return UUID(self._cookie.uuid).bytes

    def finish(self) -> None:
        """Both directories are complete: from now on both must be there."""
        self._write(ready=True)
        self.is_new = False

    def raise_incarnation(self, *, blocks_lost: bool) -> None:
        """State may have been lost. With `blocks_lost` it may have been blocks, not only fences.

        Then the directories are suspect until `trust`.
        """
        incarnation = self._cookie.incarnation + 1
        if blocks_lost:
            self._write(incarnation=incarnation, lossy_before=incarnation, trusted=False)
        else:
            self._write(incarnation=incarnation)

    def trust(self, trusted: bool) -> None:
        """Whether the journal's directory can be believed if nothing else is written from now on."""
        if trusted != self._cookie.trusted:
            self._write(trusted=trusted)

    def begin_run(self, rng: Random) -> None:
        """This start knows what both directories have: from now on they belong together, and no older copy does."""
        run = f"{rng.getrandbits(64):016x}"
        self._write_one("entries", run=self._cookie.run, next_run=run)
        self._write_one("journal", run=run)
        self._write_one("entries", run=run)

    def join(self, cluster: str) -> None:
        """The bookie is known to `cluster` now, and to no other."""
        if cluster != self._cookie.cluster:
            self._write(cluster=cluster)

    def leave(self, leaving: bool) -> None:
        """Whether the bookie's copies are being made elsewhere."""
        if leaving != self._cookie.leaving:
            self._write(leaving=leaving)

    def _write(self, **changes: object) -> None:
        for role in self._disks:  # the journal's last: it is the one that is believed
            self._write_one(role, **changes)

    def _write_one(self, role: str, **changes: object) -> None:
        self._cookie = msgspec.structs.replace(self._cookie, **changes)
        cookie = msgspec.structs.replace(self._cookie, role=role)
        self._disks[role].write_bytes(COOKIE, msgspec.json.format(msgspec.json.encode(cookie)))


def open_identity(journal: Disk, entries: Disk, rng: Random) -> Identity:
    """Find out who lives here, or move in. Raises `ConfigurationError` that names the directory."""
    in_journal, in_entries = _read(journal, "journal"), _read(entries, "entries")
    if in_journal is None and in_entries is None:
        return _move_in(journal, entries, rng)
    if in_journal is None:
        assert in_entries is not None
        if in_entries.ready:
            raise _missing(journal, entries, in_entries)
        return _move_in(journal, entries, rng)
    if not in_journal.ready and (in_entries is None or not in_entries.ready):
        return _move_in(journal, entries, rng, in_journal.uuid)
    if in_entries is None:
        raise _missing(entries, journal, in_journal)
    if in_journal.uuid != in_entries.uuid:
        raise ConfigurationError(
            f"{journal.root} belongs to bookie {in_journal.uuid}, but {entries.root} to bookie {in_entries.uuid}; "
            "give each bookie its own two directories"
        )
    is_suspect = (
        in_journal.incarnation != in_entries.incarnation
        or not in_journal.trusted
        or in_journal.run not in (in_entries.run, in_entries.next_run)
    )
    newer = max(in_journal, in_entries, key=lambda cookie: cookie.incarnation)
    lossy_before = max(in_journal.lossy_before, in_entries.lossy_before)
    cookie = msgspec.structs.replace(
        newer,
        lossy_before=lossy_before,
        ready=True,
        trusted=in_journal.trusted,
        cluster=in_journal.cluster or in_entries.cluster,
        leaving=in_journal.leaving or in_entries.leaving,
    )
    # A kill between the two last writes of the first start leaves one cookie ready: complete it now. What is suspect
    # stays so until the incarnation is raised, which completes it as well, and the ledgers know of it.
    identity = Identity(journal, entries, cookie, is_new=False, is_suspect=is_suspect)
    if not is_suspect and not (in_journal.ready and in_entries.ready):
        identity.finish()
    return identity


def peek(journal: Disk, entries: Disk) -> Cookie | None:
    """Who lives here, as far as one can tell without moving in. Raises `ConfigurationError` for what is no cookie."""
    found = [
        cookie for cookie in (_read(journal, "journal"), _read(entries, "entries")) if cookie is not None
    ]
    if not found:
        return None
    return msgspec.structs.replace(
        found[0],
        cluster=next((cookie.cluster for cookie in found if cookie.cluster), ""),
        leaving=any(cookie.leaving for cookie in found),
    )


def reset_directories(journal: Disk, entries: Disk, directories: Sequence[str], rng: Random) -> None:
    """Remove all that the former bookie left in both disks and their `directories`; the next start moves in.

    The journal's cookie goes last, and is replaced in one step: whoever is interrupted begins again.
    """
    for disk in (entries, journal):
        for directory in ("", *directories):
            _empty(disk, directory, {"lock", COOKIE, *directories} if not directory else set())
    if entries.exists(COOKIE):
        entries.remove(COOKIE)
        entries.sync_directory()
    uuid = str(UUID(int=rng.getrandbits(128), version=4))
    journal.write_bytes(COOKIE, msgspec.json.format(msgspec.json.encode(Cookie(uuid=uuid, role="journal"))))


def _empty(disk: Disk, directory: str, kept: set[str]) -> None:
    names = [name for name in disk.names(directory) if name not in kept and name not in _HARMLESS]
    for name in names:
        disk.remove(f"{directory}/{name}" if directory else name)
    if names:
        disk.sync_directory(directory)


def _move_in(journal: Disk, entries: Disk, rng: Random, uuid: str = "") -> Identity:
    if not uuid:
        for disk in (journal, entries):
            strangers = [name for name in disk.names() if name not in _HARMLESS]
            if strangers and _read(disk, "") is None:
                raise ConfigurationError(
                    f"{disk.root} has no {COOKIE}, but holds {strangers[0]!r}; choose an empty directory, or bring "
                    "back the cookie"
                )
        uuid = str(UUID(int=rng.getrandbits(128), version=4))
    # The journal's comes first here: it says that a move is under way, wherever a kill interrupts it.
    cookie = Cookie(uuid=uuid, role="journal")
    journal.write_bytes(COOKIE, msgspec.json.format(msgspec.json.encode(cookie)))
    identity = Identity(journal, entries, cookie, is_new=True, is_suspect=False)
    identity._write()
    return identity


def _missing(disk: Disk, other: Disk, cookie: Cookie) -> ConfigurationError:
    return ConfigurationError(
        f"{disk.root} has no {COOKIE}, but {other.root} belongs to bookie {cookie.uuid}; mount the right disk, or "
        "start with two empty directories as a new bookie"
    )


def _read(disk: Disk, role: str) -> Cookie | None:
    if not disk.exists(COOKIE):
        return None
    path = f"{disk.root}/{COOKIE}"
    try:
        raw = disk.read_bytes(COOKIE)
        layout = msgspec.json.decode(raw, type=_Layout).layout
        if layout > LAYOUT:
            raise ConfigurationError(
                f"{disk.root} was written by a newer Quire (layout {layout}, this one knows {LAYOUT}); start that one"
            )
        cookie = msgspec.json.decode(raw, type=Cookie)
        UUID(cookie.uuid)
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigurationError(
            f"{path} is not a bookie's cookie ({error}); bring back the right one"
        ) from error
    if role and cookie.role != role:
        raise ConfigurationError(
            f"{path} is that of a directory for {cookie.role}, not for {role}; swap the two"
        )
    return cookie
