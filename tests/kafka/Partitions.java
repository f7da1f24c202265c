import java.util.HexFormat;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

/** Prints where Java's producer puts each key: the partition counts come first, then the keys in hexadecimal. */
public class Partitions {
    public static void main(String[] arguments) {
        for (String count : arguments[0].split(",")) {
            for (int index = 1; index < arguments.length; index++) {
                byte[] key = HexFormat.of().parseHex(arguments[index].substring(1));
                System.out.println(BuiltInPartitioner.partitionForKey(key, Integer.parseInt(count)));
            }
        }
    }
}
