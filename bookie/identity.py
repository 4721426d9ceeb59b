"""Who a bookie is: a UUID and an incarnation, written as a cookie into each of its directories.

An address can be inherited, an identity cannot: requests, ensembles and metadata name (UUID, incarnation). The
cookie ties journal and entry logs together, so that a disk that was swapped, wiped or mounted elsewhere is
noticed before anything is answered from it (rule 18).

    cookie    a JSON object in `identity.json`:
              uuid, incarnation, lossy_before, role ("journal" or "entries"), ready, trusted

`incarnation` grows only when state may have been lost; `lossy_before` is the incarnation after the last time
that *blocks* may have been lost: of ledgers from before it this bookie cannot deny anything. `ready` turns true
when both directories were made completely, so that a kill during the very first start does no harm. `trusted`
is false on the journal's side while a bookie without durable writes (`unsafe_no_sync`) runs.

| journal's cookie | entries' cookie | means |
|---|---|---|
| none, directory empty | none, directory empty | a new bookie |
| not ready | none or not ready | the first start was interrupted: go on with it |
| ready | ready, same UUID | this bookie; the greater incarnation holds |
| all else | | refuse, and say which directory |

Two incarnations that differ mean that a raise was interrupted, or that one directory is an older copy. Nobody
can tell which, so it counts as loss.
"""

from __future__ import annotations

from random import Random
from typing import Final
from uuid import UUID

import msgspec

from quire.runtime.disk import Disk
from quire.runtime.errors import ConfigurationError
from quire.wire.bookie import BookieId

COOKIE: Final = "identity.json"
_HARMLESS: Final = frozenset({"lock", COOKIE, COOKIE + ".new", "lost+found"})


class Cookie(msgspec.Struct, frozen=True, kw_only=True):
    """See the top of the file."""

    uuid: str
    role: str
    incarnation: int = 1
    lossy_before: int = 0
    ready: bool = False
    trusted: bool = True


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
        """State may have been lost. With `blocks_lost` it may have been blocks, not only fences."""
        incarnation = self._cookie.incarnation + 1
        lossy_before = incarnation if blocks_lost else self._cookie.lossy_before
        self._write(incarnation=incarnation, lossy_before=lossy_before)

    def trust(self, trusted: bool) -> None:
        """Whether the journal's directory can be believed if nothing else is written from now on."""
        if trusted != self._cookie.trusted:
            self._write(trusted=trusted)

    def _write(self, **changes: object) -> None:
        self._cookie = msgspec.structs.replace(self._cookie, **changes)
        for role, disk in self._disks.items():  # the journal's last: it is the one that is believed
            cookie = msgspec.structs.replace(self._cookie, role=role)
            disk.write_bytes(COOKIE, msgspec.json.format(msgspec.json.encode(cookie)))


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
    is_suspect = in_journal.incarnation != in_entries.incarnation or not in_journal.trusted
    newer = max(in_journal, in_entries, key=lambda cookie: cookie.incarnation)
    lossy_before = max(in_journal.lossy_before, in_entries.lossy_before)
    cookie = msgspec.structs.replace(newer, lossy_before=lossy_before, ready=True, trusted=in_journal.trusted)
    # A kill between the two last writes of the first start leaves one cookie ready: complete it now.
    identity = Identity(journal, entries, cookie, is_new=False, is_suspect=is_suspect)
    if not (in_journal.ready and in_entries.ready):
        identity.finish()
    return identity


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
        cookie = msgspec.json.decode(disk.read_bytes(COOKIE), type=Cookie)
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
