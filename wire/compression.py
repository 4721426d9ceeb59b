"""Compression of payloads, with the five codecs of Pulsar's clients.

    NONE    uncompressed
    LZ4     one LZ4 block, no frame, no size prefix: the size comes from the metadata
    ZLIB    one zlib stream
    ZSTD    one zstd frame
    SNAPPY  one raw snappy block, which begins with the uncompressed size as a varint

A compressed payload is a client's input and may claim any size. A claim above UNCOMPRESSED_BYTES_MAX is refused before
any allocation, and the result must have exactly the size in the metadata.
"""

import zlib
from collections.abc import Callable
from typing import Final

import cramjam
import lz4.block
import zstandard

from quire.runtime.errors import QuireError
from quire.runtime.limits import UNCOMPRESSED_BYTES_MAX
from quire.wire import pulsar_pb2 as pb
from quire.wire import varint

Bytes = bytes | memoryview

NAMES: Final[dict[str, pb.CompressionType]] = {
    "none": pb.NONE,
    "lz4": pb.LZ4,
    "zlib": pb.ZLIB,
    "zstd": pb.ZSTD,
    "snappy": pb.SNAPPY,
}


class CompressionError(QuireError):
    """Raised if a payload does not decompress to the size in its metadata, or claims more than the limit."""


def compress(codec: int, data: Bytes) -> Bytes:
    """Compress `data`; `codec` is one of the `CompressionType`s in `NAMES`."""
    return data if codec == pb.NONE else _COMPRESS[codec](data)


def decompress(codec: int, data: Bytes, size: int) -> Bytes:
    """Decompress `data` to exactly `size` bytes. Raises `CompressionError`."""
    if codec == pb.NONE:
        return data
    if codec not in _DECOMPRESS:
        raise CompressionError(f"unsupported compression {codec}")
    if size > UNCOMPRESSED_BYTES_MAX:
        raise CompressionError(
            f"a payload claims {size} bytes uncompressed; the maximum is {UNCOMPRESSED_BYTES_MAX}"
        )
    try:
        result = _DECOMPRESS[codec](data, size)
    except (
        zlib.error,
        lz4.block.LZ4BlockError,
        zstandard.ZstdError,
        cramjam.DecompressionError,
        ValueError,
    ) as e:
        raise CompressionError(f"cannot decompress a payload: {e}") from None
    if len(result) != size:
        raise CompressionError(f"a payload decompresses to {len(result)} bytes instead of {size}")
    return result


def _from_lz4(data: Bytes, size: int) -> bytes:
    if not size:
        return b""
    raw: bytes = lz4.block.decompress(data, uncompressed_size=size)
    return raw


def _from_zlib(data: Bytes, size: int) -> bytes:
    stream = zlib.decompressobj()
    result = stream.decompress(data, size + 1)
    if len(result) == size and not stream.eof:
        raise ValueError("the stream is truncated")
    return result


def _from_zstd(data: Bytes, size: int) -> bytes:
    # The library uses the frame's own size even if it exceeds the given limit.
    if zstandard.frame_content_size(data) not in (-1, size):
        raise ValueError("the uncompressed size in the frame differs from that in the metadata")
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=size) if size else b""


def _from_snappy(data: Bytes, size: int) -> bytes:
    if varint.decode(data)[0] != size:
        raise ValueError("the size in the block differs from the size in the metadata")
    return bytes(cramjam.snappy.decompress_raw(data))


def _to_lz4(data: Bytes) -> bytes:
    raw: bytes = lz4.block.compress(data, store_size=False)
    return raw


_COMPRESS: Final[dict[int, Callable[[Bytes], bytes]]] = {
    pb.LZ4: _to_lz4,
    pb.ZLIB: lambda data: zlib.compress(data, 6),
    pb.ZSTD: lambda data: zstandard.ZstdCompressor(level=3).compress(data),
    pb.SNAPPY: lambda data: bytes(cramjam.snappy.compress_raw(data)),
}
_DECOMPRESS: Final[dict[int, Callable[[Bytes, int], bytes]]] = {
    pb.LZ4: _from_lz4,
    pb.ZLIB: _from_zlib,
    pb.ZSTD: _from_zstd,
    pb.SNAPPY: _from_snappy,
}
