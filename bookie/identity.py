"""Identity of a bookie: a UUID and an incarnation, written as a cookie into each of its directories.

Another bookie can get the same address, but not the same identity: requests, ensembles and metadata contain (UUID,
incarnation). The cookies bind the journal's and the entry logs' directory together, so that a disk that was swapped,
wiped or mounted elsewhere is detected before the bookie answers a request (rule 18). It is BookKeeper's
[Cookie](https://github.com/apache/bookkeeper/blob/master/bookkeeper-server/src/main/java/org/apache/bookkeeper/bookie/Cookie.java)
with an incarnation.

    cookie    a JSON object in `identity.json`:
              layout, uuid, incarnation, lossy_before, role ("journal" or "entries"), ready, trusted, cluster, leaving,
              run, next_run

- `layout` is the version of all files in the two directories; a version newer than this program's is refused.
- `incarnation` grows only when state may have been lost. `lossy_before` is the incarnation that began after the last
  possible loss of *blocks*. For a request to an earlier incarnation, this bookie cannot prove that an entry is absent.
- `ready` is set when both directories are complete, so that an interrupted first start can be continued.
- `trusted` counts in the journal's cookie. It is false while a bookie without durable writes (`unsafe_no_sync`) runs.
  It is also false from the detection of lost blocks until the loss is recorded for every ledger, so that the next start
  detects the loss again if this one is interrupted.
- `cluster` is the id of the cluster that the bookie joined; empty before that, and for a standalone process of an older
  version.
- `leaving` is set during a drain, so that the next start checks whether the drain was completed; see
  `bookie.membership`.

| journal's cookie | entries' cookie | meaning |
|---|---|---|
| none, directory empty | none, directory empty | a new bookie |
| not ready | none or not ready | the first start was interrupted: continue it |
| ready | ready, same UUID | this bookie; the greater incarnation counts |
| otherwise | | refuse to start; the error names the directory |

If the two incarnations differ, an update of the incarnation was interrupted, or one directory is an older copy. These
cases cannot be distinguished, so both count as a loss.

`run` is a random number, new at each start. If one directory is restored from an older copy, it lacks acknowledged
blocks, and its `run` differs from the other directory's. To distinguish this from an interrupted start, a start writes
its number in three steps: as `next_run` of the entries' cookie, as `run` of the journal's cookie, as `run` of the
entries' cookie. So the journal's `run` must equal `run` or `next_run` of the entries' cookie. (This does not detect the
restore of a copy that was made after the last start.)
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
"""Version of the format of journal, entry logs and index; it is raised when an older program would misread them."""

_HARMLESS: Final = frozenset({"lock", COOKIE, COOKIE + ".new", "lost+found"})
"""Files that may exist in an otherwise empty directory."""


class Cookie(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `identity.json`; see the module."""

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
    """Cookie of any layout, of which only the field `layout` is read."""

    layout: int = LAYOUT


class Identity:
    """Cookies of both directories, kept equal."""

    def __init__(
        self, journal: Disk, entries: Disk, cookie: Cookie, *, is_new: bool, is_suspect: bool
    ) -> None:
        self._disks = {"entries": entries, "journal": journal}
        self._cookie = cookie
        self.is_new = is_new
        """True until the first start has created the index; nothing was acknowledged before that."""
        self.is_suspect = is_suspect
        """True if the cookies show that blocks may have been lost."""

    @property
    def bookie_id(self) -> BookieId:
        return BookieId(self._cookie.uuid, self._cookie.incarnation)

    @property
    def cluster(self) -> str:
        """Id of the cluster that the bookie joined; "" before that."""
        return self._cookie.cluster

    @property
    def lossy_before(self) -> int:
        """Incarnation before which blocks may have been lost; requests for an earlier one may concern such blocks."""
        return self._cookie.lossy_before

    @property
    def uuid_bytes(self) -> bytes:
        return UUID(self._cookie.uuid).bytes

    def finish(self) -> None:
        """Mark both directories as complete: from then on, both must exist."""
        self._write(ready=True)
        self.is_new = False

    def raise_incarnation(self, *, blocks_lost: bool) -> None:
        """Raise the incarnation, because blocks (`blocks_lost`), or only fences and tombstones, may have been lost.

        After a loss of blocks, the directories are not trusted until `trust(True)` is called.
        """
        incarnation = self._cookie.incarnation + 1
        if blocks_lost:
            self._write(incarnation=incarnation, lossy_before=incarnation, trusted=False)
        else:
            self._write(incarnation=incarnation)

    def trust(self, trusted: bool) -> None:
        """Record whether the journal would be complete on disk if the process stopped now."""
        if trusted != self._cookie.trusted:
            self._write(trusted=trusted)

    def begin_run(self, rng: Random) -> None:
        """Begin a run: a new random number in both cookies shows whether either directory is an older copy."""
        run = f"{rng.getrandbits(64):016x}"
        self._write_one("entries", run=self._cookie.run, next_run=run)
        self._write_one("journal", run=run)
        self._write_one("entries", run=run)

    def join(self, cluster: str) -> None:
        """Record the cluster that the bookie has joined."""
        if cluster != self._cookie.cluster:
            self._write(cluster=cluster)

    def leave(self, leaving: bool) -> None:
        """Record whether the bookie drains."""
        if leaving != self._cookie.leaving:
            self._write(leaving=leaving)

    def _write(self, **changes: object) -> None:
        for role in self._disks:  # the journal's cookie last, because its `trusted` counts
            self._write_one(role, **changes)

    def _write_one(self, role: str, **changes: object) -> None:
        self._cookie = msgspec.structs.replace(self._cookie, **changes)
        cookie = msgspec.structs.replace(self._cookie, role=role)
        self._disks[role].write_bytes(COOKIE, msgspec.json.format(msgspec.json.encode(cookie)))


def open_identity(journal: Disk, entries: Disk, rng: Random) -> Identity:
    """Read the identity, or create it in empty directories. Raises `ConfigurationError` with the directory's name."""
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
    # If the first start was killed between its last two writes, only one cookie is ready: complete the other one now. A
    # suspect identity stays suspect until the incarnation is raised and the loss is recorded for every ledger.
    identity = Identity(journal, entries, cookie, is_new=False, is_suspect=is_suspect)
    if not is_suspect and not (in_journal.ready and in_entries.ready):
        identity.finish()
    return identity


def peek(journal: Disk, entries: Disk) -> Cookie | None:
    """Return the cookie of either directory, if one exists, without changing anything.

    Its `cluster` and `leaving` combine both cookies. Raises `ConfigurationError` if a cookie is invalid.
    """
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
    """Remove all files of the former bookie from both disks; the next start creates a new bookie.

    `directories` are the subdirectories to empty. The journal's cookie is replaced last, in one step, so an interrupted
    reset is repeated.
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
                    f"{disk.root} has no {COOKIE}, but contains {strangers[0]!r}; choose an empty directory, or "
                    "restore the cookie"
                )
        uuid = str(UUID(int=rng.getrandbits(128), version=4))
    # The journal's cookie is written first. Until it is ready, it marks an incomplete first start.
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
                f"{disk.root} was written by a newer Quire (layout {layout}, "
                f"this version supports {LAYOUT}); start the newer version"
            )
        cookie = msgspec.json.decode(raw, type=Cookie)
        UUID(cookie.uuid)
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigurationError(
            f"{path} is not a bookie's cookie ({error}); restore the right one"
        ) from error
    if role and cookie.role != role:
        raise ConfigurationError(
            f"{path} belongs to a directory for {cookie.role}, not for {role}; swap the two directories"
        )
    return cookie
