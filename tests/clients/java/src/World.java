import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.CryptoKeyReader;
import org.apache.pulsar.client.api.EncryptionKeyInfo;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/** What a scenario has: a client, an admin interface, keys, topics named after it, and the usual ways to use them. */
class World implements AutoCloseable {
    static final int PATIENCE_MS = 20_000;
    static final int QUIET_MS = 300;

    final String serviceUrl;
    final String httpUrl;
    final String name;
    final PulsarClient client;
    private final Path keys;

    World(String serviceUrl, String httpUrl, Path keys, String scenario) throws Exception {
        this.serviceUrl = serviceUrl;
        this.httpUrl = httpUrl;
        this.keys = keys;
        this.name = "java-" + scenario;
        this.client = PulsarClient.builder().serviceUrl(serviceUrl).build();
    }

    @Override
    public void close() throws Exception {
        client.close();
    }

    interface Attempt {
        void run() throws Exception;
    }

    String topic(String suffix) {
        return "persistent://public/default/" + name + suffix;
    }

    /** Without batching. */
    ProducerBuilder<byte[]> producing(String suffix) {
        return client.newProducer().topic(topic(suffix)).enableBatching(false);
    }

    Producer<byte[]> producer() throws Exception {
        return producing("").create();
    }

    ProducerBuilder<byte[]> slowBatches() {
        return client.newProducer().topic(topic("")).batchingMaxPublishDelay(5, TimeUnit.SECONDS);
    }

    ConsumerBuilder<byte[]> consuming(SubscriptionType type) {
        return client.newConsumer().subscriptionName("s").subscriptionType(type)
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
    }

    Consumer<byte[]> subscribe(SubscriptionType type) throws Exception {
        return consuming(type).topic(topic("")).subscribe();
    }

    /** `path` follows the topic's name; the answer's text. */
    String admin(String method, String path, String body) throws Exception {
        URI url = URI.create(httpUrl + "/admin/v2/persistent/public/default/" + name + path);
        HttpRequest request = HttpRequest.newBuilder(url).header("Content-Type", "application/json")
            .method(method, HttpRequest.BodyPublishers.ofString(body)).build();
        HttpResponse<String> answer =
            HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() >= 300) {
            throw new IllegalStateException(method + " " + url + ": " + answer.statusCode() + " " + answer.body());
        }
        return answer.body();
    }

    CryptoKeyReader keyReader() {
        return new CryptoKeyReader() {
            @Override
            public EncryptionKeyInfo getPublicKey(String key, Map<String, String> metadata) {
                return read("public.pem");
            }

            @Override
            public EncryptionKeyInfo getPrivateKey(String key, Map<String, String> metadata) {
                return read("private.pem");
            }

            private EncryptionKeyInfo read(String file) {
                try {
                    return new EncryptionKeyInfo(Files.readAllBytes(keys.resolve(file)), Map.of());
                } catch (java.io.IOException error) {
                    throw new java.io.UncheckedIOException(error);
                }
            }
        };
    }

    // -- messages

    static String text(Message<byte[]> message) {
        return new String(message.getData(), StandardCharsets.UTF_8);
    }

    static List<String> numbers(int first, int end) {
        return IntStream.range(first, end).mapToObj(Integer::toString).collect(Collectors.toList());
    }

    static void publish(Producer<byte[]> producer, Collection<String> values) throws Exception {
        for (String value : values) {
            producer.send(value.getBytes());
        }
    }

    /** As few batches as the producer makes of them; the keys are the values' first letters where `keyed`. */
    static void publishAtOnce(Producer<byte[]> producer, boolean keyed, Collection<String> values) throws Exception {
        for (String value : values) {
            var message = producer.newMessage().value(value.getBytes());
            (keyed ? message.key(value.substring(0, 1)) : message).sendAsync();
        }
        producer.flush();
    }

    static Message<byte[]> next(Consumer<byte[]> consumer) throws Exception {
        Message<byte[]> message = consumer.receive(PATIENCE_MS, TimeUnit.MILLISECONDS);
        if (message == null) {
            throw new IllegalStateException("nothing came");
        }
        return message;
    }

    /** null when nothing comes. */
    static Message<byte[]> maybe(Consumer<byte[]> consumer) throws Exception {
        return consumer.receive(QUIET_MS, TimeUnit.MILLISECONDS);
    }

    static List<String> take(Consumer<byte[]> consumer, int count) throws Exception {
        List<String> found = new ArrayList<>();
        while (found.size() < count) {
            Message<byte[]> message = next(consumer);
            consumer.acknowledge(message);
            found.add(text(message));
        }
        return found;
    }

    /** What comes until nothing comes any more. */
    static List<String> rest(Consumer<byte[]> consumer) throws Exception {
        List<String> found = new ArrayList<>();
        for (Message<byte[]> message = maybe(consumer); message != null; message = maybe(consumer)) {
            consumer.acknowledge(message);
            found.add(text(message));
        }
        return found;
    }

    /** What is left: so many, and whatever comes after them. */
    static List<String> left(Consumer<byte[]> consumer, int count) throws Exception {
        List<String> found = take(consumer, count);
        found.addAll(rest(consumer));
        return found;
    }

    static String read(Reader<byte[]> reader) throws Exception {
        Message<byte[]> message = reader.readNext(PATIENCE_MS, TimeUnit.MILLISECONDS);
        if (message == null) {
            throw new IllegalStateException("nothing came");
        }
        return text(message);
    }

    List<String> everything(String suffix) throws Exception {
        List<String> found = new ArrayList<>();
        try (Reader<byte[]> reader =
                client.newReader().topic(topic(suffix)).startMessageId(MessageId.earliest).create()) {
            while (reader.hasMessageAvailable()) {
                found.add(read(reader));
            }
        }
        return found;
    }

    static List<Integer> integers(Collection<String> values) {
        return values.stream().map(Integer::valueOf).sorted().collect(Collectors.toList());
    }

    /** What the error says; empty when nobody refused. */
    static String refusal(Attempt attempt) {
        try {
            attempt.run();
        } catch (Exception error) {
            return error.toString();
        }
        return "";
    }

    record Turn(int place, String value) {}

    /** Messages taken from the consumers by turns. */
    static List<Turn> turns(List<Consumer<byte[]>> consumers, int count) throws Exception {
        List<Turn> found = new ArrayList<>();
        long deadline = System.nanoTime() + PATIENCE_MS * 1_000_000L;
        while (found.size() < count && System.nanoTime() < deadline) {
            for (int place = 0; place < consumers.size(); place++) {
                Message<byte[]> message = maybe(consumers.get(place));
                if (message != null) {
                    consumers.get(place).acknowledge(message);
                    found.add(new Turn(place, text(message)));
                }
            }
        }
        return found;
    }

    static int places(List<Turn> turns) {
        return turns.stream().map(Turn::place).collect(Collectors.toCollection(TreeSet::new)).size();
    }
}
