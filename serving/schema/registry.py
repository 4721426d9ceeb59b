"""Schema registry, a shell: stores versions of schemas, and checks the schemas of clients.

    producer ─ PRODUCER, GET_OR_CREATE_SCHEMA ─┐                              ┌─ its version, eight bytes
    REST ──────────────────────────────────────┼▶ known? else: compatible? ───┤
    consumer ─ SUBSCRIBE ──────────────────────┘   then the next version      └─ `SchemaRefused`, with the reason

A topic's versions are one record of the metadata store, changed by version only, and shared by its partitions: brokers
that own different partitions assign the same numbers. Each request reads the record, so no cache can be
stale, and idle topics cost nothing; only clients that open producers or consumers with a schema cause requests.

A schema that equals an existing version gets that version's number, also if a request is repeated. A deletion
invalidates all versions so far. The next version need not be compatible with them, and gets the next number, so that a
message's version always identifies its schema.

Parsing and comparing hostile definitions may take tenths of a second, so it runs on a helper thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Final, NamedTuple
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from quire.metadata import paths, topics
from quire.metadata.records import decode, encode
from quire.metadata.schema_records import SchemaBody, SchemasRecord, SchemaVersion
from quire.metadata.store import ANY_VERSION, CHANGE_ATTEMPTS, Check, Create, Delete, MetadataStore, Put, Step
from quire.runtime.clock import Clock
from quire.runtime.errors import AlreadyExists, LimitExceeded, NotFound, Unavailable, VersionConflict
from quire.runtime.limits import SCHEMA_VERSIONS_MAX, SCHEMAS_INLINE_BYTES_MAX
from quire.runtime.threads import DaemonThreads
from quire.serving.names import TopicName
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.policy.strategy import Strategy, for_consumer
from quire.serving.schema.definition import Definition, SchemaRefused, fingerprint, validate
from quire.wire import pulsar_pb2 as pb

VERSION_BYTES: Final = 8
NO_VERSION: Final = b""
"""Version for clients whose messages have no schema."""


class StoredSchemas(NamedTuple):
    """Record of a topic's schemas at the time of a read; `node_version` is None if the record does not exist."""

    path: str
    record: SchemasRecord
    node_version: int | None

    @property
    def current(self) -> tuple[SchemaVersion, ...]:
        """Valid versions, oldest first: those since the last deletion."""
        versions = self.record.versions
        ends = [at for at, version in enumerate(versions) if version.deleted]
        return versions[ends[-1] + 1 :] if ends else versions

    def find(self, number: int) -> SchemaVersion | None:
        """Return a version, even if a later deletion invalidated it."""
        versions = self.record.versions
        return versions[number] if 0 <= number < len(versions) and not versions[number].deleted else None


class Version(NamedTuple):
    """Version of a schema, with its definition."""

    number: int
    created_ms: int
    definition: Definition

    @property
    def wire(self) -> bytes:
        return to_wire(self.number)


def to_wire(number: int) -> bytes:
    """Encode a version number for clients."""
    return number.to_bytes(VERSION_BYTES, "big")


def from_wire(version: bytes) -> int:
    """Decode a version number; return -1 if it is malformed."""
    return int.from_bytes(version, "big") if len(version) == VERSION_BYTES else -1


class SchemaSummary(Struct, rename="camel"):
    """Summary of a topic's schema, with the number and the time (ms since 1970) of the newest version."""

    topic: str
    type: str
    versions: int
    version: int
    changed_ms: int


