// The stock Node client in every mode it knows: node program.js SERVICE_URL HTTP_URL KEYS SCENARIO...
//
// Each scenario uses topics of its own and prints one JSON line, {"scenario": NAME, "facts": {...}} or {"scenario":
// NAME, "error": TEXT}. What the facts must be is said once, for all languages, in tests/clients/scenarios.py; a
// program only observes. KEYS is a folder with public.pem and private.pem.
//
// kill is for a cluster: it prints {"event": "running"}, publishes until a line comes in on stdin, then some more.

const Pulsar = require('pulsar-client');

const AT_ONCE = 2; // each receive that waits takes one of Node's four worker threads
const PATIENCE_MS = 20000;
const QUIET_MS = 300;
const LARGE_BYTES = 11 << 20; // more than two of the largest messages that a server takes
const KILL_TOPICS = 4;
const ROUNDS = 50;

Pulsar.Client.setLogHandler(() => {});

const tell = (what) => console.log(JSON.stringify(what));
const pause = (ms) => new Promise((done) => { setTimeout(done, ms); });
const text = (message) => message.getData().toString();
const range = (first, end) => Array.from({ length: end - first }, (_, at) => first + at);
const numbers = (first, end) => range(first, end).map(String);
const ascending = (values) => values.map(Number).sort((one, other) => one - other);

// What a scenario has: a client, an admin interface, keys, and topics named after it.
class World {
  constructor(serviceUrl, httpUrl, keys, scenario) {
    Object.assign(this, { httpUrl, keys, name: `node-${scenario}` });
    this.client = new Pulsar.Client({ serviceUrl, operationTimeoutSeconds: 60 });
  }

  topic(suffix = '') { return `persistent://public/default/${this.name}${suffix}`; }

  producer(options = {}) {
    return this.client.createProducer({ topic: this.topic(), batchingEnabled: false, ...options });
  }

  subscribe(options = {}) {
    const where = options.topicsPattern ? {} : { topic: this.topic() };
    return this.client.subscribe({
      ...where, subscription: 's', subscriptionInitialPosition: 'Earliest', ...options,
    });
  }

  // The path follows the topic's name; the answer's text.
  async admin(method, path, body) {
    const url = `${this.httpUrl}/admin/v2/persistent/public/default/${this.name}${path}`;
    const headers = { 'Content-Type': 'application/json' };
    const answer = await fetch(url, { method, headers, body: JSON.stringify(body) });
    const said = await answer.text();
    if (!answer.ok) throw new Error(`${method} ${url}: ${answer.status} ${said}`);
    return said;
  }

  async everything(suffix = '') {
    const reader = await this.client.createReader({
      topic: this.topic(suffix), startMessageId: Pulsar.MessageId.earliest(),
    });
    const found = [];
    while (reader.hasNext()) found.push(text(await reader.readNext(PATIENCE_MS)));
    await reader.close();
    return found;
  }
}

async function publish(producer, values) {
  for (const value of values) await producer.send({ data: Buffer.from(value) });
}

// As few batches as the producer makes of them; the keys are the values' first letters where keyed.
async function publishAtOnce(producer, keyed, values) {
  const sent = values.map((value) => producer.send({
    data: Buffer.from(value), ...(keyed ? { partitionKey: value[0] } : {}),
  }));
  await producer.flush();
  await Promise.all(sent);
}

async function take(consumer, count) {
  const found = [];
  while (found.length < count) {
    const message = await consumer.receive(PATIENCE_MS);
    await consumer.acknowledge(message);
    found.push(text(message));
  }
  return found;
}

// null when nothing comes.
async function maybe(consumer) {
  try {
    return await consumer.receive(QUIET_MS);
  } catch (error) {
    if (/time ?out/i.test(error.message)) return null;
    throw error;
  }
}

// What comes until nothing comes any more.
async function rest(consumer) {
  const found = [];
  for (let message = await maybe(consumer); message; message = await maybe(consumer)) {
    await consumer.acknowledge(message);
    found.push(text(message));
  }
  return found;
}

// What the error says; empty when nobody refused.
async function refusal(attempt) {
  try {
    await attempt();
  } catch (error) {
    return error.message;
  }
  return '';
}

