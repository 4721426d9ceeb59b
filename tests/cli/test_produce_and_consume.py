"""`quire produce` and `quire consume` as processes, against the fake broker in the test's event loop."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quire.client import EARLIEST, Client
from quire.runtime.limits import MESSAGE_BYTES_MAX
from quire.wire import message
from quire.wire import pulsar_pb2 as pb
from quire.wire.checksum import crc32c
from quire.wire.message import OutgoingMessage
from tests.client.fake_broker import FakeBroker

TOPIC = "persistent://public/default/t"


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    made = FakeBroker()
    await made.start()
    yield made
    await made.stop()


class Quire:
    """One run of the command."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, *arguments: str) -> Quire:
        pipe = asyncio.subprocess.PIPE
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "quire", *arguments, stdin=pipe, stdout=pipe, stderr=pipe
            )
        )

    async def end(self, text: bytes | None = None) -> tuple[int | None, str, str]:
        """(exit code, standard output, standard error) once `text` was its whole input."""
        out, err = await asyncio.wait_for(self.process.communicate(text), 20)
        return self.process.returncode, out.decode(), err.decode()


async def quire(*arguments: str, text: bytes | None = b"") -> tuple[int | None, str, str]:
    return await (await Quire.start(*arguments)).end(text)


def publish(broker: FakeBroker, count: int) -> None:
    for i in range(count):
        one = OutgoingMessage(b"line %d" % i, f"k{i}", {"n": str(i)}, 7)
        broker.publish(TOPIC, message.encode_one(one, "p", i, 1_000 + i))


# -- produce -------------------------------------------------------------------------------------------


async def test_lines_of_standard_input(broker: FakeBroker) -> None:
    code, out, err = await quire("produce", "t", "--service-url", broker.url, text=b"one\n\ntwo\r\nthree")
    assert (code, err) == (0, "")
    assert [one.payload for one in broker.messages(TOPIC)] == [b"one", b"", b"two\r", b"three"]
    assert out.startswith("published 4 messages, 12 bytes in ")


async def test_a_file_ends_its_last_line(broker: FakeBroker, tmp_path: Path) -> None:
    """With a line end or without: the next file begins a message of its own."""
    texts = ["a1\na2", "b1\nb2\n", "", "\n", "c1", "d1"]
    files = [tmp_path / str(number) for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    code, _, err = await quire("produce", "t", *map(str, files), "--service-url", broker.url)
    assert (code, err) == (0, "")
    expected = [b"a1", b"a2", b"b1", b"b2", b"", b"c1", b"d1"]
    assert [one.payload for one in broker.messages(TOPIC)] == expected


async def test_files_keys_properties_and_batches(broker: FakeBroker, tmp_path: Path) -> None:
    for name, text in (("a", "x:1\ny:2:3\n"), ("b", "z:4\n")):
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / "a"), str(tmp_path / "b")]
    options = ["--key-separator", ":", "--property", "from=test", "--compression", "zstd", "--name", "p"]
    options += ["--batch-messages-max", "2", "--batch-delay-ms", "10s", "--json", "--service-url", broker.url]
    code, out, err = await quire("produce", "t", *files, *options)
    assert (code, err) == (0, "")
    stored = broker.messages(TOPIC)
    assert [(one.key, one.payload, one.batch_size) for one in stored] == [
        ("x", b"1", 2),
        ("y", b"2:3", 2),
        ("z", b"4", 1),
    ]
    assert {one.producer_name for one in stored} == {"p"}
    assert stored[0].properties == {"from": "test"}
    summary = json.loads(out)
    assert (summary["messages"], summary["bytes"]) == (3, 5)


async def test_a_rate_is_kept(broker: FakeBroker) -> None:
    code, out, _ = await quire(
        "produce", "t", "--rate", "50", "--json", "--service-url", broker.url, text=b"x\n" * 20
    )
    summary = json.loads(out)
    assert (code, summary["messages"]) == (0, 20)
    assert summary["seconds"] > 0.37, "19 pauses of 20 ms; a timer may be early by its granularity"


