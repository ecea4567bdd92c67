/* Where keys are in the memory of a server: in what is left out of core dumps, while their stream is open,
 * and nowhere else. And plaintext: nowhere once its stream has ended. The server is a process of its own
 * whose memory is searched. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/client.h"
#include "tests/support/random.h"
#include "tests/support/require.h"
#include "tests/support/server.h"
#include "tests/support/stream.h"

#define CHUNK_BYTES (1 << 20)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool searchable = false; /* shadow memory is too much to search */
#else
static const bool searchable = true;
#endif

struct remote {
    struct test_server server; /* the folder; the rest is the child's */
    struct core_address address;
    pid_t process;
    int orders; /* a byte: the server starts; closed: it stops */
    int ready;
};

_Noreturn static void serve(struct remote *remote, int orders, int ready)
{
    char byte;
    TEST_REQUIRE(read(orders, &byte, 1) == 1);
    test_server_start(&remote->server, "keyring: keyring\nengine: ipsec-mb\nlimits: {streams: 100}",
                      &test_profile_generous);
    TEST_REQUIRE(write(ready, "", 1) == 1);
    (void)!read(orders, &byte, 1);
    _exit(test_server_stop(&remote->server) == 0 ? 0 : 1);
}

/* The child must not inherit a key: it is forked before there is one. */
static void prepare(struct remote *remote)
{
    int orders[2], ready[2];
    char text[128];
    test_server_prepare(&remote->server);
    assert_int_equal(pipe(orders), 0);
    assert_int_equal(pipe(ready), 0);
    remote->process = fork();
    assert_true(remote->process >= 0);
    if (remote->process == 0) {
        close(orders[1]);
        serve(remote, orders[0], ready[1]);
    }
    close(orders[0]);
    close(ready[1]);
    remote->orders = orders[1];
    remote->ready = ready[0];
    snprintf(text, sizeof text, "unix:%s/socket", remote->server.folder);
    assert_int_equal(core_address_parse(text, &remote->address, NULL), CORE_OK);
}

static void start(struct remote *remote, const char *keyring)
{
    char byte;
    test_server_write(&remote->server, "keyring", keyring);
    assert_int_equal(write(remote->orders, "", 1), 1);
    assert_int_equal(read(remote->ready, &byte, 1), 1);
    close(remote->ready);
}

static void stop(struct remote *remote)
{
    int status;
    close(remote->orders);
    assert_int_equal(waitpid(remote->process, &status, 0), remote->process);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

struct found {
    unsigned protected, open; /* in memory that is left out of core dumps, and in other */
};

static unsigned search_range(int memory, uint64_t start, uint64_t end, const uint8_t *key, size_t bytes)
{
    static uint8_t chunk[CHUNK_BYTES + 64];
    unsigned found = 0;
    for (; start < end; start += CHUNK_BYTES) {
        ssize_t got = pread(memory, chunk, sizeof chunk, (off_t)start); /* overlaps the next by 64 bytes */
        size_t left = got > 0 ? (size_t)got : 0;
        left = left < end - start ? left : (size_t)(end - start);
        for (const uint8_t *from = chunk; (from = memmem(from, left, key, bytes)) != NULL; from++) {
            found++;
            left = (size_t)(chunk + left - from) - 1;
            if (left < bytes)
                break;
        }
    }
    return found;
}

static struct found search(const struct remote *remote, const uint8_t *key, size_t bytes)
{
    struct found found = {0, 0};
    uint64_t start = 0, end = 0;
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%d/mem", remote->process);
    int memory = open(path, O_RDONLY | O_CLOEXEC);
    snprintf(path, sizeof path, "/proc/%d/smaps", remote->process);
    FILE *maps = fopen(path, "r");
    if (memory < 0 || maps == NULL)
        skip(); /* needs the right to look into another process */
    while (fgets(line, sizeof line, maps) != NULL) {
        char *dash, *rest;
        uint64_t first = strtoull(line, &dash, 16);
        if (*dash == '-') {
            start = first;
            end = strtoull(dash + 1, &rest, 16);
        } else if (strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " rd ") != NULL) {
            unsigned here = search_range(memory, start, end, key, bytes);
            found.protected += strstr(line, " dd ") != NULL ? here : 0;
            found.open += strstr(line, " dd ") != NULL ? 0 : here;
        }
    }
    fclose(maps);
    close(memory);
    return found;
}

static void random_key(uint8_t key[32])
{
    int source = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    assert_true(source >= 0);
    assert_int_equal(read(source, key, 32), 32);
    close(source);
}

