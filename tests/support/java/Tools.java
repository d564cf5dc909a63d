import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import org.apache.kafka.common.utils.internals.Exit;

/**
 * Runs Kafka's tools, one after the other, in one JVM: starting it takes longer than a tool.
 *
 * <p>A line of its input is a command: the name of the class, what the tool reads, and the arguments, each in Base64. It
 * answers with a line: the exit code, a blank, and the output, in Base64.
 */
public final class Tools {
    /** Ends a tool in place of the JVM. Some catch it, as they catch all, and end once more: the first code counts. */
    private static final class Ended extends Error {
        private Ended() {
            super("ended", null, false, false);
        }
    }

    private static Integer code;

    /** What the tool wants to have done when the JVM ends: some send or print only then. */
    private static final List<Runnable> atEnd = new ArrayList<>();

    private static void end(int given) {
        code = code == null ? given : code;
        throw new Ended();
    }

    private static int run(String tool, String[] arguments) throws ReflectiveOperationException {
        code = null;
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Ended)) {
                thrown.getCause().printStackTrace();
                code = 1;
            }
        }
        atEnd.forEach(Runnable::run);
        atEnd.clear();
        return code == null ? 0 : code;
    }

    private static String text(String field) {
        return new String(Base64.getDecoder().decode(field), StandardCharsets.UTF_8);
    }

    public static void main(String[] unused) throws Exception {
        Exit.setExitProcedure((given, message) -> end(given));
        Exit.setHaltProcedure((given, message) -> end(given));
        Exit.setShutdownHookAdder((name, hook) -> atEnd.add(hook));
        InputStream commands = System.in;
        PrintStream answers = System.out;
        BufferedReader lines = new BufferedReader(new InputStreamReader(commands, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] fields = Arrays.stream(line.split(" ", -1)).map(Tools::text).toArray(String[]::new);
            ByteArrayOutputStream output = new ByteArrayOutputStream();
            PrintStream captured = new PrintStream(output, true, StandardCharsets.UTF_8);
            System.setIn(new ByteArrayInputStream(fields[1].getBytes(StandardCharsets.UTF_8)));
            System.setOut(captured);
            System.setErr(captured);
            int code = run(fields[0], Arrays.copyOfRange(fields, 2, fields.length));
            captured.flush();
            answers.println(code + " " + Base64.getEncoder().encodeToString(output.toByteArray()));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }
}
