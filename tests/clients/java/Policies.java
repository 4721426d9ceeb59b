import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * What a topic's policies mean for the stock Java client: `Policies.java URL SCENARIO ...`. What only the broker's
 * side can do is asked for by a line "please: ..." and done when a line comes back.
 */
public class Policies {
    static final BufferedReader ANSWERS = new BufferedReader(new InputStreamReader(System.in));
    static PulsarClient client;
    static String topic;

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
                case "delayed" -> delayed();
                case "compacted" -> compacted();
                case "ended" -> ended();
                case "index" -> index();
                case "quota" -> quota();
                default -> throw new IllegalArgumentException(scenario);
            }
            System.out.println("done: " + scenario);
        }
        client.close();
    }

    static void please(String what) throws Exception {
        System.out.println("please: " + what);
        ANSWERS.readLine();
    }

    static void check(boolean holds, Object what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static ConsumerBuilder<String> consumer(SubscriptionType type) {
        return client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s").subscriptionType(type)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
    }

    static Producer<String> producer(boolean batching) throws Exception {
        return client.newProducer(Schema.STRING).topic(topic).enableBatching(batching)
                .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create();
    }

    static void delayed() throws Exception {
        for (SubscriptionType type : List.of(SubscriptionType.Shared, SubscriptionType.Key_Shared)) {
            topic += type;
            try (Consumer<String> consumer = consumer(type).subscribe(); Producer<String> producer = producer(true)) {
                long begin = System.currentTimeMillis();
                producer.newMessage().key("a").value("after").deliverAfter(600, TimeUnit.MILLISECONDS).send();
                producer.newMessage().key("b").value("at").deliverAt(begin + 300).send();
                producer.newMessage().key("c").value("now").send();
                for (String expected : List.of("now", "at", "after")) {
                    Message<String> message = consumer.receive(10, TimeUnit.SECONDS);
                    check(message.getValue().equals(expected), message.getValue());
                    long least = expected.equals("now") ? 0 : expected.equals("at") ? 300 : 600;
                    check(System.currentTimeMillis() - begin >= least, expected + " came early");
                    consumer.acknowledge(message);
                }
            }
        }
    }

    static List<String> read(Reader<String> reader) throws Exception {
        List<String> found = new ArrayList<>();
        while (reader.hasMessageAvailable()) {
            Message<String> message = reader.readNext(10, TimeUnit.SECONDS);
            found.add(message.getKey() + "=" + message.getValue());
        }
        return found;
    }

    static void compacted() throws Exception {
        for (boolean batching : new boolean[] {false, true}) {
            try (Producer<String> producer = producer(batching)) {
                for (int i = 0; i < 10; i++) {
                    producer.newMessage().key("k" + i % 3).value(batching + "" + i).sendAsync();
                }
                producer.newMessage().key("k1").value(null).sendAsync();
                producer.flush();
            }
            please("compact");
            try (Reader<String> reader = client.newReader(Schema.STRING).topic(topic).readCompacted(true)
                    .startMessageId(MessageId.earliest).create()) {
                List<String> found = read(reader);
                check(found.equals(List.of("k2=" + batching + "8", "k0=" + batching + "9")), found);
                try (Producer<String> producer = producer(batching)) {
                    producer.newMessage().key("live").value("x").send();
                    producer.newMessage().key("live").value(null).send();
                }
                check(read(reader).size() == 2, "what comes live is not compacted");
            }
        }
    }

    static void ended() throws Exception {
        try (Consumer<String> consumer = consumer(SubscriptionType.Exclusive).subscribe();
                Producer<String> producer = producer(false)) {
            producer.send("last");
            please("terminate");
            check(!consumer.hasReachedEndOfTopic(), "a message is left");
            consumer.acknowledge(consumer.receive(10, TimeUnit.SECONDS));
            for (int i = 0; i < 1000 && !consumer.hasReachedEndOfTopic(); i++) {
                Thread.sleep(10);
            }
            check(consumer.hasReachedEndOfTopic(), "it was not told of the end");
            try {
                producer.send("more");
                check(false, "a terminated topic took a message");
            } catch (PulsarClientException.TopicTerminatedException expected) {
                return;
            }
        }
    }

    static void index() throws Exception {
        try (Consumer<String> consumer = consumer(SubscriptionType.Exclusive).subscribe()) {
            for (boolean batching : new boolean[] {false, true}) {
                try (Producer<String> producer = producer(batching)) {
                    for (int i = 0; i < 5; i++) {
                        producer.sendAsync("m");
                    }
                    producer.flush();
                }
            }
            for (long i = 0; i < 10; i++) {
                Message<String> message = consumer.receive(10, TimeUnit.SECONDS);
                check(message.getIndex().isPresent() && message.getIndex().get() == i, message.getIndex());
                check(message.getBrokerPublishTime().isPresent(), "when the broker took it");
            }
        }
    }

    static void quota() throws Exception {
        consumer(SubscriptionType.Exclusive).subscribe().close();
        try (Producer<String> producer = producer(false)) {
            producer.send("x".repeat(2000));
            please("look");
            try {
                producer.send("y");
                check(false, "a message was taken");
            } catch (PulsarClientException.ProducerBlockedQuotaExceededException expected) {
                please("catch up");
            }
        }
        // The first one comes back by itself, too, but waits longer after each refusal.
        try (Producer<String> producer = producer(false)) {
            producer.send("y");
        }
    }
}
