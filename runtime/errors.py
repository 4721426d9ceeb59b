"""Errors of Quire, by the caller's possible reaction.

Three outcomes are distinguished everywhere: *it did not happen* (most classes), *it is unknown whether it happened*
(`OutcomeUnknown`), and *it cannot be read* (`CorruptionError`). The last one differs from *it does not exist*
(`NotFound`). Exceptions of libraries (sqlite3, lmdb, boto3, kazoo) are mapped to these classes by the module that calls
the library.

A message is one sentence: the failed operation, its object, the reason, and a remedy if there is one.
"""

from typing import Final

GIVE_UP_COMMAND: Final = "quire ledgers recover {} --accept-loss"


class QuireError(Exception):
    """Base class of Quire's errors."""


class ConfigurationError(QuireError):
    """A setting, URL, directory or port is unusable; nothing was changed. Exit code 2."""


class WrongCluster(ConfigurationError):
    """A metadata store, object store or directory belongs to another cluster, or cannot prove its cluster.

    That data, records or bookies are missing there does not prove that they do not exist.
    """


class InUse(ConfigurationError):
    """The object to delete is in use: end its use, or force the deletion."""


class ProtocolError(QuireError):
    """A peer sent bytes or a command that the protocol does not allow. Its connection is closed."""


class NotFound(QuireError):
    """The requested object does not exist; the store that would contain it has confirmed that. Exit code 3."""


class AlreadyExists(QuireError):
    """An object of this name already exists."""


class VersionConflict(QuireError):
    """Another client changed a record since it was read (failed compare-and-set): read it again."""


class Unavailable(QuireError):
    """The operation did not happen, because a resource is temporarily unavailable: a retry may succeed. Exit code 4."""


class Unreadable(Unavailable):
    """The store works, but cannot read these bytes: a bad sector, a cold storage class, a disabled key.

    This does not prove damage, because the bytes may become readable. An operator decides whether to give them up.
    """


class OutcomeUnknown(QuireError):
    """The operation may or may not have happened: read the state again to find out."""


class IdUsedBefore(OutcomeUnknown):
    """A bookie has another ledger's blocks or tombstone under the id of a new ledger.

    The metadata store is older than the bookies' data. `bookie` is the UUID of that bookie.
    """

    def __init__(self, what: str, bookie: str) -> None:
        super().__init__(what)
        self.bookie = bookie


class CorruptionError(QuireError):
    """Bytes at rest do not match their checksum or their format.

    `file` and `offset` locate the bytes, for an operator.
    """

    def __init__(self, what: str, file: str = "", offset: int = -1) -> None:
        place = f" in {file} at offset {offset}" if file else ""
        super().__init__(what + place)
        self.file = file
        self.offset = offset


class LostForGood(CorruptionError):
    """Every copy of an entry is damaged or missing, and no missing bookie might still have one.

    Retries are useless. After an inspection, an operator can accept the loss by `GIVE_UP_COMMAND`.
    """

    def __init__(self, what: str, ledger_id: int, entry: int) -> None:
        super().__init__(
            f"{what}; `{GIVE_UP_COMMAND.format(ledger_id)}` lists the lost entries, and gives them up"
        )
        self.ledger_id = ledger_id
        self.entry = entry


class Fenced(QuireError):
    """Another owner has fenced the ledger or the topic; this writer must stop."""


class LimitExceeded(QuireError):
    """A request would exceed a limit of `quire.runtime.limits`, and was rejected entirely."""


class TooMany(LimitExceeded):
    """A limit for tenants is reached: remove some of the objects, or have an administrator raise the limit.

    `limit` is the limit's name in the table `[limits]` of the security file; rejections are counted by this name.
    """

    def __init__(self, limit: str, text: str) -> None:
        super().__init__(text)
        self.limit = limit


class NotAuthenticated(QuireError):
    """A caller's credentials are missing, wrong or expired. The message never contains them."""


class NotAuthorized(QuireError):
    """An authenticated caller lacks a permission; an administrator of the object can grant it."""


class DiskFull(QuireError):
    """A write was rejected, because the disk is full or its reserve is reached; reads continue."""


class DiskError(QuireError):
    """The operating system failed a disk operation (such as EIO); the bytes may or may not be written."""
