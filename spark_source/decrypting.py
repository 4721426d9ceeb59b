"""Decryption of entries with the user's private keys, before they are decoded like all others.

The keys are PEM files in one directory that every executor can read. The name of each file is the key's name in
messages, with or without `.pem`. Only files in the directory itself are read, even if a message contains another path
as the key's name.

The cryptography is the client's (`client.crypto`). A decrypted entry replaces the encrypted one; its metadata lacks the
fields about encryption. An entry that no key decrypts stays encrypted.
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
    """Create the decryptor for the option `crypto_key_dir`, in a task. Raises `ConfigurationError`."""
    if directory is None:
        return None
    if not Path(directory).is_dir():
        raise ConfigurationError(f"option crypto_key_dir={directory!r} is not a directory on every executor")
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
    """Return the entries, decrypted if a key matches; None if none was decrypted."""
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
    """Return the reason why an encrypted entry cannot be decrypted."""
    try:
        decryptor.decrypt(*message.read_metadata(entry))
    except Undecodable as error:
        return str(error)
    raise AssertionError("the entry was decrypted")


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