async def test_refused_and_unknown_are_told_apart(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_SERVICE_URL", broker.url)
    broker.send_errors.append((pb.NotAllowedError, "not you"))
    code, out, err = await quire("produce", "t", text=b"x\n")
    assert (code, out) == (1, "")
    assert err == f"quire: publishing to {TOPIC} was refused: not you; 0 of 1 messages were acknowledged\n"
    broker.hold_receipts()
    monkeypatch.setenv("QUIRE_SEND_TIMEOUT_MS", "50ms")
    code, _, err = await quire("produce", "t", text=b"x\n")
    assert code == 4
    assert "the message may or may not be stored" in err and err.count("\n") == 1


async def test_how_much_is_stored_is_told_with_what_went_wrong(broker: FakeBroker) -> None:
    run = await Quire.start("produce", "t", "--no-batching", "--service-url", broker.url)
    assert run.process.stdin is not None
    run.process.stdin.write(b"1\n2\n3\n")
    await broker.until(lambda: len(broker.stored) == 3)
    broker.send_errors.append((pb.NotAllowedError, "the disk is full"))
    code, out, err = await run.end(b"4\n")
    assert (code, out) == (1, "")
    assert err.endswith("was refused: the disk is full; 3 of 4 messages were acknowledged\n")


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--service-url", "pulsar://127.0.0.1:1", "--operation-timeout-ms", "50ms"], 4, "cannot connect"),
        (["--service-url", "tcp://x"], 2, "is not a service URL"),
        (["/nowhere/at/all"], 2, "cannot read /nowhere/at/all: No such file"),
        (["/tmp"], 2, "cannot read /tmp: it is a directory"),
        (["--property", "alone"], 2, "is not a property"),
        (["--key", "k", "--key-separator", ":"], 2, "either --key or --key-separator"),
        (["--batch-bytes-max", "9 miles"], 2, "setting batch_bytes_max"),
    ],
)
async def test_wrong_use_is_one_sentence(arguments: list[str], code: int, sentence: str) -> None:
    found, out, err = await quire("produce", "t", *arguments)
    assert (found, out) == (code, "")
    assert sentence in err and err.count("\n") == 1


async def test_a_line_without_its_key(broker: FakeBroker) -> None:
    code, _, err = await quire(
        "produce", "t", "--key-separator", ":", "--service-url", broker.url, text=b"a:1\nb\n"
    )
    assert (code, err) == (2, "quire: line 2 has no key separator ':'\n")


async def test_a_line_that_is_too_long_is_named_and_those_before_it_are_published(broker: FakeBroker) -> None:
    text = b"1\n2\n" + b"x" * (MESSAGE_BYTES_MAX + 1)
    code, _, err = await quire("produce", "t", "--service-url", broker.url, text=text)
    assert code == 1 and err.startswith("quire: line 3 is longer") and err.count("\n") == 1
    assert [one.payload for one in broker.messages(TOPIC)] == [b"1", b"2"]


async def test_control_c_waits_for_receipts_and_sums_up(broker: FakeBroker) -> None:
    run = await Quire.start("produce", "t", "--service-url", broker.url)
    assert run.process.stdin is not None
    run.process.stdin.write(b"one\ntwo\nthr")
    await broker.until(lambda: len(broker.stored) >= 1)
    run.process.send_signal(signal.SIGINT)
    code = await asyncio.wait_for(run.process.wait(), 10)  # standard input is still open
    assert run.process.stdout is not None and run.process.stderr is not None
    assert (code, await run.process.stderr.read()) == (130, b"")
    assert (await run.process.stdout.read()).startswith(b"published 2 messages")
    assert [one.payload for one in broker.messages(TOPIC)] == [b"one", b"two"]


# -- consume -------------------------------------------------------------------------------------------


async def test_lines_are_printed_and_acknowledged(broker: FakeBroker) -> None:
    publish(broker, 5)
    code, out, err = await quire(
        "consume", "t", "-s", "s", "--no-follow", "--wait", "20s", "--service-url", broker.url
    )
    assert (code, err) == (0, "")
    assert out == "".join(f"line {i}\n" for i in range(5))
    assert broker.fully_acked(TOPIC, "s") == [0, 1, 2, 3, 4]


async def test_json_and_count_and_no_ack(broker: FakeBroker) -> None:
    publish(broker, 5)
    broker.publish(TOPIC, message.encode_one(OutgoingMessage(b"\xff"), "p", 5, 2_000))
    arguments = ["consume", "t", "-s", "s", "--json", "--no-ack", "--service-url", broker.url]
    code, out, err = await quire(*arguments, "--count", "6")
    assert (code, err) == (0, "")
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[3] == {
        "topic": TOPIC,
        "id": "3:3:-1:-1",
        "key": "k3",
        "properties": {"n": "3"},
        "publish_time_ms": 1_003,
        "event_time_ms": 7,
        "producer": "p",
        "sequence_id": 3,
        "redelivery_count": 0,
        "payload": "line 3",
    }
    assert lines[5]["payload_base64"] == "/w=="
    assert broker.fully_acked(TOPIC, "s") == []
    code, out, _ = await quire(*arguments, "--count", "2")
    assert len(out.splitlines()) == 2


async def test_a_property_that_is_not_utf_8_is_printed_with_a_replacement(broker: FakeBroker) -> None:
    entry = message.encode_one(OutgoingMessage(b"x", properties={"foo": "??"}), "p", 1, 1)
    changed = entry.replace(b"??", b"\x01\x97")
    broker.publish(TOPIC, changed[:2] + crc32c(changed[6:]).to_bytes(4, "big") + changed[6:])
    arguments = ["consume", "t", "-s", "s", "--json", "--count", "1", "--service-url", broker.url]
    code, out, err = await quire(*arguments)
    assert (code, err) == (0, "")
    assert json.loads(out)["properties"] == {"foo": "\x01\ufffd"}
    assert broker.fully_acked(TOPIC, "s") == [0]


