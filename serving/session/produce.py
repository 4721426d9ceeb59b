"""Handlers of the commands for producers and schemas: PRODUCER, CLOSE_PRODUCER, GET_SCHEMA, GET_OR_CREATE_SCHEMA.

The client chooses the id of a producer. SENDs are not handled here, but in `producer_end`.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from quire.runtime.limits import ENDS_PER_CONNECTION_MAX
from quire.serving.model.ports import NotAllowed
from quire.serving.session.bounds import refused_names, refused_properties
from quire.serving.session.permissions import permit
from quire.serving.session.producer_end import ProducerEnd
from quire.serving.session.session import Handler, Session
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.error_codes import NO_TRANSACTIONS


def producer(session: Session, body: pb.CommandProducer) -> None:
    refusal = _refusal(session, body)
    present = session.producers.get(body.producer_id)
    if refusal:
        session.refuse_request("PRODUCER", body.request_id, NotAllowed(refusal))
    elif present is not None:
        present.ask_again(body)
    else:
        end = session.producers[body.producer_id] = ProducerEnd(session, body)
        end.lane.run_exclusively(end.open(body), "PRODUCER")


def _refusal(session: Session, body: pb.CommandProducer) -> str:
    """Return why PRODUCER must be rejected permanently; an empty string if it is valid."""
    if body.txn_enabled:
        return NO_TRANSACTIONS
    if len(session.producers) >= ENDS_PER_CONNECTION_MAX:
        return f"this connection has {ENDS_PER_CONNECTION_MAX} producers, which is the limit; open another connection"
    return refused_names(
        {"the producer name": body.producer_name, "the subscription name": body.initial_subscription_name}
    ) or refused_properties("a producer's properties", body.metadata, session)


def close_producer(session: Session, body: pb.CommandCloseProducer) -> None:
    end = session.producers.get(body.producer_id)
    if end is None:
        # the broker has just closed the producer: the client's CLOSE_PRODUCER and the broker's have crossed
        session.write(commands.success(body.request_id))
    else:
        end.close_on_request(body.request_id)


def get_schema(session: Session, body: pb.CommandGetSchema) -> None:
    refusal = partial(commands.schema_failed, body.request_id)
    work = session.answer("GET_SCHEMA", partial(_get_schema, session, body), refusal)
    session.requests.start(work, "GET_SCHEMA")


async def _get_schema(session: Session, body: pb.CommandGetSchema) -> bytes:
    await permit(session, pb.BaseCommand.GET_SCHEMA, body)
    version = body.schema_version or None  # some clients send an empty version for the newest
    number, found = await session.context.topics.find_schema(body.topic, version)
    return commands.schema_found(body.request_id, found, number)


def get_or_create_schema(session: Session, body: pb.CommandGetOrCreateSchema) -> None:
    refusal = partial(commands.schema_refused, body.request_id)
    work = session.answer("GET_OR_CREATE_SCHEMA", partial(_get_or_create_schema, session, body), refusal)
    session.requests.start(work, "GET_OR_CREATE_SCHEMA")


async def _get_or_create_schema(session: Session, body: pb.CommandGetOrCreateSchema) -> bytes:
    await permit(session, pb.BaseCommand.GET_OR_CREATE_SCHEMA, body)
    topic = await session.context.topics.open(body.topic)
    version = await session.context.topics.admit_producer_schema(topic, body.schema)
    absent = b"" if session.peer.reads_absent_versions else None
    return commands.schema_stored(body.request_id, version or absent)


HANDLERS: Final[dict[int, Handler]] = {
    pb.BaseCommand.PRODUCER: producer,
    pb.BaseCommand.CLOSE_PRODUCER: close_producer,
    pb.BaseCommand.GET_SCHEMA: get_schema,
    pb.BaseCommand.GET_OR_CREATE_SCHEMA: get_or_create_schema,
}
