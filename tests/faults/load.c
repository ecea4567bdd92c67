/* A small load for tools/faults, by the client library: two connections with streams on both kinds of units go
 * through all that a stream can go through, while some call in the server, its GPU process or here fails.
 *
 *   faults_load SOCKET ADMIN SERVER-PID   the whole of it
 *   faults_load ADDRESS CA                one stream, by TLS
 *   faults_load SOCKET                    a newcomer: one stream, which must be served whole
 *
 * Every byte is compared. A request may be refused and a connection may end, if it is told; each is printed.
 * Exit status 0: nothing worse, and the last line has the number of those who were told; 3: a wrong byte, or
 * the newcomer was not served; 4: something was not answered in time. */
#include "client/command.h"
#include "client/contract.h"

#include <dirent.h>
#include <openssl/evp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATIENCE_MS  15000
#define PACKET_BYTES 1024
#define PACKETS      3  /* of a stream, in a row */
#define FILLERS      40 /* streams at most that fill the worker, so that the next one is on the GPU */
#define STREAMS      (FILLERS + 3)

struct stream {
    uint32_t id; /* 0: not open */
    bool on_gpu;
    struct core_stream_spec spec;
    EVP_CIPHER_CTX *reference;
    uint64_t messages; /* each packet is one, chained to the one before */
    uint8_t chain[CORE_BLOCK_BYTES];
};

struct client {
    const char *name;
    struct millrace *connection; /* NULL: it has ended */
    struct stream streams[STREAMS];
    size_t count;
};

static unsigned told;

/* Of the preloaded library (preload.c), if it is there: no fault in what this thread does from now on. */
extern void faults_own(bool own) __attribute__((weak));

static void own(bool is_own)
{
    if (faults_own != NULL)
        faults_own(is_own);
}

static void fail(int status, const char *name, const char *doing, const char *text)
{
    printf("%s: %s: %s\n", name, doing, text);
    exit(status);
}

/* True: it was done. What fails must be told: a refusal, or the end of the connection. */
static bool done(struct client *client, const char *doing, millrace_status status,
                 const struct core_error *error)
{
    if (status == MILLRACE_OK)
        return true;
    if (status == MILLRACE_TIMEOUT)
        fail(4, client->name, doing, "no answer");
    told++;
    printf("%s: %s: %s\n", client->name, doing, error->text);
    if (status != MILLRACE_REFUSED && status != MILLRACE_INVALID && status != MILLRACE_NOT_FOUND) {
        millrace_disconnect(client->connection);
        client->connection = NULL;
    }
    return false;
}

static void enter(struct client *client, const char *name, const char *address, const char *ca)
{
    const struct millrace_tls tls = {.size = sizeof tls, .ca_file = ca};
    struct core_error error = {""};
    client->name = name;
    (void)done(client, "connect",
               millrace_connect(address, &tls, PATIENCE_MS, &client->connection, error.text), &error);
}

/* ---- streams ---- */

static struct millrace_open open_of(const struct core_stream_spec *spec, const uint8_t *key,
                                    const uint8_t *iv)
{
    struct millrace_open open = client_contract_open(spec);
    open.key_kind = MILLRACE_KEY_INLINE;
    open.key = key;
    open.key_bytes = 16;
    open.has_iv = true;
    memcpy(open.iv, iv, sizeof open.iv);
    return open;
}

/* A stream of a packet every interval_ns with this latency bound, of messages or not. NULL: not opened. */
static struct stream *start(struct client *client, core_ns interval_ns, core_ns latency_ns, bool guaranteed,
                            enum core_unit unit)
{
    static const uint8_t key[16] = "fault and favour", iv[16] = "begin with these";
    struct stream *stream = &client->streams[client->count];
    struct millrace_opened opened = {.size = sizeof opened};
    struct core_error error = {""};

    if (client->connection == NULL || client->count == STREAMS)
        return NULL;
    *stream = (struct stream){.spec = {.packet_bytes = PACKET_BYTES,
                                       .burst_packets = 2,
                                       .interval_ns = interval_ns,
                                       .latency_ns = latency_ns,
                                       .cipher = CORE_CIPHER_AES_128_CBC,
                                       .guaranteed = guaranteed,
                                       .unit = unit}};
    const struct millrace_open open = open_of(&stream->spec, key, iv);
    if (!done(client, "open",
              millrace_open_stream(client->connection, &open, PATIENCE_MS, &opened, NULL, error.text),
              &error))
        return NULL;
    stream->id = opened.stream;
    stream->on_gpu = opened.unit == MILLRACE_SERVER_UNIT_GPU;
    own(true);
    stream->reference = EVP_CIPHER_CTX_new();
    if (stream->reference == NULL ||
        EVP_EncryptInit_ex2(stream->reference, EVP_aes_128_cbc(), key, iv, NULL) != 1 ||
        EVP_CIPHER_CTX_set_padding(stream->reference, 0) != 1)
        fail(5, client->name, "reference", "no cipher");
    own(false);
    client->count++;
    return stream;
}

