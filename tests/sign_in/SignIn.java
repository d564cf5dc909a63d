import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.stream.Stream;
import javax.security.auth.callback.Callback;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerTokenCallback;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Signs in by each case of a directory with Kafka's own client, writes a record and reads it back.
 *
 * <p>A case is a file of client properties. "topic" and "token" are the program's own. It prints a line for each: the name
 * of the file, a tab, and "signed in" or the error.
 */
public final class SignIn {
    /** Signs in with the token of the login module's options. */
    public static final class TokenOfOptions implements AuthenticateCallbackHandler {
        private String token;

        @Override
        public void configure(Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> entries) {
            token = (String) entries.get(0).getOptions().get("token");
        }

        @Override
        public void handle(Callback[] callbacks) {
            for (Callback callback : callbacks) {
                if (callback instanceof OAuthBearerTokenCallback asked) {
                    asked.token(new Given(token));
                }
            }
        }

        @Override
        public void close() {
        }
    }

    private record Given(String value) implements OAuthBearerToken {
        @Override
        public Set<String> scope() {
            return Set.of();
        }

        @Override
        public long lifetimeMs() {
            return System.currentTimeMillis() + 300_000;
        }

        @Override
        public String principalName() {
            return "alice";
        }

        @Override
        public Long startTimeMs() {
            return null;
        }
    }

    private static String signIn(Map<String, Object> settings) throws Exception {
        String topic = (String) settings.remove("topic");
        RecordMetadata sent;
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            sent = producer.send(new ProducerRecord<>(topic, "of Java")).get();
        }
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            TopicPartition partition = new TopicPartition(topic, sent.partition());
            consumer.assign(List.of(partition));
            consumer.seek(partition, sent.offset());
            for (ConsumerRecord<String, String> read : consumer.poll(Duration.ofSeconds(30))) {
                return read.value().equals("of Java") ? "signed in" : "read " + read.value();
            }
            return "read nothing";
        }
    }

    private static String outcome(Path file) throws Exception {
        Properties written = new Properties();
        try (InputStream text = Files.newInputStream(file)) {
            written.load(text);
        }
        Map<String, Object> settings = new HashMap<>();
        written.forEach((name, value) -> settings.put((String) name, value));
        if ("OAUTHBEARER".equals(settings.get("sasl.mechanism"))) {
            settings.put("sasl.login.callback.handler.class", TokenOfOptions.class);
        }
        try {
            return signIn(settings);
        } catch (ExecutionException error) {
            return text(error.getCause());
        } catch (Exception error) {
            return text(error);
        }
    }

    private static String text(Throwable error) {
        return (error.getClass().getSimpleName() + ": " + error.getMessage()).replace('\n', ' ');
    }

    public static void main(String[] arguments) throws Exception {
        List<Path> files;
        try (Stream<Path> found = Files.list(Path.of(arguments[0]))) {
            files = found.sorted().toList();
        }
        for (Path file : files) {
            System.out.println(file.getFileName() + "\t" + outcome(file));
        }
        System.exit(0); // clients that were refused leave threads
    }
}