async def test_from_a_time_and_from_the_end(broker: FakeBroker) -> None:
    publish(broker, 5)
    arguments = ["consume", "t", "--no-follow", "--wait", "100ms", "--service-url", broker.url]
    _, out, _ = await quire(*arguments, "-s", "a", "--from", "1970-01-01T00:00:01.003+00:00")
    assert out == "line 3\nline 4\n"
    _, out, _ = await quire(*arguments, "-s", "b", "--from", "latest")
    assert out == ""
    _, out, _ = await quire(*arguments, "-s", "c", "--from", "1h")
    assert out == ""
    code, _, err = await quire(*arguments, "-s", "d", "--from", "yesterday")
    assert code == 2 and "is not earliest, latest, a time" in err


async def test_an_empty_topic_without_following(broker: FakeBroker) -> None:
    arguments = ["consume", "t", "-s", "s", "--no-follow", "--wait", "60s", "--service-url", broker.url]
    assert await quire(*arguments) == (0, "", "")


async def test_following_until_control_c(broker: FakeBroker) -> None:
    run = await Quire.start("consume", "t", "-s", "s", "--service-url", broker.url)
    assert run.process.stdout is not None
    publish(broker, 1)
    assert await asyncio.wait_for(run.process.stdout.readline(), 10) == b"line 0\n"
    publish(broker, 1)
    assert await asyncio.wait_for(run.process.stdout.readline(), 10) == b"line 0\n"
    run.process.send_signal(signal.SIGINT)
    code, out, err = await run.end()
    assert (code, out, err) == (130, "", "")
    assert broker.fully_acked(TOPIC, "s") == [0, 1]


async def test_what_cannot_be_decoded_is_told_and_left(broker: FakeBroker) -> None:
    publish(broker, 1)
    broker.publish(
        TOPIC,
        message.seal(
            pb.MessageMetadata(
                producer_name="p",
                sequence_id=1,
                publish_time=1,
                encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")],
            ),
            b"secret",
        ),
    )
    publish(broker, 1)
    code, out, err = await quire("consume", "t", "-s", "s", "-n", "2", "--service-url", broker.url)
    assert (code, out) == (0, "line 0\nline 0\n")
    assert err.startswith("quire: message 3:1:-1:-1 of ") and "encrypted" in err
    assert broker.fully_acked(TOPIC, "s") == [0, 2]


async def test_what_could_not_be_read_is_told(broker: FakeBroker) -> None:
    publish(broker, 3)
    arguments = ["consume", "t", "--no-follow", "--wait", "100ms", "--service-url", broker.url]
    assert (await quire(*arguments, "-s", "all"))[0] == 0
    assert await quire(*arguments, "-s", "all") == (0, "", ""), "it was read before"
    encrypted = pb.MessageMetadata(
        producer_name="p",
        sequence_id=1,
        publish_time=1,
        encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")],
    )
    broker.publish(TOPIC, message.seal(encrypted, b"secret"))
    code, out, err = await quire(*arguments, "-s", "all")
    assert (code, out) == (4, "") and "not all messages were read: " in err and f"{TOPIC} ends at 3:3" in err
    assert (await quire(*arguments, "-s", "all", "--type", "shared"))[0] == 0, "others may have got it"


async def test_an_end_that_was_acknowledged_before_need_not_come(broker: FakeBroker) -> None:
    """Of ten messages the last two are done with: what is there are eight, and all of them came."""
    publish(broker, 10)
    async with (
        Client(broker.url) as client,
        client.consumer("t", "s", type="shared", start=EARLIEST) as consumer,
    ):
        for _ in range(10):
            one = await consumer.receive(10)
            if one.id.entry_id >= 8:
                await consumer.ack(one)
        await consumer.flush_acks()
    arguments = ["consume", "t", "-s", "s", "--no-follow", "--wait", "1s", "--service-url", broker.url]
    printed = "".join(f"line {i}\n" for i in range(8))
    assert await quire(*arguments, "--no-ack") == (0, printed, "")
    assert await quire(*arguments) == (0, printed, "")
    assert await quire(*arguments, "--no-ack") == (0, "", "")


async def test_a_subscription_that_is_taken(broker: FakeBroker) -> None:
    broker.refuse(pb.CommandSubscribe, pb.ConsumerBusy, "somebody reads it")
    code, _, err = await quire("consume", "t", "-s", "s", "--service-url", broker.url)
    assert code == 1 and "somebody reads it" in err and err.count("\n") == 1