/* Sends packets at the pace of the contract and compares what comes back. */
static void send_some(struct client *client, struct stream *stream)
{
    uint8_t packet[PACKET_BYTES], expected[PACKET_BYTES], got[PACKET_BYTES + CORE_BLOCK_BYTES];
    struct millrace_result result = {.size = sizeof result};
    struct core_error error = {""};
    uint32_t bytes;
    int length;

    for (int at = 0; at < PACKETS && stream->id != 0 && client->connection != NULL; at++) {
        memset(packet, at + 1, sizeof packet);
        if (!done(client, "encrypt",
                  millrace_encrypt(client->connection, stream->id, packet, sizeof packet, PATIENCE_MS, got,
                                   &bytes, &result, error.text),
                  &error)) {
            stream->id = 0; /* its chain is broken with that */
            return;
        }
        own(true);
        if (EVP_EncryptUpdate(stream->reference, expected, &length, packet, sizeof packet) != 1 ||
            bytes != sizeof expected || memcmp(expected, got, sizeof expected) != 0)
            fail(3, client->name, "encrypt", "a wrong byte");
        memcpy(stream->chain, expected + sizeof expected - CORE_BLOCK_BYTES, CORE_BLOCK_BYTES);
        stream->messages++;
        own(false);
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    }
}

static void send_on_all(struct client *client)
{
    for (size_t at = 0; at < client->count; at++)
        send_some(client, &client->streams[at]);
}

static void modify(struct client *client, struct stream *stream, core_ns interval_ns, core_ns latency_ns)
{
    struct millrace_modified modified = {.size = sizeof modified};
    struct core_error error = {""};

    if (stream == NULL || stream->id == 0 || client->connection == NULL)
        return;
    const struct millrace_modify change = {.size = sizeof change,
                                           .stream = stream->id,
                                           .burst_packets = stream->spec.burst_packets,
                                           .interval_ns = interval_ns,
                                           .latency_ns = latency_ns};
    (void)done(client, "modify",
               millrace_modify_stream(client->connection, &change, PATIENCE_MS, &modified, NULL, error.text),
               &error);
}

/* From the next message on, if it is granted. */
static void rekey(struct client *client, struct stream *stream)
{
    static const uint8_t key[16] = "favour and fault";
    struct core_error error = {""};

    if (stream == NULL || stream->id == 0 || client->connection == NULL)
        return;
    const struct millrace_rekey change = {.size = sizeof change,
                                          .stream = stream->id,
                                          .key_kind = MILLRACE_KEY_INLINE,
                                          .key = key,
                                          .key_bytes = sizeof key,
                                          .first = stream->messages};
    if (!done(client, "rekey",
              millrace_rekey_stream(client->connection, &change, PATIENCE_MS, NULL, NULL, error.text),
              &error))
        return;
    own(true);
    if (EVP_EncryptInit_ex2(stream->reference, NULL, key, stream->chain, NULL) != 1)
        fail(5, client->name, "reference", "no key");
    own(false);
}

static void query(struct client *client)
{
    static const uint8_t key[16], iv[16];
    struct millrace_opened opened = {.size = sizeof opened};
    struct core_error error = {""};
    core_ns round_trip_ns;

    if (client->connection == NULL)
        return;
    const struct millrace_open open = open_of(&client->streams[0].spec, key, iv);
    if (done(client, "query",
             millrace_query(client->connection, &open, PATIENCE_MS, &opened, NULL, error.text), &error))
        (void)done(client, "ping", millrace_ping(client->connection, PATIENCE_MS, &round_trip_ns, error.text),
                   &error);
}

static void leave(struct client *client)
{
    struct millrace_closed closed = {.size = sizeof closed};
    struct core_error error = {""};

    for (size_t at = 0; at < client->count; at++) {
        struct stream *stream = &client->streams[at];
        if (stream->id != 0 && client->connection != NULL)
            (void)done(
                client, "close",
                millrace_close_stream(client->connection, stream->id, PATIENCE_MS, &closed, error.text),
                &error);
        EVP_CIPHER_CTX_free(stream->reference);
    }
    millrace_disconnect(client->connection);
}

