"""What S3 adds to the contract: its URL, and what its answers mean."""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator, Iterator

import pytest

from quire.objects.open import open_blocking, open_store
from quire.objects.s3 import S3BlockingStore, S3Location, _map_answer
from quire.runtime.errors import (
    AlreadyExists,
    ConfigurationError,
    CorruptionError,
    NotFound,
    OutcomeUnknown,
    QuireError,
    Unavailable,
    Unreadable,
)
from quire.runtime.limits import OBJECT_PART_BYTES
from quire.wire.block import Buffer
from tests.moto_store import moto_store

KEYS = "access_key=test&secret_key=test"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto_store("here") as url:
        yield url


async def parts(*contents: Buffer) -> AsyncIterator[Buffer]:
    for content in contents:
        yield content


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://b", S3Location("b", "")),
        ("s3://b/", S3Location("b", "")),
        ("s3://b/a/c/", S3Location("b", "a/c/")),
        (
            "s3://b/p?endpoint=http://h:1&region=eu&access_key=a&secret_key=s%2F",
            S3Location("b", "p/", "http://h:1", "eu", "a", "s/"),
        ),
    ],
)
def test_urls(url: str, expected: S3Location) -> None:
    found = S3Location.parse(url)
    assert found == expected
    again = S3Location.parse(found.url)
    assert (again.bucket, again.prefix, again.endpoint, again.region) == (
        found.bucket,
        found.prefix,
        found.endpoint,
        found.region,
    )
    assert again.secret_key is None


@pytest.mark.parametrize(
    "url", ["s3://", "s3:///x", "s3://b?endpont=x&secret_key=hush", "ftp://x", "file://", "x"]
)
def test_a_wrong_url_says_so_and_keeps_the_secret(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_blocking(url)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "code", "retries", "writes", "expected"),
    [
        (404, "NoSuchKey", 0, False, NotFound),
        (404, "404", 0, False, Unavailable),
        (404, "NoSuchUpload", 0, False, Unavailable),
        (404, "NoSuchUpload", 1, True, OutcomeUnknown),
        (404, "NoSuchBucket", 0, False, ConfigurationError),
        (403, "InvalidObjectState", 0, False, Unreadable),
        (400, "KMS.DisabledException", 0, False, Unreadable),
        (403, "AccessDenied", 0, True, ConfigurationError),
        (412, "PreconditionFailed", 0, True, AlreadyExists),
        (412, "PreconditionFailed", 1, True, OutcomeUnknown),
        (409, "ConditionalRequestConflict", 0, True, Unavailable),
        (416, "InvalidRange", 0, False, CorruptionError),
        (503, "SlowDown", 0, False, Unavailable),
        (500, "InternalError", 3, True, OutcomeUnknown),
        (400, "BadDigest", 0, True, Unavailable),
    ],
)
def test_what_an_answer_means(
    status: int, code: str, retries: int, writes: bool, expected: type[QuireError]
) -> None:
    response = {
        "Error": {"Code": code, "Message": "m"},
        "ResponseMetadata": {"HTTPStatusCode": status, "RetryAttempts": retries},
    }
    error = _map_answer(response, "cannot write s3://b/x", writes=writes, is_head=False)
    assert type(error) is expected
    assert "s3://b/x" in str(error)
    assert code in str(error)


def test_an_answer_without_a_body_tells_by_its_status_that_there_is_no_object() -> None:
    response = {"Error": {"Code": "404"}, "ResponseMetadata": {"HTTPStatusCode": 404}}
    assert type(_map_answer(response, "", writes=False, is_head=True)) is NotFound


async def test_a_missing_bucket_is_a_configuration_error(endpoint: str) -> None:
    store = open_store(f"s3://elsewhere/p?endpoint={endpoint}&{KEYS}")
    with pytest.raises(ConfigurationError, match="elsewhere"):
        await store.prepare()
    await store.close()


async def test_a_bucket_that_is_there_is_ready(endpoint: str) -> None:
    store = open_store(f"s3://here/p?endpoint={endpoint}&{KEYS}")
    await store.prepare()
    await store.close()


async def test_nobody_at_the_endpoint_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.objects.s3.ATTEMPTS_MAX", 1)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        store = open_store(f"s3://b/p?endpoint=http://127.0.0.1:{port}&{KEYS}")
        with pytest.raises(Unavailable):
            await store.prepare()
        with pytest.raises(Unavailable):
            await store.put("x", parts(b"1"))
    await store.close()


def test_without_boto3_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigurationError, match=r"pip install .*\[s3\]"):
        open_blocking("s3://b/p")


async def test_without_credentials_it_is_a_configuration_error(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    nowhere = str(tmp_path_factory.mktemp("home") / "none")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", nowhere)
    monkeypatch.setenv("AWS_CONFIG_FILE", nowhere)
    store = open_store(f"s3://here/p?endpoint={endpoint}")
    with pytest.raises(ConfigurationError, match="credentials"):
        await store.prepare()
    await store.close()


async def test_a_large_upload_that_loses_the_race_is_refused_and_leaves_no_upload(endpoint: str) -> None:
    store = open_store(f"s3://here/race?endpoint={endpoint}&{KEYS}")
    assert isinstance(store.blocking, S3BlockingStore)
    large = bytes(OBJECT_PART_BYTES)

    async def overtaken() -> AsyncIterator[Buffer]:
        yield large
        yield large
        await store.put("x", parts(b"first"))
        yield b"end"

    with pytest.raises(AlreadyExists):
        await store.put("x", overtaken())
    assert bytes(await store.get_range("x", 0, 5)) == b"first"
    uploads = store.blocking.client.list_multipart_uploads(Bucket="here", Prefix="race/")
    assert uploads.get("Uploads", []) == []
    await store.close()