// [which consumer, value] of messages taken from the consumers by turns.
async function turns(consumers, count) {
  const found = [];
  const deadline = Date.now() + PATIENCE_MS;
  while (found.length < count && Date.now() < deadline) {
    for (const [place, consumer] of consumers.entries()) {
      const message = await maybe(consumer);
      if (message) {
        await consumer.acknowledge(message);
        found.push([place, text(message)]);
      }
    }
  }
  return found;
}

const places = (found) => new Set(found.map(([place]) => place)).size;

// Ten keys, five messages each: every key stays with one consumer, in order.
async function byKey(consumers, producer) {
  for (const number of range(0, 5)) {
    for (const key of 'abcdefghij') {
      await producer.send({ data: Buffer.from(`${key}${number}`), partitionKey: key });
    }
  }
  const found = await turns(consumers, 50);
  const homes = {};
  const order = {};
  for (const [place, value] of found) {
    (homes[value[0]] ??= new Set()).add(place);
    order[value[0]] = (order[value[0]] ?? '') + value[1];
  }
  return {
    count: found.length,
    orders: [...new Set(Object.values(order))].sort(),
    apart: Object.values(homes).every((one) => one.size === 1),
    consumers: places(found),
  };
}

async function inEntries(consumer, count) {
  const values = [];
  const entries = new Set();
  for (let number = 0; number < count; number += 1) {
    const message = await consumer.receive(PATIENCE_MS);
    await consumer.acknowledge(message);
    values.push(text(message));
    entries.add(message.getMessageId().toString().split(',').slice(0, 2).join()); // (ledger,entry,...)
  }
  return { received: values, entries: entries.size };
}

const SLOW_BATCHES = { batchingEnabled: true, batchingMaxPublishDelayMs: 5000 };