/* ---- the server's surroundings ---- */

static void ask_admin(const char *address)
{
    static const char *const paths[] = {"/metrics", "/status", "/status?streams=1", "/health"};
    for (size_t at = 0; at < sizeof paths / sizeof *paths; at++) {
        struct core_error error = {""};
        char *body = NULL;
        size_t bytes;
        if (command_http_get(address, paths[at], PATIENCE_MS, &body, &bytes, &error) != CORE_OK) {
            told++;
            printf("admin: %s: %s\n", paths[at], error.text);
        }
        free(body);
    }
}

/* The GPU's process: the server's only child. 0: it has none now. */
static pid_t child_of(pid_t server)
{
    DIR *processes = opendir("/proc");
    pid_t child = 0;
    if (processes == NULL)
        return 0;
    for (const struct dirent *entry; (entry = readdir(processes)) != NULL;) {
        char path[300], line[512] = "";
        long parent = 0;
        (void)snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        FILE *file = strspn(entry->d_name, "0123456789") > 0 ? fopen(path, "r") : NULL;
        if (file == NULL)
            continue;
        const char *end = fgets(line, sizeof line, file) != NULL ? strrchr(line, ')') : NULL;
        if (end != NULL && sscanf(end, ") %*c %ld", &parent) == 1 && parent == server)
            child = (pid_t)atol(entry->d_name);
        (void)fclose(file);
    }
    (void)closedir(processes);
    return child;
}

static void lose_gpu(pid_t server)
{
    const pid_t child = child_of(server);
    if (child > 0)
        (void)kill(child, SIGKILL);
}

/* ---- the load ---- */

static void one_stream(const char *name, const char *address, const char *ca)
{
    struct client client = {0};
    enter(&client, name, address, ca);
    struct stream *stream = start(&client, 20 * CORE_NS_PER_MS, 50 * CORE_NS_PER_MS, false, CORE_UNIT_STREAM);
    if (stream != NULL)
        send_some(&client, stream);
    leave(&client);
}

static void all_of_it(const char *address, const char *admin, pid_t server)
{
    struct client witness = {0}, client = {0};

    enter(&witness, "witness", address, NULL);
    (void)start(&witness, 10 * CORE_NS_PER_MS, 12 * CORE_NS_PER_MS, false, CORE_UNIT_STREAM);
    enter(&client, "client", address, NULL);
    struct stream *quick = start(&client, 10 * CORE_NS_PER_MS, 12 * CORE_NS_PER_MS, false, CORE_UNIT_STREAM);
    struct stream *brisk = start(&client, 10 * CORE_NS_PER_MS, 12 * CORE_NS_PER_MS, false, CORE_UNIT_MESSAGE);
    struct stream *slow = NULL;
    for (int at = 0; at < FILLERS && (slow == NULL || !slow->on_gpu); at++)
        slow = start(&client, 2 * CORE_NS_PER_MS, 200 * CORE_NS_PER_MS, false, CORE_UNIT_STREAM);
    struct stream *safe = start(&client, 10 * CORE_NS_PER_MS, 200 * CORE_NS_PER_MS, true, CORE_UNIT_MESSAGE);
    printf("a stream is on a GPU: %s\n", slow != NULL && slow->on_gpu ? "yes" : "no");
    send_on_all(&witness);
    send_on_all(&client);
    query(&client);
    modify(&client, quick, 20 * CORE_NS_PER_MS, 12 * CORE_NS_PER_MS);
    modify(&client, slow, 20 * CORE_NS_PER_MS, 10 * CORE_NS_PER_MS); /* which no batch can keep: it moves */
    rekey(&client, brisk);
    rekey(&client, safe);
    send_on_all(&client);
    (void)kill(server, SIGHUP);
    ask_admin(admin);
    lose_gpu(server);
    send_on_all(&client);
    send_on_all(&witness);
    leave(&client);
    send_on_all(&witness);
    leave(&witness);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    switch (argc) {
    case 2:
        one_stream("newcomer", argv[1], NULL);
        return told == 0 ? 0 : 3;
    case 3:
        one_stream("client by TLS", argv[1], argv[2]);
        break;
    case 4:
        all_of_it(argv[1], argv[2], (pid_t)atol(argv[3]));
        break;
    default:
        fprintf(stderr, "usage: %s ADDRESS [CA | ADMIN SERVER-PID]\n", argv[0]);
        return 2;
    }
    printf("told: %u\n", told);
    return 0;
}
