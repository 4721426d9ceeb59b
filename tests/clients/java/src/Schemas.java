import static org.apache.pulsar.client.api.SubscriptionType.Exclusive;

import java.math.BigInteger;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/** Messages with schemas: classes of other names that go together, and one that does not. */
class Schemas {
    public static class Order {
        public String item;
    }

    /** What is new may be null. */
    public static class Priced {
        public String item;
        public Integer cents;
    }

    /** What is new may not. */
    public static class Strict {
        public String item;
        public int euros;
    }

    private final World world;

    Schemas(World world) {
        this.world = world;
    }

    Map<String, Object> evolve() throws Exception {
        publish();
        String refused = World.refusal(() ->
            world.client.newProducer(Schema.AVRO(Strict.class)).topic(world.topic("")).create());
        List<String> received = new ArrayList<>();
        for (Message<Priced> message : take(Schema.AVRO(Priced.class))) {
            received.add(message.getValue().item);
        }
        return Map.of("received", received, "refused", refused);
    }

    Map<String, Object> autoConsume() throws Exception {
        publish();
        List<String> received = new ArrayList<>();
        for (Message<GenericRecord> message : take(Schema.AUTO_CONSUME())) {
            received.add(new BigInteger(message.getSchemaVersion()) + " " + message.getValue().getField("item"));
        }
        return Map.of("received", received);
    }

    /** Keys are texts, values evolve; consumers that bring no schema of their own get both. */
    Map<String, Object> keysAndValues() throws Exception {
        Order paper = new Order();
        paper.item = "paper";
        Priced ink = new Priced();
        ink.item = "ink";
        producing(Order.class).create().send(new KeyValue<>("a", paper));
        producing(Priced.class).create().send(new KeyValue<>("b", ink));
        String refused = World.refusal(() -> producing(Strict.class).create());
        List<String> received = new ArrayList<>();
        for (Message<GenericRecord> message : take(Schema.AUTO_CONSUME())) {
            KeyValue<?, ?> both = (KeyValue<?, ?>) message.getValue().getNativeObject();
            received.add(both.getKey() + " " + ((GenericRecord) both.getValue()).getField("item"));
        }
        return Map.of("received", received, "refused", refused);
    }

    private <V> ProducerBuilder<KeyValue<String, V>> producing(Class<V> value) {
        Schema<KeyValue<String, V>> schema =
            Schema.KeyValue(Schema.STRING, Schema.AVRO(value), KeyValueEncodingType.SEPARATED);
        return world.client.newProducer(schema).topic(world.topic(""));
    }

    private void publish() throws Exception {
        Order paper = new Order();
        paper.item = "paper";
        world.client.newProducer(Schema.AVRO(Order.class)).topic(world.topic("")).create().send(paper);
        Priced ink = new Priced();
        ink.item = "ink";
        ink.cents = 7;
        world.client.newProducer(Schema.AVRO(Priced.class)).topic(world.topic("")).create().send(ink);
    }

    private <T> List<Message<T>> take(Schema<T> schema) throws Exception {
        Consumer<T> consumer = world.client.newConsumer(schema).topic(world.topic("")).subscriptionName("s")
            .subscriptionType(Exclusive).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        List<Message<T>> found = new ArrayList<>();
        while (found.size() < 2) {
            Message<T> message = consumer.receive(World.PATIENCE_MS, TimeUnit.MILLISECONDS);
            if (message == null) {
                throw new IllegalStateException("nothing came");
            }
            found.add(message);
        }
        return found;
    }
}
