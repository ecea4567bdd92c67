#include "bench/ts/inline.h"

#include "bench/ts/traffic.h"
#include "client/ts/packet.h"
#include "client/ts/sockets.h"
#include "client/ts/tables.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define ROOM_BYTES 1500
#define EVENTS     64

struct relay {
    struct config_ts *config;
    int input, output;
    struct ts_tables tables;
    EVP_CIPHER_CTX *context;
    uint64_t overflow;
};

static void scramble(EVP_CIPHER_CTX *context, uint8_t *packet)
{
    static const uint8_t iv[] = "DVBTMCPTAESCISSA";
    size_t offset = ts_packet_payload(packet);
    int done;
    if ((packet[3] & 0x80) == 0 || offset > TS_PACKET_BYTES - 16)
        return;
    if (EVP_EncryptInit_ex(context, NULL, NULL, NULL, iv) != 1 ||
        EVP_EncryptUpdate(context, packet + offset, &done, packet + offset,
                          (int)((TS_PACKET_BYTES - offset) / 16 * 16)) != 1)
        _exit(1);
}

static void relay_batch(struct relay *relay, core_ns offset_ns)
{
    static uint8_t rooms[TS_BATCH][ROOM_BYTES];
    struct iovec vectors[TS_BATCH];
    struct ts_arrival arrivals[TS_BATCH];
    struct ts_datagram datagram;
    for (size_t i = 0; i < TS_BATCH; i++)
        vectors[i] = (struct iovec){.iov_base = rooms[i], .iov_len = ROOM_BYTES};
    unsigned count =
                 ts_socket_receive(relay->input, vectors, TS_BATCH, offset_ns, arrivals, &relay->overflow),
             kept = 0;
    for (unsigned i = 0; i < count; i++) {
        if (!ts_datagram_read(rooms[i], arrivals[i].bytes, &datagram))
            continue;
        uint8_t *packets = rooms[i] + datagram.offset;
        ts_tables_read(&relay->tables, packets, datagram.bytes);
        if (!relay->tables.complete)
            continue;
        ts_datagram_mark(packets, datagram.bytes, relay->tables.clear, false);
        for (size_t at = 0; at < datagram.bytes; at += TS_PACKET_BYTES)
            scramble(relay->context, packets + at);
        vectors[kept++] = (struct iovec){.iov_base = rooms[i], .iov_len = arrivals[i].bytes};
    }
    (void)ts_socket_send(relay->output, &relay->config->services[0].output, vectors, kept);
}

static void open_relay(struct relay *relay, size_t service, uint64_t seed)
{
    char in[32], out[32], text[512];
    uint8_t word[16];
    struct core_error error = {"OpenSSL"};
    bench_ts_group(service, false, in);
    bench_ts_group(service, true, out);
    bench_ts_word(seed, service, 0, word);
    snprintf(
        text, sizeof text,
        "services:\n  - {name: a, input: \"%s\", input_interface: lo, output: \"%s\", output_interface: lo, "
        "rate_mbit_per_s: 1, words: {file: a}}\n",
        in, out);
    ts_tables_open(&relay->tables, NULL, 0);
    if (config_ts_parse(text, strlen(text), "bench", &relay->config, &error) == CORE_OK &&
        ts_socket_input(&relay->config->services[0], &relay->input, &error) == CORE_OK &&
        ts_socket_output(&relay->config->services[0], &relay->output, &error) == CORE_OK &&
        (relay->context = EVP_CIPHER_CTX_new()) != NULL &&
        EVP_EncryptInit_ex(relay->context, EVP_aes_128_cbc(), NULL, word, NULL) == 1 &&
        EVP_CIPHER_CTX_set_padding(relay->context, 0) == 1)
        return;
    fprintf(stderr, "millrace-bench: %s\n", error.text);
    _exit(1);
}

_Noreturn void bench_ts_inline(size_t services, uint64_t seed)
{
    struct relay *relays = calloc(services, sizeof *relays);
    struct epoll_event events[EVENTS];
    int poller = epoll_create1(EPOLL_CLOEXEC);
    for (size_t i = 0; i < services && relays != NULL; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &relays[i]};
        open_relay(&relays[i], i, seed);
        (void)epoll_ctl(poller, EPOLL_CTL_ADD, relays[i].input, &event);
    }
    for (;;) {
        int count = epoll_wait(poller, events, EVENTS, -1);
        core_ns offset_ns = ts_clock_offset_ns();
        for (int i = 0; i < count; i++)
            relay_batch(events[i].data.ptr, offset_ns);
    }
}
