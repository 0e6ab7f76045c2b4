import java.io.FileInputStream;
import java.net.InetSocketAddress;
import java.net.Proxy;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import javax.net.ssl.X509TrustManager;
import okhttp3.Call;
import okhttp3.Callback;
import okhttp3.OkHttpClient;
import okhttp3.Protocol;
import okhttp3.Request;
import okhttp3.RequestBody;
import okhttp3.Response;

/**
 * OkHttp through an explicit proxy, TLS inside, by HTTP/1.1 and by HTTP/2.
 *
 * Arguments: http|socks, the proxy's host and port, a PEM file with the root to trust, the base URL. The host in the
 * URL is resolved by the proxy. Prints a line for each request, or ends with an exception.
 */
public final class Tunnel {
    private static final int AT_ONCE = 8;
    private static final int UPLOAD_BYTES = 1 << 20;

    public static void main(String[] arguments) throws Exception {
        Proxy.Type type = arguments[0].equals("socks") ? Proxy.Type.SOCKS : Proxy.Type.HTTP;
        Proxy proxy = new Proxy(type, new InetSocketAddress(arguments[1], Integer.parseInt(arguments[2])));
        X509TrustManager trust = trusting(arguments[3]);
        SSLContext tls = SSLContext.getInstance("TLS");
        tls.init(null, new X509TrustManager[] {trust}, null);
        OkHttpClient plain = new OkHttpClient.Builder()
                .proxy(proxy)
                .sslSocketFactory(tls.getSocketFactory(), trust)
                .callTimeout(20, TimeUnit.SECONDS)
                .retryOnConnectionFailure(false)
                .build();
        for (List<Protocol> protocols :
                List.of(List.of(Protocol.HTTP_1_1), List.of(Protocol.HTTP_2, Protocol.HTTP_1_1))) {
            OkHttpClient client = plain.newBuilder().protocols(protocols).build();
            get(client, arguments[4] + "/who");
            get(client, arguments[4] + "/who");
            get(client, arguments[4] + "/large");
            upload(client, arguments[4] + "/who");
            atOnce(client, arguments[4] + "/large");
            client.connectionPool().evictAll();
        }
        plain.dispatcher().executorService().shutdown();
    }

    private static void get(OkHttpClient client, String url) throws Exception {
        try (Response response = client.newCall(new Request.Builder().url(url).build()).execute()) {
            tell("GET", response);
        }
    }

    private static void upload(OkHttpClient client, String url) throws Exception {
        RequestBody body = RequestBody.create(new byte[UPLOAD_BYTES], null);
        try (Response response = client.newCall(new Request.Builder().url(url).post(body).build()).execute()) {
            tell("POST", response);
        }
    }

    private static void atOnce(OkHttpClient client, String url) throws Exception {
        CountDownLatch done = new CountDownLatch(AT_ONCE);
        AtomicReference<Exception> failure = new AtomicReference<>();
        for (int call = 0; call < AT_ONCE; call++) {
            client.newCall(new Request.Builder().url(url).build()).enqueue(new Callback() {
                @Override
                public void onFailure(Call failed, java.io.IOException why) {
                    failure.set(why);
                    done.countDown();
                }

                @Override
                public void onResponse(Call answered, Response response) {
                    try (response) {
                        tell("GET", response);
                    } catch (Exception why) {
                        failure.set(why);
                    }
                    done.countDown();
                }
            });
        }
        done.await();
        if (failure.get() != null) {
            throw failure.get();
        }
    }

    private static synchronized void tell(String method, Response response) throws Exception {
        byte[] body = response.body().bytes();
        String start = new String(body, 0, Math.min(body.length, 60), "UTF-8").trim();
        System.out.printf("%s %s %d %d %s%n", method, response.protocol(), response.code(), body.length, start);
    }

    private static X509TrustManager trusting(String root) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (FileInputStream file = new FileInputStream(root)) {
            store.setCertificateEntry("root", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        TrustManagerFactory factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        factory.init(store);
        return (X509TrustManager) factory.getTrustManagers()[0];
    }
}
