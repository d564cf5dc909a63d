import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.function.Consumer;

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

    /** Replaces what Kafka's class Exit does. It is in another package since 4.4. */
    private static void replace(String setter, Consumer<Object[]> replacement) throws ReflectiveOperationException {
        Class<?> exit;
        try {
            exit = Class.forName("org.apache.kafka.common.utils.internals.Exit");
        } catch (ClassNotFoundException before44) {
            exit = Class.forName("org.apache.kafka.common.utils.Exit");
        }
        InvocationHandler handler = (proxy, method, given) -> {
            replacement.accept(given);
            return null;
        };
        for (Method method : exit.getMethods()) {
            if (method.getName().equals(setter)) {
                Class<?> type = method.getParameterTypes()[0];
                method.invoke(null, Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, handler));
            }
        }
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
        replace("setExitProcedure", given -> end((Integer) given[0]));
        replace("setHaltProcedure", given -> end((Integer) given[0]));
        replace("setShutdownHookAdder", given -> atEnd.add((Runnable) given[1]));
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