static void inline_keys(void **state)
{
    struct remote remote;
    struct test_client client;
    uint8_t keys[4][32];
    struct protocol_opened opened[4];
    (void)state;
    if (!searchable)
        skip();
    prepare(&remote);
    start(&remote, TEST_KEYRING);
    test_client_connect(&client, &remote.address, NULL);
    for (uint32_t i = 0; i < 4; i++) {
        struct core_stream_spec spec = test_spec;
        uint8_t frame[TEST_FRAME_BYTES];
        struct test_frame answer;
        spec.cipher = (enum core_cipher)(1 + i % 3);
        random_key(keys[i]);
        struct protocol_open open = test_open_inline(&spec, keys[i]);
        /* Whole, byte by byte, and with more behind it. */
        uint32_t bytes = protocol_open_write(2, frame, PROTOCOL_OPEN, i, &open);
        bytes += protocol_open_write(2, frame + bytes, PROTOCOL_QUERY, 9, &open);
        test_client_send_cut(&client, frame, bytes, i == 1 ? 1 : bytes, 1);
        for (int answers = 0; answers < 2; answers++) {
            test_client_expect(&client, PROTOCOL_OPENED, &answer);
            if (answer.header.id == i)
                assert_int_equal(
                    protocol_opened_read(1, answer.body, answer.header.body_bytes, &opened[i], NULL),
                    CORE_OK);
        }
        struct test_stream *stream = test_stream_adopt(&client, &spec, i, keys[i], &opened[i]);
        assert_true(test_stream_send(stream, 1408));
        test_stream_drain(stream);
        test_stream_free(stream);
    }
    for (uint32_t i = 0; i < 4; i++) {
        struct found found = search(&remote, keys[i], core_cipher_key_bytes((enum core_cipher)(1 + i % 3)));
        assert_int_equal(found.open, 0);
        assert_true(found.protected > 0); /* the search does find keys */
    }
    for (uint32_t i = 0; i < 4; i++) {
        uint8_t frame[TEST_FRAME_BYTES];
        struct test_frame answer;
        assert_true(test_client_send(&client, frame, protocol_close_write(frame, opened[i].stream)));
        test_client_expect(&client, PROTOCOL_CLOSED, &answer);
    }
    test_client_ping(&client);
    for (uint32_t i = 0; i < 4; i++) {
        struct found found = search(&remote, keys[i], core_cipher_key_bytes((enum core_cipher)(1 + i % 3)));
        assert_true(found.open == 0 && found.protected == 0);
    }
    test_client_close(&client);
    stop(&remote);
}

static void named_keys(void **state)
{
    struct remote remote;
    uint8_t key[32];
    char keyring[128] = "secret aes-256-cbc ";
    (void)state;
    if (!searchable)
        skip();
    prepare(&remote);
    random_key(key);
    for (size_t i = 0; i < sizeof key; i++)
        sprintf(keyring + strlen(keyring), "%02x", key[i]);
    strcat(keyring, "\n");
    start(&remote, keyring);
    struct found found = search(&remote, key, sizeof key);
    assert_true(found.open == 0 && found.protected > 0);
    stop(&remote);
}

/* ---- plaintext ---- */

#define PACKETS      60
#define PACKET_BYTES 1408

/* Blocks are wiped by another thread than the one that answers. */
static void await_none(const struct remote *remote, const uint8_t *text, size_t bytes)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    struct found found;
    while (found = search(remote, text, bytes), found.open + found.protected > 0) {
        if (core_time_now_ns() > until_ns)
            fail_msg("%u copies are left", found.open + found.protected);
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    }
}

static void await_some(const struct remote *remote, const uint8_t *text, size_t bytes)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    while (search(remote, text, bytes).open == 0) {
        assert_true(core_time_now_ns() < until_ns);
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    }
}

static uint32_t open_stream(struct test_client *client)
{
    static const uint8_t key[32] = {1};
    struct core_stream_spec spec = test_spec;
    struct protocol_opened opened;

    spec.burst_packets = 2;
    const struct protocol_open open = test_open_inline(&spec, key);
    assert_true(test_client_ask(client, PROTOCOL_OPEN, &open, &opened, NULL));
    assert_true(opened.queue_packets < PACKETS / 4);
    return opened.stream;
}

/* So many packets, each with the text somewhere. */
static size_t write_packets(uint8_t *bytes, uint32_t stream, uint32_t packets, const uint8_t text[32])
{
    size_t count = 0;
    for (uint32_t i = 0; i < packets; i++) {
        test_data_header(bytes + count, stream, i, PACKET_BYTES);
        memset(bytes + count + PROTOCOL_HEADER_BYTES, (int)i, PACKET_BYTES);
        memcpy(bytes + count + PROTOCOL_HEADER_BYTES + 16 * (i % 80), text, 32);
        count += PROTOCOL_HEADER_BYTES + PACKET_BYTES;
    }
    return count;
}

