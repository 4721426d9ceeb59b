"""The ids of a large command come out of its bytes as they went in."""

from __future__ import annotations

import pytest

from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.packed_ids import CommandWithIds, PackedIds


def _ids(count: int) -> list[pb.MessageIdData]:
    made = [commands.message_id(1 << 40, at) for at in range(count)]
    for one in made[::3]:
        one.ack_set.extend((1, -1))
    if made:
        made[-1].ack_set.extend(range(200))
    return made


COMMANDS: list[CommandWithIds] = [
    pb.CommandAck(consumer_id=1 << 40, ack_type=pb.CommandAck.Individual, message_id=_ids(7)),
    pb.CommandAck(
        consumer_id=1,
        ack_type=pb.CommandAck.Individual,
        message_id=_ids(10),
        validation_error=pb.CommandAck.ChecksumMismatch,
        properties=[pb.KeyLongValue(key="k", value=3)],
        txnid_least_bits=3,
        request_id=5,
    ),
    pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, request_id=5),
    pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=_ids(9), consumer_epoch=4),
    pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1),
]


@pytest.mark.parametrize("unknown", [b"", b"\xf2\x06\x02hi\xe8\x06\x05"])
@pytest.mark.parametrize("command", COMMANDS)
def test_all_ids_come_out_in_parts_and_in_order(command: CommandWithIds, unknown: bytes) -> None:
    raw = command.SerializeToString()
    command = type(command).FromString(unknown + raw)
    wanted = list(command.message_id if isinstance(command, pb.CommandAck) else command.message_ids)
    packed = PackedIds(command)
    assert packed.byte_count == len(unknown + raw)
    taken = []
    while packed.has_more():
        some = packed.take(4)
        assert 0 < len(some) <= 4
        taken += some
    assert taken == wanted
    assert not packed.take(4)
