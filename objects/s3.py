"""Object store in S3, or in a store with the same protocol, through boto3.

    s3://bucket/prefix?endpoint=http://host:9000&region=eu-west-1&access_key=…&secret_key=…

Without keys in the URL, boto3 finds credentials in its usual places (environment, `~/.aws`, the instance's role). Keys
never reach the metadata store: the store's `url` omits them. Set a URL with keys in the environment or a file, not on a
command line, which is visible in the process list.

An object of one part is uploaded by one PUT, a larger one by a multipart upload in parts of at least 8 MiB. Both are
conditional ([`If-None-Match: *`](https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html)), so a
name is never overwritten. boto3 retries calls by itself. If a retry finds that the name is taken, the first attempt may
have succeeded, so the outcome is unknown (`OutcomeUnknown`).

boto3 is an optional dependency and takes half a second to import, so it is imported when the first store is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

from quire.objects.store import THREADS, ObjectInfo, ObjectStore
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
from quire.runtime.installation import pip_install
from quire.runtime.limits import MIB
from quire.wire.block import Buffer

CONNECT_TIMEOUT_S: Final = 5
READ_TIMEOUT_S: Final = 30
ATTEMPTS_MAX: Final = 4
_OPTIONS: Final = {"endpoint", "region", "access_key", "secret_key", "session_token"}
_MISCONFIGURED: Final = {
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "NoSuchBucket",
    "PermanentRedirect",
    "AuthorizationHeaderMalformed",
    "403",
}


class Patience(NamedTuple):
    """Limits of calls to a store: attempts per call, time-out of an attempt in seconds, concurrent connections."""

    attempts_max: int = ATTEMPTS_MAX
    timeout_s: float = READ_TIMEOUT_S
    connections: int = THREADS * 2


PATIENT: Final = Patience()


@dataclass(frozen=True)
class S3Location:
    """Bucket, prefix and access parameters of a store. `prefix` is empty or ends in `/`."""

    bucket: str
    prefix: str
    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = None
    session_token: str | None = None

    @classmethod
    def parse(cls, url: str) -> S3Location:
        """Parse a URL. Raises `ConfigurationError`."""
        parts = urlsplit(url)
        options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        unknown = options.keys() - _OPTIONS
        if parts.scheme != "s3" or not parts.netloc or unknown:
            what = f"unknown option {', '.join(sorted(unknown))}" if unknown else "no bucket"
            raise ConfigurationError(f"{_without_query(url)}: {what}; write s3://bucket/prefix?endpoint=…")
        prefix = unquote(parts.path).strip("/")
        return cls(parts.netloc, f"{prefix}/" if prefix else "", **options)

    @property
    def url(self) -> str:
        """URL without credentials."""
        named = {"endpoint": self.endpoint, "region": self.region}
        query = "&".join(f"{name}={quote(value, safe=':/')}" for name, value in named.items() if value)
        return f"s3://{self.bucket}/{quote(self.prefix.rstrip('/'))}" + (f"?{query}" if query else "")


class S3BlockingStore:
    """`BlockingStore` in an S3 bucket. Opening it sends no request; `prepare` does."""

    def __init__(self, location: S3Location, patience: Patience | None = None) -> None:
        patience = patience or PATIENT
        self.url = location.url
        self.read_bytes_best = 4 * MIB
        self._attempts_max = patience.attempts_max
        self.bucket = location.bucket
        self._prefix = location.prefix
        self.client = _client(location, patience)

    def prepare(self) -> None:
        with self.mapped_errors("list", ""):
            self.client.list_objects_v2(Bucket=self.bucket, Prefix=self._prefix, MaxKeys=1)

    def room_bytes(self) -> int | None:
        return None

    def begin(self, name: str) -> _S3Upload:
        return _S3Upload(self, name)

    def key(self, name: str) -> str:
        return self._prefix + name

    def get_range(self, name: str, offset: int, length: int) -> Buffer:
        with self.mapped_errors("read", name):
            content = self._read(name, f"bytes={offset}-{offset + length - 1}")
        if len(content) < length:
            raise CorruptionError(
                f"the object ends before byte {offset + length}", self.describe(name), offset + len(content)
            )
        if len(content) > length:
            raise CorruptionError(
                f"the store returned {len(content)} bytes instead of {length}", self.describe(name), offset
            )
        return content

    def _read(self, name: str, span: str) -> bytes:
        """Read a range; retry if the body ends early, because boto3 retries only failed requests."""
        import botocore.exceptions as foreign

        for attempt in range(1, self._attempts_max + 1):
            answer = self.client.get_object(Bucket=self.bucket, Key=self.key(name), Range=span)
            try:
                content: bytes = answer["Body"].read()
                return content
            except (foreign.BotoCoreError, foreign.HTTPClientError, OSError):
                if attempt == self._attempts_max:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def size(self, name: str) -> int:
        with self.mapped_errors("look at", name, is_head=True):
            return int(self.client.head_object(Bucket=self.bucket, Key=self.key(name))["ContentLength"])

    def delete(self, name: str) -> None:
        with suppress(NotFound), self.mapped_errors("delete", name, writes=True):
            self.client.delete_object(Bucket=self.bucket, Key=self.key(name))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with self.mapped_errors("list", prefix):
            pages = self.client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=self.key(prefix)
            )
            for page in pages:
                for item in page.get("Contents", ()):
                    name = item["Key"].removeprefix(self._prefix)
                    yield ObjectInfo(name, item["Size"], int(item["LastModified"].timestamp() * 1000))

    def sweep(self, before_ms: int) -> int:
        swept = 0
        with self.mapped_errors("sweep", ""):
            pages = self.client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self.bucket, Prefix=self._prefix
            )
            for page in pages:
                for item in page.get("Uploads", ()):
                    if item["Initiated"].timestamp() * 1000 < before_ms:
                        self.client.abort_multipart_upload(
                            Bucket=self.bucket, Key=item["Key"], UploadId=item["UploadId"]
                        )
                        swept += 1
        return swept

    def close(self) -> None:
        self.client.close()

    def describe(self, name: str) -> str:
        return f"s3://{self.bucket}/{self.key(name)}"

    @contextmanager
    def mapped_errors(
        self, what: str, name: str, *, writes: bool = False, is_head: bool = False
    ) -> Iterator[None]:
        """Map boto3's exceptions.

        `writes` is set if a lost response means an unknown outcome, `is_head` if error responses have no body.
        """
        import botocore.exceptions as foreign

        try:
            yield
        except foreign.ClientError as error:
            message = f"cannot {what} {self.describe(name)}"
            raise _map_answer(error.response, message, writes=writes, is_head=is_head) from error
        except (foreign.NoCredentialsError, foreign.PartialCredentialsError) as error:
            raise ConfigurationError(f"no credentials for {self.describe(name)}: {error}") from error
        except foreign.EndpointConnectionError as error:
            raise Unavailable(f"cannot {what} {self.describe(name)}: {error}") from error
        except (foreign.BotoCoreError, foreign.HTTPClientError, OSError) as error:
            kind = OutcomeUnknown if writes else Unavailable
            raise kind(f"cannot {what} {self.describe(name)}: {error}") from error


class S3Store(ObjectStore):
    """`ObjectStore` in an S3 bucket."""

    def __init__(self, location: S3Location) -> None:
        super().__init__(S3BlockingStore(location))


class _S3Upload:
    """Upload in progress. It holds each part back until the next call, because an object of one part needs a PUT."""

    def __init__(self, store: S3BlockingStore, name: str) -> None:
        self._store = store
        self._name = name
        self._where = {"Bucket": store.bucket, "Key": store.key(name)}
        self._held: bytes | None = None
        self._upload_id = ""
        self._parts: list[dict[str, Any]] = []

    def write(self, parts: Sequence[Buffer]) -> None:
        if self._held is not None:
            self._upload_held()
        self._held = b"".join(parts)

    def finish(self) -> None:
        if not self._upload_id:
            with self._store.mapped_errors("write", self._name, writes=True):
                self._store.client.put_object(**self._where, Body=self._held or b"", IfNoneMatch="*")
            return
        self._upload_held()
        with self._store.mapped_errors("write", self._name, writes=True):
            self._store.client.complete_multipart_upload(
                **self._where,
                UploadId=self._upload_id,
                MultipartUpload={"Parts": self._parts},
                IfNoneMatch="*",
            )
        self._upload_id = ""

    def abort(self) -> None:
        if not self._upload_id:
            return
        try:
            with self._store.mapped_errors("abort", self._name):
                self._store.client.abort_multipart_upload(**self._where, UploadId=self._upload_id)
        except QuireError:
            pass  # `sweep` aborts it later

    def _upload_held(self) -> None:
        """Upload the held part. The object is not visible yet, so a lost response is only `Unavailable`."""
        assert self._held is not None
        with self._store.mapped_errors("write", self._name):
            if not self._upload_id:
                self._upload_id = self._store.client.create_multipart_upload(**self._where)["UploadId"]
            number = len(self._parts) + 1
            answer = self._store.client.upload_part(
                **self._where, UploadId=self._upload_id, PartNumber=number, Body=self._held
            )
        self._parts.append({"PartNumber": number, "ETag": answer["ETag"]})
        self._held = None


def _map_answer(response: Any, message: str, *, writes: bool, is_head: bool) -> QuireError:
    """Map an S3 error response to a QuireError.

    Only the store's own error code for a key proves absence; a proxy's 404 page means an unavailable store. If the
    completion of an upload finds no such upload, the response to an earlier completion may have been lost; then the
    outcome is unknown.
    """
    code = response.get("Error", {}).get("Code", "")
    meta = response.get("ResponseMetadata", {})
    status = meta.get("HTTPStatusCode", 0)
    message = f"{message}: {code or status} {response.get('Error', {}).get('Message', '')}".rstrip()
    if code in _MISCONFIGURED:
        return ConfigurationError(message)
    if code == "InvalidObjectState" or code.startswith("KMS."):
        return Unreadable(message)
    if code in ("PreconditionFailed", "412"):
        return OutcomeUnknown(message) if meta.get("RetryAttempts") else AlreadyExists(message)
    if status == 404 and (is_head or code == "NoSuchKey"):
        return NotFound(message)
    if status == 416:
        return CorruptionError(message)
    return OutcomeUnknown(message) if writes and (status >= 500 or status == 404) else Unavailable(message)


def _client(location: S3Location, patience: Patience) -> Any:
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError:
        raise ConfigurationError(
            f"an object store at s3:// needs the package boto3: {pip_install('s3')}"
        ) from None
    config = Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=patience.timeout_s,
        retries={"mode": "standard", "total_max_attempts": patience.attempts_max},
        max_pool_connections=patience.connections,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path"} if location.endpoint else {},
    )
    try:
        return boto3.session.Session().client(
            "s3",
            endpoint_url=location.endpoint,
            region_name=location.region or ("us-east-1" if location.endpoint else None),
            aws_access_key_id=location.access_key,
            aws_secret_access_key=location.secret_key,
            aws_session_token=location.session_token,
            config=config,
        )
    except (BotoCoreError, ValueError) as error:
        raise ConfigurationError(f"cannot open object store {location.url}: {error}") from error


def _without_query(url: str) -> str:
    """Return a URL without its query, which contains the credentials, for display."""
    return url.partition("?")[0]
