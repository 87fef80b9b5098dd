/* One request with OpenSSL alone: `ask HOST PATH`. Prints what came back. */
#include <openssl/ssl.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **arguments) {
    char buffer[65536], place[300];
    int size, total = 0;
    if (count != 3) return 2;
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_default_verify_paths(context);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    BIO *connection = BIO_new_ssl_connect(context);
    SSL *tls;
    BIO_get_ssl(connection, &tls);
    snprintf(place, sizeof place, "%s:443", arguments[1]);
    BIO_set_conn_hostname(connection, place);
    SSL_set_tlsext_host_name(tls, arguments[1]);
    SSL_set1_host(tls, arguments[1]);
    if (BIO_do_connect(connection) <= 0) {
        fprintf(stderr, "cannot connect: %ld\n", SSL_get_verify_result(tls));
        return 1;
    }
    BIO_printf(connection, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", arguments[2], arguments[1]);
    while ((size = BIO_read(connection, buffer + total, sizeof buffer - 1 - total)) > 0) total += size;
    buffer[total] = 0;
    char *body = strstr(buffer, "\r\n\r\n");
    if (body) fputs(body + 4, stdout);
    return body == NULL;
}
