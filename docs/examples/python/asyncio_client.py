"""A first message with Quire's asyncio client: .venv/bin/python docs/examples/python/asyncio_client.py [SERVICE_URL]"""

import asyncio
import sys

from quire.client import EARLIEST, Client


async def main(service_url: str) -> None:
    async with Client(service_url) as client:
        async with client.producer("tour") as producer:
            receipt = await producer.send(b"Hello from asyncio", key="python")
            print("published", receipt.message_id)
        async with client.consumer("tour", "first", start=EARLIEST) as consumer:
            message = await consumer.receive(10)
            print("received", message.payload.decode())
            await consumer.ack(message)


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "pulsar://127.0.0.1:6650"))
