import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Produces numbered records and consumes the topic in a group until standard input is closed.
 *
 * <p>It prints "acknowledged A read R" four times a second and at its end, when all records are acknowledged, and ends
 * with code 1 at the first error that the client does not retry.
 */
public final class ProduceAndConsume {
    private static final long SEND_PAUSE_MS = 10;
    private static final long REPORT_PAUSE_MS = 250;
    private static final AtomicLong ACKNOWLEDGED = new AtomicLong();
    private static final AtomicLong READ = new AtomicLong();
    private static final AtomicBoolean STOPPING = new AtomicBoolean();

    private interface Work {
        void run() throws Exception;
    }

    private static void start(String what, Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Throwable error) {
                fail(what, error);
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private static void fail(String what, Throwable error) {
        System.err.println(what + ": " + error);
        System.exit(1);
    }

    private static void consume(String bootstrap, String topic, String name) {
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", bootstrap,
                "group.id", name,
                "auto.offset.reset", "earliest",
                "key.deserializer", StringDeserializer.class,
                "value.deserializer", StringDeserializer.class);
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(topic));
            while (true) {
                READ.addAndGet(consumer.poll(Duration.ofMillis(100)).count());
            }
        }
    }

    private static void report() {
        System.out.println("acknowledged " + ACKNOWLEDGED.get() + " read " + READ.get());
    }

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        String name = arguments[2];
        start("consume", () -> consume(bootstrap, topic, name));
        start("report", () -> {
            while (true) {
                Thread.sleep(REPORT_PAUSE_MS);
                report();
            }
        });
        start("stop", () -> {
            while (System.in.read() >= 0) {
                continue;
            }
            STOPPING.set(true);
        });
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", bootstrap,
                "key.serializer", StringSerializer.class,
                "value.serializer", StringSerializer.class);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            for (long number = 0; !STOPPING.get(); number++) {
                producer.send(new ProducerRecord<>(topic, name + "-" + number), (written, error) -> {
                    if (error != null) {
                        fail("produce", error);
                    }
                    ACKNOWLEDGED.incrementAndGet();
                });
                Thread.sleep(SEND_PAUSE_MS);
            }
        }
        report();
    }
}
