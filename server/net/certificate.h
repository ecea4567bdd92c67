/* Who a TLS client is, by the certificate that its handshake has verified. */
#ifndef MILLRACE_SERVER_NET_CERTIFICATE_H
#define MILLRACE_SERVER_NET_CERTIFICATE_H

#include "config/keyring.h"
#include "core/status.h"

#include <openssl/ssl.h>

/* After the handshake: fingerprint and names, the latter to be freed; nothing if the client showed no
 * certificate. Names are the subject's common names and the DNS names and URIs of subjectAltName; of more
 * than 16 names or 1 KiB the first ones. CORE_NO_MEMORY. */
CORE_CHECKED core_status server_certificate_identify(const SSL *tls, struct config_key_user *user);

#endif
