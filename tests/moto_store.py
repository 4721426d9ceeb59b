"""Moto's S3 server with conditional writes that are one step, as S3's are.

moto looks whether the name is there and then writes: on a busy machine two of the same name may both succeed. Here
whoever writes an object does so alone.

    with moto_store("bucket") as endpoint: ...               # in this process
    python tests/moto_store.py --host 127.0.0.1 --port 4711  # as one of its own

All servers of a process have the same buckets.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer
from moto.server import main as serve

_writing = threading.Lock()


def _alone(method: str) -> None:
    unguarded = getattr(S3Response, method)

    def guarded(self: S3Response, *args: Any) -> Any:
        with _writing:
            return unguarded(self, *args)

    setattr(S3Response, method, guarded)


for _method in ("put_object", "_key_response_post"):  # the latter completes uploads in parts
    _alone(_method)


def make_bucket(endpoint: str, name: str) -> None:
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=endpoint, **keys).create_bucket(Bucket=name)


@contextmanager
def moto_store(*buckets: str) -> Iterator[str]:
    """Its endpoint, `http://127.0.0.1:PORT`; the buckets are there, for any keys."""
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    for bucket in buckets:
        make_bucket(endpoint, bucket)
    try:
        yield endpoint
    finally:
        server.stop()


if __name__ == "__main__":
    serve()
