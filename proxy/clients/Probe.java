// Request a URL with Java's own client: `java Probe.java URL` (a JDK compiles it first).

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;

class Probe {
    public static void main(String[] arguments) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(arguments[0])).timeout(Duration.ofSeconds(15)).build();
        HttpClient.newHttpClient().send(request, BodyHandlers.discarding());
    }
}
