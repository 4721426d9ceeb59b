import static java.util.concurrent.TimeUnit.HOURS;
import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;
import static org.apache.pulsar.client.api.SubscriptionType.Exclusive;
import static org.apache.pulsar.client.api.SubscriptionType.Failover;
import static org.apache.pulsar.client.api.SubscriptionType.Key_Shared;
import static org.apache.pulsar.client.api.SubscriptionType.Shared;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerCryptoFailureAction;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Reader;

/**
 * The stock Java client in every mode it knows: `Program SERVICE_URL HTTP_URL KEYS SCENARIO...`.
 *
 * <p>Each scenario uses topics of its own and prints one JSON line, {"scenario": NAME, "facts": {...}} or {"scenario":
 * NAME, "error": TEXT}. What the facts must be is said once, for all languages, in `tests/clients/scenarios.py`; a
 * program only observes. Scenarios run side by side, because most of them mostly wait. KEYS is a folder with
 * `public.pem` and `private.pem`.
 *
 * <p>`kill` is for a cluster: it prints {"event": "running"}, publishes until a line comes in on stdin, then some more.
 */
public class Program extends World {
    static final int AT_ONCE = 6;
    static final int LARGE_BYTES = 11 << 20; // more than two of the largest messages that a server takes
    static final int KILL_TOPICS = 4;
    static final int ROUNDS = 50;

    Program(String serviceUrl, String httpUrl, Path keys, String scenario) throws Exception {
        super(serviceUrl, httpUrl, keys, scenario);
    }

    public static void main(String[] arguments) throws Exception {
        ExecutorService beside = Executors.newFixedThreadPool(AT_ONCE);
        for (String scenario : Arrays.copyOfRange(arguments, 3, arguments.length)) {
            beside.submit(() -> play(arguments, scenario));
        }
        beside.shutdown();
        beside.awaitTermination(1, java.util.concurrent.TimeUnit.HOURS);
        System.exit(0);
    }

    static void play(String[] arguments, String scenario) {
        try (Program world = new Program(arguments[0], arguments[1], Path.of(arguments[2]), scenario)) {
            tell(Map.of("scenario", scenario, "facts", world.observe(scenario)));
        } catch (Throwable error) {
            tell(Map.of("scenario", scenario, "error", error.toString()));
        }
    }

    Map<String, Object> observe(String scenario) throws Exception {
        return switch (scenario) {
            case "exclusive" -> exclusive();
            case "failover" -> failover();
            case "priority" -> priority();
            case "shared" -> shared();
            case "key_shared" -> keyShared();
            case "sticky" -> sticky();
            case "batching" -> batching();
            case "key_batching" -> keyBatching();
            case "compression" -> compression();
            case "chunking" -> chunking();
            case "encryption" -> encryption();
            case "deduplication" -> deduplication();
            case "last_sequence" -> lastSequence();
            case "access_modes" -> accessModes();
            case "fencing" -> fencing();
            case "non_persistent" -> nonPersistent();
            case "http_lookup" -> httpLookup();
            case "cumulative" -> cumulative();
            case "batch_index" -> batchIndex();
            case "ack_receipts" -> ackReceipts();
            case "negative" -> negative();
            case "ack_timeout" -> ackTimeout();
            case "dead_letter" -> deadLetter();
            case "retry_letter" -> retryLetter();
            case "delayed" -> delayed();
            case "seek" -> seek();
            case "reader" -> reader();
            case "pattern" -> pattern();
            case "discovery" -> discovery();
            case "partitions" -> partitions();
            case "growth" -> growth();
            case "compaction" -> compaction();
            case "terminated" -> terminated();
            case "end_of_topic" -> endOfTopic();
            case "transactions" -> transactions();
            case "schemas" -> new Schemas(this).evolve();
            case "auto_consume" -> new Schemas(this).autoConsume();
            case "keys_and_values" -> new Schemas(this).keysAndValues();
            case "kill" -> kill();
            default -> throw new IllegalArgumentException(scenario);
        };
    }

