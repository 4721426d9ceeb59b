import static java.util.concurrent.TimeUnit.SECONDS;

import java.net.URI;
import java.net.URL;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.pulsar.client.api.Authentication;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.impl.auth.AuthenticationBasic;
import org.apache.pulsar.client.impl.auth.oauth2.AuthenticationFactoryOAuth2;

/**
 * The stock Java client with every kind of credentials: `Secured CASES`; `go/secured/program.go` says what a line of the
 * file is, and what each prints.
 */
public class Secured {
    static final int PATIENCE_S = 20;

    public static void main(String[] arguments) throws Exception {
        ExecutorService beside = Executors.newCachedThreadPool();
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            Map<String, String> one = new HashMap<>();
            for (String field : line.split("\t")) {
                one.put(field.substring(0, field.indexOf('=')), field.substring(field.indexOf('=') + 1));
            }
            beside.submit(() -> tell(one.get("name"), attempt(one)));
        }
        beside.shutdown();
        beside.awaitTermination(1, java.util.concurrent.TimeUnit.HOURS);
        System.exit(0);
    }

    static String attempt(Map<String, String> one) {
        try (PulsarClient client = client(one)) {
            if (one.get("do").equals("consume")) {
                consume(client, one);
            } else {
                produce(client, one);
            }
            return "";
        } catch (Throwable error) {
            return error.toString();
        }
    }

    static void consume(PulsarClient client, Map<String, String> one) throws Exception {
        try (Consumer<byte[]> consumer = client.newConsumer()
                .topic(one.get("topic"))
                .subscriptionName("java-" + one.get("name"))
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscribe()) {
            Message<byte[]> message = consumer.receive(PATIENCE_S, SECONDS);
            if (message == null) {
                throw new IllegalStateException("nothing was received");
            }
            consumer.acknowledge(message);
        }
    }

    static void produce(PulsarClient client, Map<String, String> one) throws Exception {
        long until = System.nanoTime() + (long) (Double.parseDouble(one.get("seconds")) * 1e9);
        try (Producer<byte[]> producer = client.newProducer().topic(one.get("topic")).sendTimeout(8, SECONDS).create()) {
            do {
                producer.send(one.get("name").getBytes());
                Thread.sleep(100);
            } while (System.nanoTime() < until);
        }
    }

    static PulsarClient client(Map<String, String> one) throws Exception {
        var builder = PulsarClient.builder()
                .serviceUrl(one.get("url"))
                .tlsTrustCertsFilePath(one.get("authority"))
                .enableTlsHostnameVerification(true)
                .operationTimeout(8, SECONDS)
                .lookupTimeout(8, SECONDS);
        Authentication shown = credentials(one);
        return (shown == null ? builder : builder.authentication(shown)).build();
    }

    static Authentication credentials(Map<String, String> one) throws Exception {
        return switch (one.get("with")) {
            case "token" -> AuthenticationFactory.token(() -> read(one.get("token")));
            case "basic" -> {
                AuthenticationBasic basic = new AuthenticationBasic();
                basic.configure(
                        "{\"userId\":\"" + one.get("user") + "\",\"password\":\"" + one.get("password") + "\"}");
                yield basic;
            }
            case "tls" -> AuthenticationFactory.TLS(one.get("certificate"), one.get("key"));
            case "oauth2" -> AuthenticationFactoryOAuth2.clientCredentials(
                    new URL(one.get("issuer")), URI.create("file://" + one.get("client_file")).toURL(), "quire");
            default -> null;
        };
    }

    static String read(String file) {
        try {
            return Files.readString(Path.of(file)).strip();
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    static synchronized void tell(String name, String error) {
        String text = error.replace("\\", "\\\\").replace("\"", "'").replaceAll("\\s+", " ");
        System.out.println("{\"name\": \"" + name + "\", \"error\": \"" + text + "\"}");
    }
}
