import java.util.Map;
import org.apache.iceberg.inmemory.InMemoryCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/**
 * A REST catalog as Apache Iceberg has it for its own tests: its protocol and its rules of commits, over tables that are
 * remembered in memory. The argument is the warehouse. Prints its port, and ends when its input does.
 */
public class Catalog {
    public static void main(String[] args) throws Exception {
        InMemoryCatalog catalog = new InMemoryCatalog();
        catalog.initialize("tests", Map.of("warehouse", args[0]));
        ServletContextHandler context = new ServletContextHandler();
        context.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
        Server server = new Server();
        ServerConnector connector = new ServerConnector(server);
        connector.setHost("127.0.0.1");
        server.addConnector(connector);
        server.setHandler(context);
        server.start();
        System.out.println(connector.getLocalPort());
        while (System.in.read() >= 0) {
        }
        System.exit(0);
    }
}
