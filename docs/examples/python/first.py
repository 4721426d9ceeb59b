"""A first message with the stock Python client: pip install pulsar-client"""

import sys

import pulsar

client = pulsar.Client(sys.argv[1] if len(sys.argv) > 1 else "pulsar://127.0.0.1:6650")

consumer = client.subscribe("greetings", "python", initial_position=pulsar.InitialPosition.Earliest)
producer = client.create_producer("greetings")
print("published", producer.send(b"Hello from Python", partition_key="python"))

while True:
    message = consumer.receive(timeout_millis=5000)
    consumer.acknowledge(message)
    print("received", message.data().decode())
    if message.data() == b"Hello from Python":
        break
client.close()
