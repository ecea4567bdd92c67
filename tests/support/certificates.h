/* Certificates for tests of TLS, made afresh each time. */
#ifndef MILLRACE_TESTS_CERTIFICATES_H
#define MILLRACE_TESTS_CERTIFICATES_H

#include <openssl/ssl.h>

/* Writes ca.pem, server.pem and server.key (for 127.0.0.1, signed by ca), client.pem and client.key (signed
 * by ca), stranger.pem and stranger.key (signed by nobody), odd.pem and odd.key (of a curve that TLS 1.3 does not
 * know) into the folder. */
void test_certificates_write(const char *folder);

/* A client that trusts ca.pem and shows `certificate` ("client", "stranger"; NULL: none). */
SSL_CTX *test_certificates_client(const char *folder, const char *certificate);

#endif
