"""The errors of Quire, by what the reader of one can do about it.

Three outcomes are told apart everywhere: *it did not happen* (most classes), *it is not known whether it
happened* (`OutcomeUnknown`), and *it cannot be read* (`CorruptionError`), which is never the same as *it is
not there* (`NotFound`). Exceptions of foreign libraries (sqlite3, lmdb, boto3, kazoo) are mapped to these at
the edge that calls the library and never travel further.

A message says what happened, to what, and what to do, in one sentence.
"""

from typing import Final

GIVE_UP_COMMAND: Final = "quire ledgers recover {} --accept-loss"


class QuireError(Exception):
    """Base of every error that Quire raises on purpose."""


class ConfigurationError(QuireError):
    """A setting, URL, directory or port cannot be used as it is; nothing was changed. Exit code 2."""


class InUse(ConfigurationError):
    """Somebody uses what was to be deleted; end that use, or delete it by force."""


class ProtocolError(QuireError):
    """A peer sent bytes or a command that its protocol does not allow. Costs that one connection."""


class NotFound(QuireError):
    """It was looked for where it would be, and it is proven not to be there. Exit code 3."""


class AlreadyExists(QuireError):
    """Something of this name is there already."""


class VersionConflict(QuireError):
    """A record was changed by someone else since it was read; read it again."""


class Unavailable(QuireError):
    """Not now: the operation did not happen, and may work when tried again. Exit code 4."""


class OutcomeUnknown(QuireError):
    """The operation may or may not have happened; only looking again will tell."""


class CorruptionError(QuireError):
    """Bytes at rest do not match their checksum or their format.

    `file` and `offset` name the place, so that an operator can look at it.
    """

    def __init__(self, what: str, file: str = "", offset: int = -1) -> None:
        place = f" in {file} at offset {offset}" if file else ""
        super().__init__(what + place)
        self.file = file
        self.offset = offset


class LostForGood(CorruptionError):
    """Every copy of an entry is damaged or gone, and no bookie is missing that might still have one.

    Trying again does not help. `GIVE_UP_COMMAND` is what that ends it, once a person has looked.
    """

    def __init__(self, what: str, ledger_id: int, entry: int) -> None:
        super().__init__(f"{what}; `{GIVE_UP_COMMAND.format(ledger_id)}` shows what is lost, and gives it up")
        self.ledger_id = ledger_id
        self.entry = entry


class Fenced(QuireError):
    """Another owner has taken over the ledger or the topic; this writer is done."""


class LimitExceeded(QuireError):
    """A limit of `quire.runtime.limits` would be broken; the request was refused whole."""


class TooMany(LimitExceeded):
    """There are as many of something as a limit for tenants allows: end some, or have the limit raised.

    `limit` is its name in the security file's table `[limits]`, under which refusals are counted.
    """

    def __init__(self, limit: str, text: str) -> None:
        super().__init__(text)
        self.limit = limit


class NotAuthenticated(QuireError):
    """Who asks has not proven who he is: nothing came, or what came is wrong or expired. Never quotes it."""


class NotAuthorized(QuireError):
    """Who asks is known, and may not do this; someone who administers it can grant it."""


class DiskFull(QuireError):
    """A write was refused because the disk is full or its reserve is reached; reads go on."""


class DiskError(QuireError):
    """The operating system refused a disk operation (EIO and the like); the bytes' fate is unknown."""