    static synchronized void tell(Object what) {
        System.out.println(json(what));
    }

    static String json(Object what) {
        if (what instanceof Map<?, ?> map) {
            return map.entrySet().stream().map(one -> json(one.getKey()) + ": " + json(one.getValue()))
                .collect(Collectors.joining(", ", "{", "}"));
        }
        if (what instanceof Iterable<?> values) {
            List<String> texts = new ArrayList<>();
            values.forEach(one -> texts.add(json(one)));
            return texts.stream().collect(Collectors.joining(", ", "[", "]"));
        }
        if (what instanceof String text) {
            return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"").replaceAll("\\p{Cntrl}", " ") + '"';
        }
        return String.valueOf(what);
    }

    // -- subscription types

    Map<String, Object> exclusive() throws Exception {
        Consumer<byte[]> consumer = subscribe(Exclusive);
        String second = refusal(() -> subscribe(Exclusive));
        publish(producer(), numbers(0, 20));
        return Map.of("received", take(consumer, 20), "second", second);
    }

    Map<String, Object> failover() throws Exception {
        Consumer<byte[]> active = consuming(Failover).topic(topic("")).consumerName("a").subscribe();
        Consumer<byte[]> standby = consuming(Failover).topic(topic("")).consumerName("b").subscribe();
        Producer<byte[]> producer = producer();
        publish(producer, numbers(0, 10));
        List<String> first = take(active, 10);
        List<String> idle = rest(standby);
        active.close();
        publish(producer, numbers(10, 20));
        return Map.of("first", first, "idle", idle, "second", take(standby, 10));
    }

    /** Who comes later with a better level takes over, and the other one when that is gone. */
    Map<String, Object> priority() throws Exception {
        var failover = consuming(Failover).topic(topic("")).acknowledgmentGroupTime(0, MILLISECONDS);
        Consumer<byte[]> low = failover.clone().priorityLevel(1).consumerName("a").subscribe();
        Producer<byte[]> producer = producer();
        publish(producer, numbers(0, 5));
        List<String> before = take(low, 5);
        Consumer<byte[]> high = failover.clone().priorityLevel(0).consumerName("b").subscribe();
        publish(producer, numbers(5, 15));
        List<String> first = take(high, 10);
        List<String> idle = rest(low);
        high.close();
        publish(producer, numbers(15, 20));
        return Map.of("before", before, "first", first, "idle", idle, "second", take(low, 5));
    }

    Map<String, Object> shared() throws Exception {
        List<Consumer<byte[]>> both = new ArrayList<>();
        for (int number = 0; number < 2; number++) {
            both.add(consuming(Shared).topic(topic("")).receiverQueueSize(5).subscribe());
        }
        publish(producer(), numbers(0, 40));
        List<Turn> found = turns(both, 40);
        return Map.of("received", integers(found.stream().map(Turn::value).toList()), "consumers", places(found));
    }

    /** Ten keys, five messages each: every key stays with one consumer, in order. */
    Map<String, Object> byKey(List<Consumer<byte[]>> consumers) throws Exception {
        Producer<byte[]> producer = producer();
        for (int number = 0; number < 5; number++) {
            for (String key : "abcdefghij".split("")) {
                producer.newMessage().key(key).value((key + number).getBytes()).send();
            }
        }
        List<Turn> found = turns(consumers, 50);
        Map<String, Set<Integer>> homes = new TreeMap<>();
        Map<String, String> order = new TreeMap<>();
        for (Turn one : found) {
            String key = one.value().substring(0, 1);
            homes.computeIfAbsent(key, fresh -> new TreeSet<>()).add(one.place());
            order.merge(key, one.value().substring(1), String::concat);
        }
        return new TreeMap<>(Map.of("count", found.size(), "orders", new TreeSet<>(order.values()),
            "apart", homes.values().stream().allMatch(home -> home.size() == 1), "consumers", places(found)));
    }

    Map<String, Object> keyShared() throws Exception {
        List<Consumer<byte[]>> both = new ArrayList<>();
        for (String name : List.of("a", "b")) {
            both.add(consuming(Key_Shared).topic(topic("")).consumerName(name).subscribe());
        }
        return byKey(both);
    }

    Consumer<byte[]> member(int first, int last) throws Exception {
        KeySharedPolicy ranges = KeySharedPolicy.stickyHashRange().ranges(Range.of(first, last));
        return consuming(Key_Shared).topic(topic("")).keySharedPolicy(ranges).subscribe();
    }

    Map<String, Object> sticky() throws Exception {
        List<Consumer<byte[]>> both = List.of(member(0, 32767), member(32768, 65535));
        String overlap = refusal(() -> member(30000, 40000));
        Map<String, Object> facts = byKey(both);
        facts.put("overlap", overlap);
        return facts;
    }

    // -- publishing

    Map<String, Object> batching() throws Exception {
        publishAtOnce(slowBatches().create(), false, numbers(0, 20));
        return inEntries(subscribe(Exclusive), 20);
    }

    static Map<String, Object> inEntries(Consumer<byte[]> consumer, int count) throws Exception {
        List<String> values = new ArrayList<>();
        Set<Long> entries = new TreeSet<>();
        for (int number = 0; number < count; number++) {
            Message<byte[]> message = next(consumer);
            consumer.acknowledge(message);
            values.add(text(message));
            entries.add(((MessageIdAdv) message.getMessageId()).getEntryId());
        }
        return Map.of("received", values, "entries", entries.size());
    }

    Map<String, Object> keyBatching() throws Exception {
        List<String> mixed = List.of("a0", "b0", "a1", "b1", "a2", "b2", "a3", "b3", "a4", "b4");
        publishAtOnce(slowBatches().batcherBuilder(BatcherBuilder.KEY_BASED).create(), true, mixed);
        Map<String, Object> found = inEntries(subscribe(Key_Shared), 10);
        return Map.of("received", new TreeSet<>((List<?>) found.get("received")), "entries", found.get("entries"));
    }

    Map<String, Object> compression() throws Exception {
        List<String> values = numbers(0, 20).stream().map(one -> one + " quire".repeat(100)).toList();
        Map<String, Object> facts = new TreeMap<>();
        for (String kind : List.of("LZ4", "ZLIB", "ZSTD", "SNAPPY")) {
            publishAtOnce(client.newProducer().topic(topic("-" + kind)).compressionType(CompressionType.valueOf(kind))
                .create(), false, values);
            facts.put(kind.toLowerCase(), everything("-" + kind).equals(values));
        }
        return facts;
    }

    Map<String, Object> chunking() throws Exception {
        byte[] large = "quire!! ".repeat(LARGE_BYTES / 8).getBytes();
        Consumer<byte[]> consumer = subscribe(Exclusive);
        Producer<byte[]> producer = producing("").enableChunking(true).create();
        producer.send(large);
        producer.send("small".getBytes());
        Message<byte[]> first = next(consumer);
        consumer.acknowledge(first);
        return Map.of("size", first.getData().length, "same", Arrays.equals(first.getData(), large),
            "then", take(consumer, 1).get(0));
    }

    Map<String, Object> encryption() throws Exception {
        publish(producing("").addEncryptionKey("key").cryptoKeyReader(keyReader()).create(), List.of("secret"));
        Reader<byte[]> without = client.newReader().topic(topic("")).startMessageId(MessageId.earliest)
            .cryptoFailureAction(ConsumerCryptoFailureAction.CONSUME).create();
        boolean sealed = !read(without).contains("secret");
        Consumer<byte[]> consumer = consuming(Exclusive).topic(topic("")).cryptoKeyReader(keyReader()).subscribe();
        return Map.of("received", take(consumer, 1), "sealed", sealed);
    }

    Map<String, Object> deduplication() throws Exception {
        admin("PUT", "", "");
        admin("POST", "/deduplicationEnabled", "true");
        Producer<byte[]> first = producing("").producerName("p").create();
        for (long id : new long[] {0, 1, 1, 2}) {
            first.newMessage().sequenceId(id).value(("" + id).getBytes()).send();
        }
        first.close();
        Producer<byte[]> second = producing("").producerName("p").create();
        for (long id : new long[] {2, 3}) {
            second.newMessage().sequenceId(id).value(("" + id).getBytes()).send();
        }
        return Map.of("received", everything(""));
    }

    Map<String, Object> lastSequence() throws Exception {
        admin("PUT", "", "");
        admin("POST", "/deduplicationEnabled", "true");
        Producer<byte[]> first = producing("").producerName("p").create();
        publish(first, numbers(0, 3));
        first.close();
        return Map.of("last", producing("").producerName("p").create().getLastSequenceId());
    }

    Map<String, Object> accessModes() throws Exception {
        Producer<byte[]> first = producing("").accessMode(ProducerAccessMode.Exclusive).create();
        String exclusive = refusal(() -> producing("").accessMode(ProducerAccessMode.Exclusive).create());
        String shared = refusal(() -> producer());
        var waiting = producing("").accessMode(ProducerAccessMode.WaitForExclusive).createAsync();
        publish(first, List.of("first"));
        first.close();
        publish(waiting.get(PATIENCE_MS, MILLISECONDS), List.of("second"));
        return Map.of("exclusive", exclusive, "shared", shared, "received", everything(""));
    }

    Map<String, Object> fencing() throws Exception {
        Producer<byte[]> old = producing("").accessMode(ProducerAccessMode.Exclusive).create();
        publish(old, List.of("old"));
        Producer<byte[]> taker = producing("").accessMode(ProducerAccessMode.ExclusiveWithFencing).create();
        boolean fenced = !refusal(() -> publish(old, List.of("late"))).isEmpty();
        publish(taker, List.of("new"));
        return Map.of("fenced", fenced, "received", everything(""));
    }

    Map<String, Object> nonPersistent() throws Exception {
        String topic = "non-" + topic("");
        Consumer<byte[]> consumer = consuming(Exclusive).topic(topic).subscribe();
        publish(client.newProducer().topic(topic).create(), numbers(0, 20));
        return Map.of("received", take(consumer, 20));
    }

    Map<String, Object> httpLookup() throws Exception {
        try (PulsarClient other = PulsarClient.builder().serviceUrl(httpUrl).build()) {
            publish(other.newProducer().topic(topic("")).create(), List.of("looked up"));
        }
        return Map.of("received", everything(""));
    }

    // -- acknowledgements and redelivery

    Map<String, Object> cumulative() throws Exception {
        publish(producer(), numbers(0, 10));
        Consumer<byte[]> consumer = subscribe(Exclusive);
        for (int number = 0; number < 10; number++) {
            Message<byte[]> message = next(consumer);
            if (number == 6) {
                consumer.acknowledgeCumulative(message);
            }
        }
        consumer.close();
        return Map.of("left", take(subscribe(Exclusive), 3));
    }

    Map<String, Object> batchIndex() throws Exception {
        publishAtOnce(slowBatches().create(), false, numbers(0, 10));
        var consuming = consuming(Shared).topic(topic("")).enableBatchIndexAcknowledgment(true);
        Consumer<byte[]> consumer = consuming.subscribe();
        for (int number = 0; number < 10; number++) {
            Message<byte[]> message = next(consumer);
            if (number % 2 == 0) {
                consumer.acknowledge(message);
            }
        }
        consumer.close();
        return Map.of("left", left(consuming.subscribe(), 5).stream().sorted().toList());
    }

    Map<String, Object> ackReceipts() throws Exception {
        publish(producer(), numbers(0, 10));
        var consuming = consuming(Shared).topic(topic("")).isAckReceiptEnabled(true);
        Consumer<byte[]> consumer = consuming.subscribe();
        for (int number = 0; number < 10; number++) {
            Message<byte[]> message = next(consumer);
            if (number < 5) {
                consumer.acknowledge(message);
            }
        }
        consumer.close();
        return Map.of("left", left(consuming.subscribe(), 5));
    }

    Map<String, Object> negative() throws Exception {
        publish(producer(), numbers(0, 5));
        Consumer<byte[]> consumer =
            consuming(Shared).topic(topic("")).negativeAckRedeliveryDelay(QUIET_MS, MILLISECONDS).subscribe();
        for (int number = 0; number < 5; number++) {
            Message<byte[]> message = next(consumer);
            if (text(message).equals("2")) {
                consumer.negativeAcknowledge(message);
            } else {
                consumer.acknowledge(message);
            }
        }
        Message<byte[]> again = next(consumer);
        return Map.of("again", text(again), "count", again.getRedeliveryCount());
    }

    /** What is not acknowledged in time comes again, and nothing else. */
    Map<String, Object> ackTimeout() throws Exception {
        publish(producer(), numbers(0, 5));
        Consumer<byte[]> consumer = consuming(Shared).topic(topic(""))
            .ackTimeout(1, SECONDS).ackTimeoutTickTime(QUIET_MS, MILLISECONDS).subscribe();
        for (int number = 0; number < 5; number++) {
            Message<byte[]> message = next(consumer);
            if (!text(message).equals("2")) {
                consumer.acknowledge(message);
            }
        }
        Message<byte[]> again = next(consumer);
        consumer.acknowledge(again);
        return Map.of("again", text(again), "count", again.getRedeliveryCount(), "more", rest(consumer));
    }

    Consumer<byte[]> dead() throws Exception {
        return consuming(Shared).topic(topic("-dead")).subscribe();
    }

    Map<String, Object> deadLetter() throws Exception {
        var policy = DeadLetterPolicy.builder().maxRedeliverCount(2).deadLetterTopic(topic("-dead")).build();
        Consumer<byte[]> consumer = consuming(Shared).topic(topic("")).deadLetterPolicy(policy)
            .negativeAckRedeliveryDelay(QUIET_MS, MILLISECONDS).subscribe();
        Consumer<byte[]> dead = dead();
        publish(producer(), List.of("poison"));
        List<Integer> counts = new ArrayList<>();
        for (int number = 0; number < 3; number++) {
            Message<byte[]> message = next(consumer);
            counts.add(message.getRedeliveryCount());
            consumer.negativeAcknowledge(message);
        }
        return Map.of("counts", counts, "dead", take(dead, 1));
    }

    Map<String, Object> retryLetter() throws Exception {
        var policy = DeadLetterPolicy.builder().maxRedeliverCount(2).retryLetterTopic(topic("-retry"))
            .deadLetterTopic(topic("-dead")).build();
        Consumer<byte[]> consumer =
            consuming(Shared).topic(topic("")).enableRetry(true).deadLetterPolicy(policy).subscribe();
        Consumer<byte[]> dead = dead();
        publish(producer(), List.of("poison"));
        int deliveries = 0;
        for (; deliveries < 3; deliveries++) {
            consumer.reconsumeLater(next(consumer), QUIET_MS, MILLISECONDS);
        }
        return Map.of("deliveries", deliveries, "dead", take(dead, 1));
    }

    Map<String, Object> delayed() throws Exception {
        Consumer<byte[]> consumer = subscribe(Shared);
        Producer<byte[]> producer = producer();
        long due = System.currentTimeMillis() + 1000;
        producer.newMessage().value("later".getBytes()).deliverAt(due).send();
        publish(producer, List.of("now"));
        List<String> order = take(consumer, 2);
        return Map.of("order", order, "early", System.currentTimeMillis() < due);
    }

    // -- positions and topics

    Map<String, Object> seek() throws Exception {
        Producer<byte[]> producer = producer();
        List<MessageId> ids = new ArrayList<>();
        for (String number : numbers(0, 5)) {
            ids.add(producer.send(number.getBytes()));
        }
        Thread.sleep(50);
        long between = System.currentTimeMillis();
        Thread.sleep(50);
        publish(producer, numbers(5, 10));
        Consumer<byte[]> consumer = consuming(Exclusive).topic(topic("")).startMessageIdInclusive().subscribe();
        List<String> all = take(consumer, 10);
        consumer.seek(ids.get(3));
        List<String> fromId = take(consumer, 7);
        consumer.seek(between);
        List<String> fromTime = take(consumer, 5);
        consumer.seek(MessageId.earliest);
        return Map.of("all", all, "from_id", fromId, "from_time", fromTime, "from_start", take(consumer, 10));
    }

    Map<String, Object> reader() throws Exception {
        Producer<byte[]> producer = producer();
        List<MessageId> ids = new ArrayList<>();
        for (String number : numbers(0, 5)) {
            ids.add(producer.send(number.getBytes()));
        }
        Reader<byte[]> one = client.newReader().topic(topic("")).startMessageId(ids.get(1)).create();
        List<String> after = List.of(read(one), read(one), read(one));
        boolean more = one.hasMessageAvailable();
        one.seek(MessageId.earliest);
        String head = read(one);
        Reader<byte[]> late = client.newReader().topic(topic("")).startMessageId(MessageId.latest).create();
        publish(producer, List.of("5"));
        return Map.of("after", after, "more", more, "head", head, "late", read(late), "all", everything(""));
    }

    Map<String, Object> pattern() throws Exception {
        for (String one : List.of("a", "b")) {
            publish(producing("-" + one).create(), List.of(one));
        }
        Consumer<byte[]> consumer = consuming(Exclusive).topicsPattern(topic("-.*")).subscribe();
        return Map.of("received", new TreeSet<>(take(consumer, 2)));
    }

    /** A pattern finds a topic that comes later: the client watches, and would not look by itself for an hour. */
    Map<String, Object> discovery() throws Exception {
        Consumer<byte[]> consumer =
            consuming(Exclusive).topicsPattern(topic("-.*")).patternAutoDiscoveryPeriod(1, HOURS).subscribe();
        publish(producing("-a").create(), List.of("a"));
        return Map.of("received", take(consumer, 1));
    }

    Map<String, Object> partitions() throws Exception {
        admin("PUT", "/partitions", "3");
        Consumer<byte[]> consumer = subscribe(Exclusive);
        publish(producer(), numbers(0, 30));
        List<String> values = new ArrayList<>();
        Set<String> topics = new TreeSet<>();
        for (int number = 0; number < 30; number++) {
            Message<byte[]> message = next(consumer);
            values.add(text(message));
            topics.add(message.getTopicName());
        }
        return Map.of("received", integers(values), "partitions", topics.size());
    }

    /** A producer and a consumer that stay meet new partitions. */
    Map<String, Object> growth() throws Exception {
        admin("PUT", "/partitions", "2");
        Consumer<byte[]> consumer =
            consuming(Exclusive).topic(topic("")).autoUpdatePartitionsInterval(1, SECONDS).subscribe();
        Producer<byte[]> producer = producing("").autoUpdatePartitionsInterval(1, SECONDS).create();
        List<String> received = new ArrayList<>();
        int before = met(2, producer, consumer, received);
        admin("POST", "/partitions", "4");
        int after = met(4, producer, consumer, received);
        int published = received.size();
        received.addAll(rest(consumer));
        boolean exact = integers(received).equals(integers(numbers(0, published)));
        return Map.of("before", before, "after", after, "exact", exact);
    }

    /** Publishes and receives numbers until so many partitions were used. */
    static int met(int wanted, Producer<byte[]> producer, Consumer<byte[]> consumer, List<String> received)
            throws Exception {
        Set<String> topics = new TreeSet<>();
        long deadline = System.nanoTime() + PATIENCE_MS * 1_000_000L;
        while (topics.size() < wanted && System.nanoTime() < deadline) {
            publish(producer, List.of(Integer.toString(received.size())));
            Message<byte[]> message = next(consumer);
            consumer.acknowledge(message);
            received.add(text(message));
            topics.add(message.getTopicName());
        }
        return topics.size();
    }

    Map<String, Object> compaction() throws Exception {
        Producer<byte[]> producer = producer();
        for (String one : List.of("a1", "b1", "a2", "c1")) {
            producer.newMessage().key(one.substring(0, 1)).value(one.getBytes()).send();
        }
        producer.newMessage().key("c").value(null).send();
        admin("PUT", "/compaction", "");
        long deadline = System.nanoTime() + PATIENCE_MS * 1_000_000L;
        while (!admin("GET", "/compaction", "").contains("SUCCESS") && System.nanoTime() < deadline) {
            Thread.sleep(50);
        }
        return Map.of("view", take(consuming(Exclusive).topic(topic("")).readCompacted(true).subscribe(), 2));
    }

    Map<String, Object> terminated() throws Exception {
        publish(producer(), numbers(0, 3));
        admin("POST", "/terminate", "");
        String refused = refusal(() -> producer());
        return Map.of("refused", refused, "received", take(subscribe(Exclusive), 3));
    }

    Map<String, Object> endOfTopic() throws Exception {
        publish(producer(), numbers(0, 3));
        admin("POST", "/terminate", "");
        Consumer<byte[]> consumer = subscribe(Exclusive);
        List<String> received = take(consumer, 3);
        long deadline = System.nanoTime() + PATIENCE_MS * 1_000_000L;
        while (!consumer.hasReachedEndOfTopic() && System.nanoTime() < deadline) {
            Thread.sleep(20);
        }
        return Map.of("received", received, "end", consumer.hasReachedEndOfTopic());
    }

    Map<String, Object> transactions() {
        return Map.of("refused", refusal(() ->
            PulsarClient.builder().serviceUrl(serviceUrl).enableTransaction(true).build().close()));
    }

    // -- a cluster

    Map<String, Object> kill() throws Exception {
        ExecutorService beside = Executors.newFixedThreadPool(KILL_TOPICS + 1);
        Future<String> told =
            beside.submit(() -> new BufferedReader(new InputStreamReader(System.in)).readLine());
        List<Producer<byte[]>> producers = new ArrayList<>();
        List<Future<List<String>>> following = new ArrayList<>();
        for (int number = 0; number < KILL_TOPICS; number++) {
            String suffix = "-" + number;
            admin("PUT", suffix, "");
            admin("POST", suffix + "/deduplicationEnabled", "true");
            Consumer<byte[]> consumer = consuming(Exclusive).topic(topic(suffix)).subscribe();
            following.add(beside.submit(() -> follow(consumer)));
            producers.add(producing(suffix).sendTimeout(0, SECONDS).create());
        }
        int count = 0;
        for (int after = 0; after < ROUNDS; count++) {
            for (Producer<byte[]> producer : producers) {
                producer.send(("" + count).getBytes());
            }
            after += told.isDone() ? 1 : 0;
            if (count == ROUNDS) {
                tell(Map.of("event", "running"));
            }
        }
        List<Boolean> exact = new ArrayList<>();
        for (int number = 0; number < KILL_TOPICS; number++) {
            producers.get(number).send("end".getBytes());
            exact.add(following.get(number).get().equals(numbers(0, count)));
        }
        beside.shutdown();
        return Map.of("exact", exact, "enough", count >= 2 * ROUNDS);
    }

    /** The numbers up to the end, each where it came first. */
    static List<String> follow(Consumer<byte[]> consumer) throws Exception {
        Set<String> seen = new LinkedHashSet<>();
        while (true) {
            Message<byte[]> message = consumer.receive();
            consumer.acknowledgeAsync(message); // fails while the connection is away; then it comes again
            if (text(message).equals("end")) {
                return List.copyOf(seen);
            }
            seen.add(text(message));
        }
    }
}