class Schemas:
    def __init__(self, store: MetadataStore, clock: Clock, helpers: DaemonThreads) -> None:
        self._store = store
        self._clock = clock
        self._helpers = helpers

    # -- clients ---------------------------------------------------------------------------------------

    async def for_producer(self, name: TopicName, policies: TopicPolicies, schema: pb.Schema | None) -> bytes:
        """Return the version of a producer's schema; a new schema is added to the topic.

        Raises `SchemaRefused`, `SchemaInvalid`, `LimitExceeded`.
        """
        definition = None if schema is None else Definition.of(schema)
        if definition is None or not definition.is_schema:
            if policies.schema_enforced and (await self._read(name)).current:
                raise SchemaRefused(
                    f"topic {name} accepts no messages without a schema: create the producer with a schema"
                )
            return NO_VERSION
        strategy = Strategy(policies.schema_compatibility)
        return to_wire(await self.add(name, definition, strategy, allowed=policies.schema_auto_update))

    async def for_consumer(
        self,
        name: TopicName,
        policies: TopicPolicies,
        schema: pb.Schema | None,
        *,
        in_use: bool,
        may_add: bool,
    ) -> None:
        """Check that a consumer's schema can read the topic's messages. Raises `SchemaRefused`, `SchemaInvalid`.

        If the topic has no schema and is not `in_use` (has neither messages nor producers), the consumer's schema
        becomes the topic's if the consumer `may_add` it. Otherwise the consumer uses its own schema, even if producers
        register another schema later.
        """
        definition = None if schema is None else Definition.of(schema)
        if definition is None or not definition.is_schema:
            return
        strategy = Strategy(policies.schema_compatibility)
        await self._helpers.run(partial(validate, definition))
        current = (await self._read(name)).current or (await self._read_again(name)).current
        if current:
            await self._check(name, current, definition, for_consumer(strategy))
        elif not in_use:
            if may_add:
                await self.add(name, definition, strategy, allowed=policies.schema_auto_update)
        elif strategy is not Strategy.ALWAYS_COMPATIBLE:
            raise SchemaRefused(
                f"topic {name} has messages or producers, but no schema: subscribe without a schema"
            )

    # -- versions --------------------------------------------------------------------------------------

    async def find(self, name: TopicName, number: int | None = None) -> Version | None:
        """Return the newest version, or the version with this number; None if there is none."""
        known = await self._read(name)
        if number is None:
            found = known.current[-1] if known.current else None
        else:
            found = known.find(number) or (await self._read_again(name)).find(number)
        return None if found is None else await self._load(found)

    async def topics(self, tenant: str, namespace: str) -> list[TopicName]:
        """List the persistent topics of a namespace that have, or had, a schema; partitioned topics, not partitions."""
        folder, _ = paths.schema_folders(tenant, namespace)
        found = await self._store.children(folder)
        return sorted(TopicName("persistent", tenant, namespace, paths.decode(one)) for one in found)

    async def summary(self, name: TopicName) -> SchemaSummary | None:
        """Return the kind, the number and the age of a topic's valid versions; None if there are none."""
        current = (await self._read(name)).current
        if not current:
            return None
        newest = current[-1]
        return SchemaSummary(str(name), newest.kind, len(current), newest.number, newest.created_ms)

    async def versions(self, name: TopicName) -> AsyncIterator[Version]:
        """Yield the valid versions, oldest first."""
        for one in (await self._read(name)).current:
            yield await self._load(one)

    async def numbers(self, name: TopicName) -> list[int]:
        """Return the numbers of the valid versions, oldest first."""
        return [one.number for one in (await self._read(name)).current]

    async def number_of(self, name: TopicName, definition: Definition) -> int | None:
        """Return the number of the version that equals `definition`; None if there is none. Raises `SchemaInvalid`."""
        digest = await self._helpers.run(partial(_fingerprint_of, definition))
        return _same(await self._read(name), digest)

    async def check(self, name: TopicName, definition: Definition, strategy: Strategy) -> None:
        """Check that a schema is compatible with the topic's schemas. Raises `SchemaRefused`, `SchemaInvalid`."""
        await self._helpers.run(partial(validate, definition))
        await self._check(name, (await self._read(name)).current, definition, strategy)

    async def add(
        self, name: TopicName, definition: Definition, strategy: Strategy, *, allowed: bool = True
    ) -> int:
        """Return the number of the version that equals `definition`; if there is none, add a version.

        Raises the errors of `for_producer`.
        """
        digest = await self._helpers.run(partial(_fingerprint_of, definition))
        for _ in range(CHANGE_ATTEMPTS):
            guard = await self._while_there(name)
            known = await self._read(name)
            same = _same(known, digest)
            if same is not None:
                return same
            if not allowed:
                raise SchemaRefused(
                    f"topic {name} has no such schema, and its policy does not let clients add any: add it over REST"
                )
            await self._check(name, known.current, definition, strategy)
            if await self._append(name, known, definition, digest, guard):
                return len(known.record.versions)
        raise Unavailable(f"the schema of {name} is being changed by other requests; try again")

    async def delete(self, name: TopicName) -> int:
        """Invalidate all versions so far; return the version number of this deletion. Raises `NotFound`."""
        for _ in range(CHANGE_ATTEMPTS):
            guard = await self._while_there(name)
            known = await self._read(name)
            if not known.current:
                raise NotFound(f"topic {name} has no schema")
            end = SchemaVersion(
                number=len(known.record.versions), created_ms=self._clock.now_ms(), deleted=True
            )
            if await self._write(known, end, *guard):
                return end.number
        raise Unavailable(f"the schema of {name} is being changed by other requests; try again")

    async def forget(self, name: TopicName) -> None:
        """Delete the schemas of a deleted topic."""
        for _ in range(CHANGE_ATTEMPTS):
            steps = await self.removal(name)
            if not steps or await self._commit(steps):
                return
        raise Unavailable(f"the schema of {name} is being changed by other requests; try the deletion again")

    async def removal(self, name: TopicName) -> list[Step]:
        """Return the operations that delete the topic's schemas, for its deletion."""
        known = await self._read(name)
        if known.node_version is None:
            return []
        apart = [Delete(one.apart, ANY_VERSION) for one in known.record.versions if one.apart]
        return [Delete(known.path, known.node_version), *apart]

    # -- the record ------------------------------------------------------------------------------------

    async def _read(self, name: TopicName) -> StoredSchemas:
        path = paths.schemas(name.tenant, name.namespace, (name.parent or name).local, name.domain)
        try:
            node = await self._store.get(path)
        except NotFound:
            return StoredSchemas(path, SchemasRecord(), None)
        return StoredSchemas(path, decode(SchemasRecord, node.value, path), node.version)

    async def _while_there(self, name: TopicName) -> Sequence[Step]:
        """Return a check that the topic is not being deleted; a schema may exist before its topic."""
        return await topics.while_there(self._store, (name.parent or name).path)

    async def _read_again(self, name: TopicName) -> StoredSchemas:
        """Read the record again, after a transaction that brings a lagging ZooKeeper server up to date."""
        await self._commit([Check(paths.CLUSTER, ANY_VERSION)])
        return await self._read(name)

    async def _check(
        self, name: TopicName, current: Sequence[SchemaVersion], new: Definition, strategy: Strategy
    ) -> None:
        for old in current if strategy.is_transitive else current[-1:]:
            earlier = (await self._load(old)).definition
            why = await self._helpers.run(partial(_refusal, new, earlier, strategy))
            if why is not None:
                raise SchemaRefused(
                    f"this schema is incompatible with version {old.number} of topic {name} ({strategy}): {why}"
                )

    async def _load(self, version: SchemaVersion) -> Version:
        body = version.body
        if body is None:
            body = decode(SchemaBody, (await self._store.get(version.apart)).value, version.apart)
        definition = Definition(version.kind, body.data, body.properties, body.name)
        return Version(version.number, version.created_ms, definition)

    async def _append(
        self,
        name: TopicName,
        known: StoredSchemas,
        definition: Definition,
        digest: str,
        guard: Sequence[Step],
    ) -> bool:
        number = len(known.record.versions)
        if number >= SCHEMA_VERSIONS_MAX:
            raise LimitExceeded(f"topic {name} has {number} versions of its schema, which is the limit")
        body = SchemaBody(data=definition.data, properties=dict(definition.properties), name=definition.name)
        new = SchemaVersion(
            number=number,
            kind=definition.kind,
            fingerprint=digest,
            created_ms=self._clock.now_ms(),
            body=body,
        )
        kept = sum(len(encode(one)) for one in known.record.versions if one.body is not None)
        if kept + len(encode(new)) <= SCHEMAS_INLINE_BYTES_MAX:
            return await self._write(known, new, *guard)
        apart = paths.schema_body(known.path, uuid4().hex)
        made = Create(apart, encode(body))
        return await self._write(known, replace(new, body=None, apart=apart), *guard, made)

    async def _write(self, known: StoredSchemas, version: SchemaVersion, *atomically_with: Step) -> bool:
        """Add the version; return False if another request changed the record first."""
        value = encode(SchemasRecord(versions=(*known.record.versions, version)))
        if known.node_version is None:
            return await self._commit([Create(known.path, value), *atomically_with])
        return await self._commit([Put(known.path, value, known.node_version), *atomically_with])

    async def _commit(self, steps: Sequence[Step]) -> bool:
        try:
            await self._store.transact(steps)
        except (AlreadyExists, VersionConflict, NotFound):
            return False
        return True


def _fingerprint_of(definition: Definition) -> str:
    """Return the fingerprint of a valid schema. Raises `SchemaInvalid`."""
    validate(definition)
    return fingerprint(definition)


def _same(known: StoredSchemas, digest: str) -> int | None:
    return next((one.number for one in reversed(known.current) if one.fingerprint == digest), None)


def _refusal(new: Definition, old: Definition, strategy: Strategy) -> str | None:
    """Return why a schema is incompatible; None if it is compatible.

    The module is imported by the first call, on its thread, because a broker starts before the first schema.
    """
    from quire.serving.schema.compatibility import refusal

    return refusal(new, old, strategy)
