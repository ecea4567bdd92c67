#include "server/net/proxy.h"

#include <netinet/in.h>
#include <string.h>

#define FIXED_BYTES     16
#define SIGNATURE_BYTES 12

static const uint8_t signature[SIGNATURE_BYTES] = {'\r', '\n', '\r', '\n', 0,   '\r',
                                                   '\n', 'Q',  'U',  'I',  'T', '\n'};

/* Byte 13, and what the addresses of its family take. */
enum { UNKNOWN = 0x00, TCP4 = 0x11, TCP6 = 0x21, UNIX_STREAM = 0x31 };

static size_t address_bytes(uint8_t family)
{
    return family == TCP4 ? 12 : family == TCP6 ? 36 : family == UNIX_STREAM ? 216 : 0;
}

bool server_proxy_is_local(const struct server_proxy *proxy)
{
    return proxy->start[12] == 0x20;
}

uint8_t *server_proxy_room(struct server_proxy *proxy, size_t *bytes)
{
    const size_t end = proxy->whole == 0 ? FIXED_BYTES : proxy->whole;
    const bool behind = proxy->got >= sizeof proxy->start;
    const size_t left = end - proxy->got;
    const size_t room = behind ? sizeof proxy->rest : sizeof proxy->start - proxy->got;

    *bytes = left < room ? left : room;
    return behind ? proxy->rest : proxy->start + proxy->got;
}

static core_status check_start(const struct server_proxy *proxy, struct core_error *error)
{
    const size_t seen = proxy->got < SIGNATURE_BYTES ? proxy->got : SIGNATURE_BYTES;

    if (proxy->got >= 5 && memcmp(proxy->start, "PROXY", 5) == 0)
        return core_error_set(error, CORE_INVALID,
                              "a PROXY header of version 1; let the proxy send version 2 "
                              "(HAProxy: send-proxy-v2)");
    if (memcmp(proxy->start, signature, seen) != 0 &&
        (proxy->got >= 5 || memcmp(proxy->start, "PROXY", proxy->got) != 0))
        return core_error_set(error, CORE_INVALID,
                              "no PROXY header; only a proxy that sends one (HAProxy: "
                              "send-proxy-v2) may connect here");
    return CORE_AGAIN;
}

static core_status read_fixed(struct server_proxy *proxy, struct core_error *error)
{
    const uint8_t command = proxy->start[12], family = proxy->start[13];
    const size_t bytes = (size_t)proxy->start[14] << 8 | proxy->start[15];

    if (command != 0x20 && command != 0x21)
        return core_error_set(error, CORE_INVALID, "a PROXY header of an unknown version or command (%#x)",
                              command);
    if (!server_proxy_is_local(proxy) && family != UNKNOWN && address_bytes(family) == 0)
        return core_error_set(error, CORE_INVALID,
                              "a PROXY header of another family than TCP and Unix streams (%#x)", family);
    if (!server_proxy_is_local(proxy) && bytes < address_bytes(family))
        return core_error_set(error, CORE_INVALID,
                              "a PROXY header whose %zu bytes have no room for the addresses", bytes);
    if (FIXED_BYTES + bytes > SERVER_PROXY_BYTES_MAX)
        return core_error_set(error, CORE_INVALID, "a PROXY header of %zu bytes; at most %d are taken",
                              FIXED_BYTES + bytes, SERVER_PROXY_BYTES_MAX);
    proxy->whole = FIXED_BYTES + bytes;
    return CORE_OK;
}

core_status server_proxy_take(struct server_proxy *proxy, size_t bytes, struct core_error *error)
{
    core_status status = CORE_OK;

    proxy->got += bytes;
    if (proxy->whole == 0) {
        status = check_start(proxy, error);
        if (status == CORE_AGAIN && proxy->got == FIXED_BYTES)
            status = read_fixed(proxy, error);
    }
    return status == CORE_OK && proxy->got < proxy->whole ? CORE_AGAIN : status;
}

bool server_proxy_client(const struct server_proxy *proxy, struct sockaddr_storage *client)
{
    const uint8_t *address = proxy->start + FIXED_BYTES;
    struct sockaddr_in *ip4 = (struct sockaddr_in *)client;
    struct sockaddr_in6 *ip6 = (struct sockaddr_in6 *)client;

    *client = (struct sockaddr_storage){.ss_family = AF_UNIX};
    if (server_proxy_is_local(proxy) || proxy->start[13] == UNKNOWN)
        return false;
    if (proxy->start[13] == TCP4) {
        ip4->sin_family = AF_INET;
        memcpy(&ip4->sin_addr, address, 4);
        memcpy(&ip4->sin_port, address + 8, 2);
    } else if (proxy->start[13] == TCP6) {
        ip6->sin6_family = AF_INET6;
        memcpy(&ip6->sin6_addr, address, 16);
        memcpy(&ip6->sin6_port, address + 32, 2);
    }
    return true;
}
