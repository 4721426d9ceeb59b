import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

/** A first message with the stock Java client: mvn -q compile exec:java [-Dexec.args=SERVICE_URL] */
public class First {
    public static void main(String[] args) throws Exception {
        String url = args.length > 0 ? args[0] : "pulsar://127.0.0.1:6650";
        try (PulsarClient client = PulsarClient.builder().serviceUrl(url).build();
                Consumer<String> consumer = client.newConsumer(Schema.STRING)
                        .topic("java-greetings")
                        .subscriptionName("java")
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .subscribe();
                Producer<String> producer = client.newProducer(Schema.STRING).topic("java-greetings").create()) {
            System.out.println("published " + producer.newMessage().key("java").value("Hello from Java").send());
            while (true) {
                Message<String> message = consumer.receive(10, TimeUnit.SECONDS);
                if (message == null) {
                    throw new IllegalStateException("nothing came within 10 s");
                }
                consumer.acknowledge(message);
                System.out.println("received " + message.getValue());
                if (message.getValue().equals("Hello from Java")) {
                    return;
                }
            }
        }
    }
}
