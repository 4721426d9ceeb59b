"""Encrypted entries opened with the user's own private keys, so that they are decoded as all others are.

The keys are files in PEM format in one directory that every executor can read, each named as the producers name the
key, with or without `.pem` after it. Only files in that directory itself are looked at, whatever a message calls its
key.

The cryptography is the client's (`client.crypto`). An opened entry is put in the place of the encrypted one, with its
metadata but for what said how it was encrypted; one that no key opens stays as it is.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from quire.client.crypto import Decryptor
from quire.runtime.errors import ConfigurationError
from quire.spark_source.protobuf import Bytes
from quire.spark_source.rows import Entries
from quire.wire import message
from quire.wire.message import Undecodable

_ENDINGS: Final = ("", ".pem")


def decryptor_of(directory: str | None) -> Decryptor | None:
    """For the option `crypto_key_dir`, as a task sees it. Raises `ConfigurationError`."""
    if directory is None:
        return None
    if not Path(directory).is_dir():
        raise ConfigurationError(f"option crypto_key_dir={directory!r} is no directory on every executor")
    return Decryptor(partial(_find, Path(directory)))


def _find(directory: Path, name: str) -> bytes:
    if "/" in name or "\0" in name:
        raise LookupError(name)
    for ending in _ENDINGS:
        path = directory / (name + ending)
        if path.is_file():
            return path.read_bytes()
    raise LookupError(name)


def opened(run: Entries, decryptor: Decryptor) -> Entries | None:
    """The same entries with those opened that a key fits; None when there is none."""
    raw = memoryview(run.data.data)
    parts = [raw[int(start) : int(end)] for start, end in zip(run.start, run.end, strict=True)]
    plain = [_open(entry, decryptor) for entry in parts]
    if not any(plain):
        return None
    made = [one or entry for one, entry in zip(plain, parts, strict=True)]
    end = np.cumsum([len(one) for one in made])
    start = np.concatenate((np.zeros(1, np.int64), end[:-1]))
    return run._replace(data=Bytes(b"".join(made)), start=start, end=end)


def why_closed(entry: memoryview, decryptor: Decryptor) -> str:
    """Why an encrypted entry stays as it is."""
    try:
        decryptor.decrypt(*message.read_metadata(entry))
    except Undecodable as error:
        return str(error)
    raise AssertionError("it was opened")


def _open(entry: memoryview, decryptor: Decryptor) -> bytes | None:
    try:
        metadata, payload = message.read_metadata(entry)
        if not message.is_encrypted(metadata):
            return None
        plain = decryptor.decrypt(metadata, payload)
    except Undecodable:
        return None
    metadata.ClearField("encryption_keys")
    metadata.ClearField("encryption_algo")
    metadata.ClearField("encryption_param")
    return message.seal(metadata, plain)
