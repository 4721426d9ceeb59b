"""JSON: the bodies of admin requests, refused in a sentence or fit to be kept; and records of the metadata store."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from quire.metadata.records import (
    BookieRecord,
    LedgerRecord,
    NamespaceRecord,
    Policies,
    SegmentRecord,
    TenantRecord,
    decode,
    encode,
)
from quire.runtime.errors import ConfigurationError, CorruptionError
from quire.serving.admin import namespace_json, permissions, policy_json, requests, tenants


class Request:
    """A request of which only the body is looked at."""

    body_exists = True
    client_max_size = 1 << 20

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.content_length = len(body)

    async def read(self) -> bytes:
        return self._body


def admin(data: bytes) -> None:
    """One body, as each resource reads it."""
    request: Any = Request(data)
    value = _refused(lambda: _now(requests.json_of(request)))
    if value is REFUSED:
        return
    for policy in (*policy_json.POLICIES, *policy_json.QUOTAS.values()):
        parsed = _refused(lambda policy=policy: policy.shape.parse(value))  # type: ignore[misc]
        if parsed is not REFUSED:
            _kept(policy, parsed)
    position = _refused(lambda: requests.position_of(value))
    if position is not REFUSED:
        assert min(position) >= -(1 << 63) and max(position) < 1 << 63
    number = _refused(lambda: requests.whole(value, "number", least=1))
    assert number is REFUSED or (isinstance(number, int) and number >= 1)
    record = _refused(lambda: tenants._record("tenant", value, "cluster", takes_roles=True))
    if record is not REFUSED:
        assert decode(TenantRecord, encode(record), "tenant") == record
    made = _refused(lambda: namespace_json.namespace_of(value, "cluster", is_authorizing=True))
    if made is not REFUSED:
        whole = {**policy_json.shown(made[0], "cluster"), **permissions.shown_permissions(made[0])}
        shown = json.loads(json.dumps(whole))
        assert namespace_json.namespace_of(shown, "cluster", is_authorizing=True)[0] == made[0]


def _kept(policy: Any, parsed: Any) -> None:
    """What was accepted survives the metadata store, and the answer to a GET can be sent back."""
    record = NamespaceRecord(tenant="t", name="n", policies=policy.put(Policies(), parsed))
    assert decode(NamespaceRecord, encode(record), "namespace") == record
    shown = json.loads(json.dumps(policy.shape.show(parsed)))
    assert policy.shape.parse(shown) == parsed, f"{policy.field}: {parsed} is shown as {shown}"


RECORDS = (BookieRecord, LedgerRecord, NamespaceRecord, SegmentRecord, TenantRecord)


def records(data: bytes) -> None:
    """A node of the metadata store, as any of the records that processes write there."""
    for kind in RECORDS:
        try:
            record = decode(kind, data, "node")
        except CorruptionError:
            continue
        assert decode(kind, encode(record), "node") == record


REFUSED: Any = object()


def _refused(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (ConfigurationError, requests.Absent) as error:
        assert str(error)
        return REFUSED


def _now(work: Any) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")