const scenarios = {
  // -- subscription types

  async exclusive(world) {
    const consumer = await world.subscribe();
    const second = await refusal(() => world.subscribe());
    await publish(await world.producer(), numbers(0, 20));
    return { received: await take(consumer, 20), second };
  },

  async failover(world) {
    const active = await world.subscribe({ subscriptionType: 'Failover', consumerName: 'a' });
    const standby = await world.subscribe({ subscriptionType: 'Failover', consumerName: 'b' });
    const producer = await world.producer();
    await publish(producer, numbers(0, 10));
    const first = await take(active, 10);
    const idle = await rest(standby);
    await active.close();
    await publish(producer, numbers(10, 20));
    return { first, idle, second: await take(standby, 10) };
  },

  async shared(world) {
    const options = { subscriptionType: 'Shared', receiverQueueSize: 5 };
    const both = [await world.subscribe(options), await world.subscribe(options)];
    await publish(await world.producer(), numbers(0, 40));
    const found = await turns(both, 40);
    return { received: ascending(found.map(([, value]) => value)), consumers: places(found) };
  },

  async key_shared(world) {
    const member = (consumerName) => world.subscribe({ subscriptionType: 'KeyShared', consumerName });
    return byKey([await member('a'), await member('b')], await world.producer());
  },

  async sticky(world) {
    const member = (start, end) => world.subscribe({
      subscriptionType: 'KeyShared',
      keySharedPolicy: { keyShareMode: 'Sticky', stickyRanges: [{ start, end }] },
    });
    const both = [await member(0, 32767), await member(32768, 65535)];
    const overlap = await refusal(() => member(30000, 40000));
    return { ...await byKey(both, await world.producer()), overlap };
  },

  // -- publishing

  async batching(world) {
    await publishAtOnce(await world.producer(SLOW_BATCHES), false, numbers(0, 20));
    return inEntries(await world.subscribe(), 20);
  },

  async key_batching(world) {
    const producer = await world.producer({ ...SLOW_BATCHES, batchingType: 'KeyBasedBatching' });
    await publishAtOnce(producer, true, range(0, 5).flatMap((number) => [`a${number}`, `b${number}`]));
    const found = await inEntries(await world.subscribe({ subscriptionType: 'KeyShared' }), 10);
    return { ...found, received: found.received.sort() };
  },

  async compression(world) {
    const values = numbers(0, 20).map((number) => number + ' quire'.repeat(100));
    const facts = {};
    for (const kind of ['LZ4', 'Zlib', 'ZSTD', 'SNAPPY']) {
      const producer = await world.producer({
        topic: world.topic(`-${kind}`), compressionType: kind, batchingEnabled: true,
      });
      await publishAtOnce(producer, false, values);
      facts[kind.toLowerCase()] = (await world.everything(`-${kind}`)).join() === values.join();
    }
    return facts;
  },

  async chunking(world) {
    const large = Buffer.alloc(LARGE_BYTES, 'quire!');
    const consumer = await world.subscribe();
    const producer = await world.producer({ chunkingEnabled: true });
    await producer.send({ data: large });
    await publish(producer, ['small']);
    const first = await consumer.receive(PATIENCE_MS);
    await consumer.acknowledge(first);
    const [then] = await take(consumer, 1);
    return { size: first.getData().length, same: first.getData().equals(large), then };
  },

  async encryption(world) {
    const publicKeyPath = `${world.keys}/public.pem`;
    const producer = await world.producer({ encryptionKey: 'key', publicKeyPath });
    await publish(producer, ['secret']);
    const without = await world.subscribe({ subscription: 'blind', cryptoFailureAction: 'CONSUME' });
    const sealed = !text(await without.receive(PATIENCE_MS)).includes('secret');
    const consumer = await world.subscribe({ privateKeyPath: `${world.keys}/private.pem` });
    return { received: await take(consumer, 1), sealed };
  },

  async deduplication(world) {
    await world.admin('PUT', '');
    await world.admin('POST', '/deduplicationEnabled', true);
    for (const ids of [[0, 1, 1, 2], [2, 3]]) {
      const producer = await world.producer({ producerName: 'p' });
      for (const id of ids) await producer.send({ data: Buffer.from(`${id}`), sequenceId: id });
      await producer.close();
    }
    return { received: await world.everything() };
  },

  async access_modes(world) {
    const first = await world.producer({ accessMode: 'Exclusive' });
    const exclusive = await refusal(() => world.producer({ accessMode: 'Exclusive' }));
    const shared = await refusal(() => world.producer());
    const waiting = world.producer({ accessMode: 'WaitForExclusive' });
    await publish(first, ['first']);
    await first.close();
    await publish(await waiting, ['second']);
    return { exclusive, shared, received: await world.everything() };
  },

  async fencing(world) {
    const old = await world.producer({ accessMode: 'Exclusive' });
    await publish(old, ['old']);
    const taker = await world.producer({ accessMode: 'ExclusiveWithFencing' });
    const fenced = await refusal(() => publish(old, ['late'])) !== '';
    await publish(taker, ['new']);
    return { fenced, received: await world.everything() };
  },

  async non_persistent(world) {
    const topic = `non-${world.topic()}`;
    const consumer = await world.subscribe({ topic });
    await publish(await world.producer({ topic }), numbers(0, 20));
    return { received: await take(consumer, 20) };
  },

  async http_lookup(world) {
    const client = new Pulsar.Client({ serviceUrl: world.httpUrl });
    await publish(await client.createProducer({ topic: world.topic() }), ['looked up']);
    await client.close();
    return { received: await world.everything() };
  },

  // -- acknowledgements and redelivery

  async cumulative(world) {
    await publish(await world.producer(), numbers(0, 10));
    const consumer = await world.subscribe();
    for (let number = 0; number < 10; number += 1) {
      const message = await consumer.receive(PATIENCE_MS);
      if (number === 6) await consumer.acknowledgeCumulative(message);
    }
    await consumer.close();
    return { left: await take(await world.subscribe(), 3) };
  },

  async batch_index(world) {
    await publishAtOnce(await world.producer(SLOW_BATCHES), false, numbers(0, 10));
    const options = { subscriptionType: 'Shared', batchIndexAckEnabled: true };
    const consumer = await world.subscribe(options);
    for (let number = 0; number < 10; number += 1) {
      const message = await consumer.receive(PATIENCE_MS);
      if (number % 2 === 0) await consumer.acknowledge(message);
    }
    await consumer.close();
    const again = await world.subscribe(options);
    return { left: [...await take(again, 5), ...await rest(again)].sort() };
  },

  async negative(world) {
    await publish(await world.producer(), numbers(0, 5));
    const consumer = await world.subscribe({ subscriptionType: 'Shared', nAckRedeliverTimeoutMs: QUIET_MS });
    for (let number = 0; number < 5; number += 1) {
      const message = await consumer.receive(PATIENCE_MS);
      if (text(message) === '2') consumer.negativeAcknowledge(message);
      else await consumer.acknowledge(message);
    }
    const again = await consumer.receive(PATIENCE_MS);
    return { again: text(again), count: again.getRedeliveryCount() };
  },

  // What is not acknowledged in time comes again, and nothing else; the client takes no shorter time.
  async ack_timeout(world) {
    await publish(await world.producer(), numbers(0, 5));
    const consumer = await world.subscribe({ subscriptionType: 'Shared', ackTimeoutMs: 10_000 });
    for (let number = 0; number < 5; number += 1) {
      const message = await consumer.receive(PATIENCE_MS);
      if (text(message) !== '2') await consumer.acknowledge(message);
    }
    const again = await consumer.receive(PATIENCE_MS);
    await consumer.acknowledge(again);
    return { again: text(again), count: again.getRedeliveryCount(), more: await rest(consumer) };
  },

  async dead_letter(world) {
    const consumer = await world.subscribe({
      subscriptionType: 'Shared',
      nAckRedeliverTimeoutMs: QUIET_MS,
      deadLetterPolicy: { deadLetterTopic: world.topic('-dead'), maxRedeliverCount: 2 },
    });
    const dead = await world.subscribe({ topic: world.topic('-dead'), subscriptionType: 'Shared' });
    await publish(await world.producer(), ['poison']);
    const counts = [];
    for (let number = 0; number < 3; number += 1) {
      const message = await consumer.receive(PATIENCE_MS);
      counts.push(message.getRedeliveryCount());
      consumer.negativeAcknowledge(message);
    }
    return { counts, dead: await take(dead, 1) };
  },

  async delayed(world) {
    const consumer = await world.subscribe({ subscriptionType: 'Shared' });
    const producer = await world.producer();
    const due = Date.now() + 1000;
    await producer.send({ data: Buffer.from('later'), deliverAt: due });
    await publish(producer, ['now']);
    const order = await take(consumer, 2);
    return { order, early: Date.now() < due };
  },

  // -- positions and topics

  async seek(world) {
    const producer = await world.producer();
    await publish(producer, numbers(0, 5));
    await pause(50);
    const between = Date.now();
    await pause(50);
    await publish(producer, numbers(5, 10));
    const consumer = await world.subscribe();
    const messages = [];
    while (messages.length < 10) messages.push(await consumer.receive(PATIENCE_MS));
    const facts = { all: messages.map(text) };
    await consumer.seek(messages[2].getMessageId()); // this client goes on after the id
    facts.from_id = await take(consumer, 7);
    await consumer.seekTimestamp(between);
    facts.from_time = await take(consumer, 5);
    await consumer.seek(Pulsar.MessageId.earliest());
    return { ...facts, from_start: await take(consumer, 10) };
  },

  async reader(world) {
    const producer = await world.producer();
    const ids = [];
    for (const number of numbers(0, 5)) ids.push(await producer.send({ data: Buffer.from(number) }));
    const from = (startMessageId) => world.client.createReader({ topic: world.topic(), startMessageId });
    const one = await from(ids[1]);
    const after = [];
    while (after.length < 3) after.push(text(await one.readNext(PATIENCE_MS)));
    const more = one.hasNext();
    await one.seek(Pulsar.MessageId.earliest());
    const head = text(await one.readNext(PATIENCE_MS));
    const late = await from(Pulsar.MessageId.latest());
    await publish(producer, ['5']);
    return { after, more, head, late: text(await late.readNext(PATIENCE_MS)), all: await world.everything() };
  },

  async pattern(world) {
    for (const name of 'ab') await publish(await world.producer({ topic: world.topic(`-${name}`) }), [name]);
    const consumer = await world.subscribe({ topicsPattern: world.topic('-.*') });
    return { received: (await take(consumer, 2)).sort() };
  },

  async partitions(world) {
    await world.admin('PUT', '/partitions', 3);
    const consumer = await world.subscribe();
    await publish(await world.producer({ messageRoutingMode: 'RoundRobinDistribution' }), numbers(0, 30));
    const messages = [];
    while (messages.length < 30) messages.push(await consumer.receive(PATIENCE_MS));
    const topics = new Set(messages.map((message) => message.getTopicName()));
    return { received: ascending(messages.map(text)), partitions: topics.size };
  },

  async compaction(world) {
    const producer = await world.producer();
    for (const value of ['a1', 'b1', 'a2', 'c1']) {
      await producer.send({ data: Buffer.from(value), partitionKey: value[0] });
    }
    await producer.send({ data: Buffer.alloc(0), partitionKey: 'c' });
    await world.admin('PUT', '/compaction');
    const deadline = Date.now() + PATIENCE_MS;
    while (!(await world.admin('GET', '/compaction')).includes('SUCCESS') && Date.now() < deadline) await pause(50);
    return { view: await take(await world.subscribe({ readCompacted: true }), 2) };
  },

  async terminated(world) {
    await publish(await world.producer(), numbers(0, 3));
    await world.admin('POST', '/terminate');
    const refused = await refusal(() => world.producer());
    return { refused, received: await take(await world.subscribe(), 3) };
  },

  async schemas(world) {
    const fields = [{ name: 'item', type: 'string' }, { name: 'cents', type: 'int', default: 1 }];
    const json = (name, its) => ({
      schemaType: 'Json', name, schema: JSON.stringify({ type: 'record', name, fields: its }),
    });
    const priced = json('Priced', fields);
    await publish(await world.producer({ schema: json('Order', fields.slice(0, 1)) }), ['{"item": "paper"}']);
    await publish(await world.producer({ schema: priced }), ['{"item": "ink", "cents": 7}']);
    const strict = json('Strict', [fields[0], { name: 'euros', type: 'int' }]);
    const refused = await refusal(() => world.producer({ schema: strict }));
    const found = await take(await world.subscribe({ schema: priced }), 2);
    return { received: found.map((one) => JSON.parse(one).item), refused };
  },

  // -- a cluster

  async kill(world) {
    let told = false;
    process.stdin.once('data', () => { told = true; process.stdin.pause(); });
    const topics = range(0, KILL_TOPICS).map((number) => world.topic(`-${number}`));
    const producers = [];
    const consumers = [];
    for (const [number, topic] of topics.entries()) {
      await world.admin('PUT', `-${number}`);
      await world.admin('POST', `-${number}/deduplicationEnabled`, true);
      consumers.push(await world.subscribe({ topic }));
      producers.push(await world.producer({ topic, sendTimeoutMs: 0 }));
    }
    let count = 0;
    for (let after = 0; after < ROUNDS; count += 1) {
      for (const producer of producers) await publish(producer, [`${count}`]);
      after += told ? 1 : 0;
      if (count === ROUNDS) tell({ event: 'running' });
    }
    const exact = [];
    for (const [place, producer] of producers.entries()) {
      await publish(producer, ['end']);
      exact.push((await follow(consumers[place])).join() === numbers(0, count).join());
    }
    return { exact, enough: count >= 2 * ROUNDS };
  },
};

// The numbers up to the end, each where it came first.
async function follow(consumer) {
  const seen = new Set();
  for (;;) {
    const message = await consumer.receive(PATIENCE_MS);
    await consumer.acknowledge(message);
    if (text(message) === 'end') return [...seen];
    seen.add(text(message));
  }
}

async function play(serviceUrl, httpUrl, keys, scenario) {
  try {
    const world = new World(serviceUrl, httpUrl, keys, scenario);
    tell({ scenario, facts: await scenarios[scenario](world) });
    await world.client.close();
  } catch (error) {
    tell({ scenario, error: error.message });
  }
}

async function main() {
  const [serviceUrl, httpUrl, keys, ...waiting] = process.argv.slice(2);
  const worker = async () => {
    while (waiting.length > 0) await play(serviceUrl, httpUrl, keys, waiting.shift());
  };
  await Promise.all(range(0, AT_ONCE).map(worker));
  process.exit(0);
}

main();
