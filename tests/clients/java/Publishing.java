import java.util.Arrays;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;

/** The ways to publish that the stock Java client knows, against a running broker: `Publishing.java URL SCENARIO ...`. */
public class Publishing {
    static PulsarClient client;
    static String topic;

    interface Attempt {
        void run() throws Exception;
    }

    public static void main(String[] arguments) {
        try {
            play(arguments);
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    static void play(String[] arguments) throws Exception {
        client = PulsarClient.builder().serviceUrl(arguments[0]).build();
        for (String scenario : Arrays.copyOfRange(arguments, 1, arguments.length)) {
            topic = "persistent://public/default/java-" + scenario;
            switch (scenario) {
                case "modes" -> modes();
                case "fencing" -> fencing();
                case "small" -> small();
                case "chunks" -> chunks();
                case "now" -> now();
                default -> throw new IllegalArgumentException(scenario);
            }
            System.out.println("done: " + scenario);
        }
        client.close();
    }

    static ProducerBuilder<byte[]> producer(String name, ProducerAccessMode mode) {
        return client.newProducer().topic(topic).producerName(name).accessMode(mode);
    }

    static void refused(Class<? extends Exception> kind, Attempt attempt) throws Exception {
        try {
            attempt.run();
        } catch (Exception error) {
            if (kind.isInstance(error)) {
                return;
            }
            throw error;
        }
        throw new AssertionError("nobody refused with " + kind.getSimpleName());
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    /** One has exclusive access, others are refused, and one waits for its turn. */
    static void modes() throws Exception {
        Producer<byte[]> first = producer("first", ProducerAccessMode.Exclusive).create();
        refused(PulsarClientException.ProducerFencedException.class,
            () -> producer("second", ProducerAccessMode.Exclusive).create());
        refused(PulsarClientException.ProducerBusyException.class,
            () -> producer("third", ProducerAccessMode.Shared).create());
        CompletableFuture<Producer<byte[]>> waiting =
            producer("first", ProducerAccessMode.WaitForExclusive).createAsync();
        first.send("before".getBytes());
        check(!waiting.isDone(), "it did not wait");
        first.close();
        Producer<byte[]> next = waiting.get(10, TimeUnit.SECONDS);
        next.send("after".getBytes());
        next.close();
        producer("third", ProducerAccessMode.Shared).create().send("shared".getBytes());
    }

    /** Who was fenced cannot publish any more, and does not come back. */
    static void fencing() throws Exception {
        Producer<byte[]> old = producer("old", ProducerAccessMode.Exclusive).create();
        old.send("before".getBytes());
        Producer<byte[]> taker = producer("taker", ProducerAccessMode.ExclusiveWithFencing).create();
        refused(PulsarClientException.class, () -> old.send("late".getBytes()));
        taker.send("mine".getBytes());
        check(read(2).equals("[before, mine]"), "what was published: " + read(2));
    }

    /** The topic takes 1,000 bytes at most: larger ones fail alone, in order. */
    static void small() throws Exception {
        Producer<byte[]> one = client.newProducer().topic(topic).enableBatching(false).create();
        CompletableFuture<MessageId> before = one.sendAsync("a".getBytes());
        CompletableFuture<MessageId> large = one.sendAsync(new byte[5000]);
        CompletableFuture<MessageId> after = one.sendAsync("b".getBytes());
        before.get(10, TimeUnit.SECONDS);
        try {
            large.get(10, TimeUnit.SECONDS);
            throw new AssertionError("5,000 bytes were taken");
        } catch (java.util.concurrent.ExecutionException error) {
            check(error.getCause() instanceof PulsarClientException.NotAllowedException, "got " + error.getCause());
        }
        after.get(10, TimeUnit.SECONDS);
        check(read(2).equals("[a, b]"), "what was published: " + read(2));
    }

    /** Chunks under deduplication, each message twice. */
    static void chunks() throws Exception {
        byte[] large = new byte[12 << 20];
        Arrays.fill(large, (byte) 'x');
        for (int round = 0; round < 2; round++) {
            Producer<byte[]> one = client.newProducer().topic(topic).producerName("chunker").enableBatching(false)
                .enableChunking(true).create();
            check(one.getLastSequenceId() == (round == 0 ? -1 : 7), "last sequence id " + one.getLastSequenceId());
            one.newMessage().sequenceId(5).value(large).send();
            one.newMessage().sequenceId(7).value("small".getBytes()).send();
            one.close();
        }
        Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.earliest).create();
        check(Arrays.equals(reader.readNext(10, TimeUnit.SECONDS).getData(), large), "the large one");
        check(new String(reader.readNext(10, TimeUnit.SECONDS).getData()).equals("small"), "the small one");
        check(!reader.hasMessageAvailable(), "something came twice");
    }

    /** A topic that keeps nothing. */
    static void now() throws Exception {
        topic = topic.replace("persistent://", "non-persistent://");
        Producer<byte[]> one = client.newProducer().topic(topic).create();
        one.send("nobody hears".getBytes());
        Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").subscribe();
        for (int number = 0; number < 100; number++) {
            one.sendAsync(("" + number).getBytes());
        }
        one.flush();
        for (int number = 0; number < 100; number++) {
            var message = consumer.receive(10, TimeUnit.SECONDS);
            check(message != null && new String(message.getData()).equals("" + number), "message " + number);
            consumer.acknowledge(message);
        }
    }

    static String read(int count) throws Exception {
        Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.earliest).create();
        String[] found = new String[count];
        for (int at = 0; at < count; at++) {
            found[at] = new String(reader.readNext(10, TimeUnit.SECONDS).getData());
        }
        check(!reader.hasMessageAvailable(), "more than " + count);
        reader.close();
        return Arrays.toString(found);
    }
}
