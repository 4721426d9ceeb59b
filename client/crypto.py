"""End-to-end encryption: producers encrypt payloads, and consumers with a private key decrypt them; brokers cannot.

The format is that of [Pulsar's clients](https://pulsar.apache.org/docs/security-encryption/):

    data key           32 random bytes, which the producer renews every four hours
    payload            AES-256-GCM with the data key; a new 12-byte nonce for each entry (`encryption_param`), the tag
                       at the end
    encryption keys    in the metadata: the data key, encrypted with the public RSA key of each key name (OAEP, SHA-1)

A batch is compressed and then encrypted as a whole; each chunk of a chunked message is encrypted separately. Keys,
properties and times are not encrypted, because brokers need them.

Encryption needs the package `cryptography` (the extra `crypto`).
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from quire.runtime.errors import ConfigurationError
from quire.runtime.installation import pip_install
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import Buffer, Encrypted

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.padding import OAEP
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

DATA_KEY_S: Final = 4 * 3600.0
DATA_KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
UNWRAPPED_KEYS_MAX: Final = 1_000
"""Number of decrypted data keys that a consumer caches: decrypting one takes about a millisecond."""

FindKey = Callable[[str], bytes]
"""Function from a key's name to its PEM text. Raises KeyError (or any LookupError) for an unknown key."""


@dataclass(frozen=True)
class Encryption:
    """Public keys to encrypt messages with: `find` returns the PEM text of each of `key_names`."""

    key_names: Sequence[str]
    find: FindKey = field(repr=False)


def keys_from(files: Mapping[str, str | Path]) -> FindKey:
    """Return a function that reads keys from PEM files, by key name."""

    def find(name: str) -> bytes:
        return Path(files[name]).read_bytes()

    return find


class Encryptor:
    """Encrypts the entries of one producer."""

    def __init__(self, encryption: Encryption) -> None:
        if not encryption.key_names:
            raise ConfigurationError("encryption needs the name of at least one key")
        self._public = {name: _public_key(name, encryption.find) for name in encryption.key_names}
        self._made_s = -DATA_KEY_S
        self._cipher: AESGCM | None = None
        self._wrapped: list[pb.EncryptionKeys] = []
        self.renew(0.0)

    @property
    def bytes_added(self) -> int:
        """Number of bytes that encryption adds to an entry."""
        return sum(one.ByteSize() + 4 for one in self._wrapped) + NONCE_BYTES + TAG_BYTES + 4

    def renew(self, now_s: float) -> None:
        """Generate a new data key if the present one is older than four hours."""
        if now_s - self._made_s < DATA_KEY_S:
            return
        data_key = os.urandom(DATA_KEY_BYTES)
        self._wrapped = [
            pb.EncryptionKeys(key=name, value=public.encrypt(data_key, _oaep()))
            for name, public in self._public.items()
        ]
        self._cipher, self._made_s = _cipher(data_key), now_s

    def encrypt(self, metadata: pb.MessageMetadata, payload: Buffer) -> bytes:
        """Encrypt a payload, and write the encrypted data keys and the nonce to `metadata`."""
        assert self._cipher is not None
        nonce = os.urandom(NONCE_BYTES)
        del metadata.encryption_keys[:]
        metadata.encryption_keys.extend(self._wrapped)
        metadata.encryption_param = nonce
        return self._cipher.encrypt(nonce, bytes(payload), None)


class Decryptor:
    """Decrypts the entries of one consumer. `find` returns private keys by the names that producers gave them."""

    def __init__(self, find: FindKey) -> None:
        self._find = find
        self._private: dict[str, RSAPrivateKey] = {}
        self._ciphers: OrderedDict[bytes, AESGCM] = OrderedDict()

    def decrypt(self, metadata: pb.MessageMetadata, payload: Buffer) -> memoryview:
        """Decrypt a payload. Raises `Encrypted` if no private key can decrypt it."""
        from cryptography.exceptions import InvalidTag

        for one in metadata.encryption_keys:
            cipher = self._cipher_of(one)
            if cipher is None:
                continue
            try:
                plain = cipher.decrypt(metadata.encryption_param, bytes(payload), None)
            except (InvalidTag, ValueError):
                raise Encrypted("an entry was modified after its encryption, or is damaged") from None
            return memoryview(plain)
        names = ", ".join(repr(one.key) for one in metadata.encryption_keys)
        raise Encrypted(
            f"an entry is encrypted with the keys {names}, and this consumer has no private key that can decrypt it"
        )

    def _cipher_of(self, one: pb.EncryptionKeys) -> AESGCM | None:
        cipher = self._ciphers.get(one.value)
        if cipher is not None:
            self._ciphers.move_to_end(one.value)
            return cipher
        try:
            if one.key not in self._private:
                self._private[one.key] = _private_key(one.key, self._find)
            cipher = _cipher(self._private[one.key].decrypt(one.value, _oaep()))
        except (LookupError, ValueError, OSError):
            return None
        self._ciphers[one.value] = cipher
        if len(self._ciphers) > UNWRAPPED_KEYS_MAX:
            self._ciphers.popitem(last=False)
        return cipher


def _cipher(data_key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(data_key)


def _oaep() -> OAEP:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.padding import MGF1, OAEP

    return OAEP(MGF1(hashes.SHA1()), hashes.SHA1(), None)  # the parameters that all Pulsar clients use


def _public_key(name: str, find: FindKey) -> RSAPublicKey:
    serialization, rsa = _package()
    try:
        key = serialization.load_pem_public_key(find(name))
    except (LookupError, ValueError, OSError) as error:
        raise ConfigurationError(f"the public key {name!r} for encryption cannot be read: {error}") from None
    if not isinstance(key, rsa.RSAPublicKey):
        raise ConfigurationError(f"the public key {name!r} is not an RSA key")
    return cast("RSAPublicKey", key)


def _private_key(name: str, find: FindKey) -> RSAPrivateKey:
    serialization, rsa = _package()
    key = serialization.load_pem_private_key(find(name), None)
    if not isinstance(key, rsa.RSAPrivateKey):
        raise ValueError
    return cast("RSAPrivateKey", key)


def _package() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa
    except ImportError:
        raise ConfigurationError(
            f"encryption needs the package cryptography: {pip_install('crypto')}"
        ) from None
    return serialization, rsa