/* Many more at once than the stream holds: the rest waits beside the stream. */
static void plaintext_wiped_on_close(void **state)
{
    static uint8_t bytes[PACKETS * (PROTOCOL_HEADER_BYTES + PACKET_BYTES)];
    uint8_t text[32], frame[TEST_FRAME_BYTES];
    struct test_client client;
    struct test_frame answer;
    struct remote remote;
    (void)state;

    if (!searchable)
        skip();
    prepare(&remote);
    start(&remote, TEST_KEYRING);
    random_key(text);
    test_client_connect(&client, &remote.address, NULL);
    uint32_t other = open_stream(&client), stream = open_stream(&client);
    assert_true(test_client_send(&client, bytes, write_packets(bytes, stream, PACKETS, text)));
    for (int i = 0; i < PACKETS; i++)
        test_client_expect(&client, PROTOCOL_RESULT, &answer);
    assert_true(test_client_send(&client, frame, protocol_close_write(frame, stream)));
    test_client_expect(&client, PROTOCOL_CLOSED, &answer);
    await_none(&remote, text, sizeof text);
    assert_true(test_client_send(&client, frame, protocol_close_write(frame, other)));
    test_client_expect(&client, PROTOCOL_CLOSED, &answer);
    test_client_close(&client);
    stop(&remote);
}

/* A packet that comes in pieces, and is sorted by a pattern in its slot and put back there: nothing of it is left,
 * neither of what is encrypted nor of what passes. */
static void plaintext_of_a_pattern_wiped_on_close(void **state)
{
    static const uint8_t key[32] = {1};
    uint8_t bytes[PROTOCOL_HEADER_BYTES + PACKET_BYTES], text[32];
    struct test_client client;
    struct test_frame answer;
    struct protocol_opened opened;
    struct remote remote;
    (void)state;

    if (!searchable)
        skip();
    prepare(&remote);
    start(&remote, TEST_KEYRING);
    random_key(text);
    test_client_dial(&client, &remote.address);
    test_client_hello_version(&client, 3, NULL);
    struct core_stream_spec spec = test_spec;
    spec.unit = CORE_UNIT_MESSAGE;
    spec.crypt_blocks = spec.skip_blocks = 2;
    const struct protocol_open open = test_open_inline(&spec, key);
    assert_true(test_client_ask(&client, PROTOCOL_OPEN, &open, &opened, NULL));
    const struct protocol_header header = {.body_bytes = PACKET_BYTES,
                                           .type = PROTOCOL_DATA,
                                           .flags = PROTOCOL_DATA_FIRST | PROTOCOL_DATA_LAST,
                                           .id = opened.stream};
    protocol_header_write(bytes, &header);
    for (uint32_t at = 0; at < PACKET_BYTES; at += sizeof text)
        memcpy(bytes + PROTOCOL_HEADER_BYTES + at, text, sizeof text);
    test_client_send_cut(&client, bytes, sizeof bytes, 700, 1);
    test_client_expect(&client, PROTOCOL_RESULT, &answer);
    assert_true(test_client_send(&client, bytes, protocol_close_write(bytes, opened.stream)));
    test_client_expect(&client, PROTOCOL_CLOSED, &answer);
    await_none(&remote, text, sizeof text);
    test_client_close(&client);
    stop(&remote);
}

/* In the middle of a packet. */
static void plaintext_wiped_on_disconnect(void **state)
{
    uint8_t bytes[PROTOCOL_HEADER_BYTES + PACKET_BYTES], text[32];
    struct test_client client;
    struct remote remote;
    (void)state;

    if (!searchable)
        skip();
    prepare(&remote);
    start(&remote, TEST_KEYRING);
    random_key(text);
    test_client_connect(&client, &remote.address, NULL);
    size_t count = write_packets(bytes, open_stream(&client), 1, text);
    assert_true(test_client_send(&client, bytes, count - 16));
    await_some(&remote, text, sizeof text); /* the search does find it */
    test_client_close(&client);
    await_none(&remote, text, sizeof text);
    stop(&remote);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inline_keys),
        cmocka_unit_test(named_keys),
        cmocka_unit_test(plaintext_wiped_on_close),
        cmocka_unit_test(plaintext_of_a_pattern_wiped_on_close),
        cmocka_unit_test(plaintext_wiped_on_disconnect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
