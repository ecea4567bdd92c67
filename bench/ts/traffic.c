#include "bench/ts/traffic.h"

#include "bench/ts/descramble.h"
#include "client/ts/sockets.h"
#include "core/realtime.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define PACKETS      7
#define PACKET_BYTES 188
#define BYTES        (PACKETS * PACKET_BYTES)
#define RTP_BYTES    12
#define PATTERN      65536 /* bytes of which payloads are cut */
#define TABLES_EVERY 32    /* datagrams */
#define PID_PMT      0x100
#define PID_VIDEO    0x101
#define EVENTS       64
#define WAIT_MS      50

struct receiver { /* of one service */
    struct bench_descrambler descrambler;
    struct bench_ts_traffic *traffic;
    struct config_ts_service config; /* for its socket */
    int socket;
    uint64_t next; /* number of the datagram that is to come */
    bool judged;   /* it has had its first one since bench_ts_measure */
    uint64_t overflow;
};

struct bench_ts_traffic {
    struct bench_ts_options options;
    uint8_t pattern[2 * PATTERN];
    int output;
    pthread_t sender, checker;
    struct receiver *receivers;
    struct bench_ts_figures figures; /* the checker's, but `sent`, the sender's */
    atomic_size_t heard;             /* atomic: written by the checker, read by any */
    atomic_bool measures, stop;      /* atomic: written by the bench, read by both threads */
};

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

void bench_ts_word(uint64_t seed, size_t service, uint64_t number, uint8_t word[16])
{
    uint64_t half = mix(seed + mix(service + 1) + number);
    memcpy(word, &half, 8);
    half = mix(half + 1);
    memcpy(word + 8, &half, 8);
}

void bench_ts_group(size_t service, bool out, char text[32])
{
    snprintf(text, 32, "udp:239.%d.%u.%u:%d", out ? 2 : 1, (unsigned)(service / 250) & 0xFF,
             (unsigned)(service % 250) + 1, BENCH_TS_PORT);
}

static void set_address(struct config_ts_endpoint *endpoint, size_t service, bool out)
{
    const struct sockaddr_in address = {.sin_family = AF_INET,
                                        .sin_port = htons(BENCH_TS_PORT),
                                        .sin_addr.s_addr =
                                            htonl((uint32_t)(239u << 24 | (out ? 2u : 1u) << 16 |
                                                             (service / 250) << 8 | (service % 250 + 1)))};
    memcpy(&endpoint->address, &address, sizeof address);
    endpoint->address_bytes = sizeof address;
    endpoint->is_group = true;
    endpoint->interface = (char *)(uintptr_t) "lo";
}

/* ---- what is sent ---- */

static void make_section(uint8_t *packet, uint16_t pid, uint64_t counter, const uint8_t *section,
                         size_t bytes)
{
    uint32_t crc = 0xFFFFFFFF;
    memset(packet, 0xFF, PACKET_BYTES);
    const uint8_t head[] = {0x47, (uint8_t)(0x40 | pid >> 8), (uint8_t)pid,
                            (uint8_t)(0x10 | (counter & 0x0F)), 0};
    memcpy(packet, head, sizeof head);
    memcpy(packet + 5, section, bytes);
    for (size_t i = 0; i < 8 * bytes; i++)
        crc = (crc << 1) ^
              ((crc >> 31) != ((uint32_t)section[i / 8] >> (7 - i % 8) & 1u) ? UINT32_C(0x04C11DB7) : 0);
    for (size_t i = 0; i < 4; i++)
        packet[5 + bytes + i] = (uint8_t)(crc >> (24 - 8 * i));
}

/* A packet of video: its payload is cut out of the pattern, and begins with what it is; the first one of a datagram
 * has an adaptation field with a clock reference. */
static void make_video(const struct bench_ts_traffic *traffic, size_t service, uint64_t number,
                       unsigned index, core_ns sent_ns, uint8_t *packet)
{
    const uint8_t head[] = {0x47, PID_VIDEO >> 8, PID_VIDEO & 0xFF,
                            (uint8_t)((index == 0 ? 0x30 : 0x10) | ((number * PACKETS + index) & 0x0F))};
    size_t at = 4, from = (size_t)mix(number * 8 + index + (uint64_t)service * 1000003) % PATTERN;
    memcpy(packet, head, sizeof head);
    if (index == 0) {
        memcpy(packet + at, (uint8_t[]){7, 0x10, 1, 2, 3, 4, 0x7E, 5}, 8);
        at += 8;
    }
    memcpy(packet + at, traffic->pattern + from, PACKET_BYTES - at);
    memcpy(packet + at, &number, sizeof number);
    memcpy(packet + at + 8, &sent_ns, sizeof sent_ns);
}

static void make_datagram(const struct bench_ts_traffic *traffic, size_t service, uint64_t number,
                          core_ns sent_ns, uint8_t packets[BYTES])
{
    static const uint8_t pat[] = {0, 0xB0, 13, 0, 7, 0xC1, 0, 0, 0, 1, 0xE0 | PID_PMT >> 8, PID_PMT & 0xFF};
    static const uint8_t pmt[] = {2,
                                  0xB0,
                                  18,
                                  0,
                                  1,
                                  0xC1,
                                  0,
                                  0,
                                  0xE0 | PID_VIDEO >> 8,
                                  PID_VIDEO & 0xFF,
                                  0xF0,
                                  0,
                                  2,
                                  0xE0 | PID_VIDEO >> 8,
                                  PID_VIDEO & 0xFF,
                                  0xF0,
                                  0};
    for (unsigned i = 0; i < PACKETS; i++)
        make_video(traffic, service, number, i, sent_ns, packets + i * PACKET_BYTES);
    if (number % TABLES_EVERY != 0)
        return;
    make_section(packets + 5 * PACKET_BYTES, 0, number / TABLES_EVERY, pat, sizeof pat);
    make_section(packets + 6 * PACKET_BYTES, PID_PMT, number / TABLES_EVERY, pmt, sizeof pmt);
}

static void send_datagram(struct bench_ts_traffic *traffic, size_t service, uint64_t number)
{
    uint8_t bytes[RTP_BYTES + BYTES] = {0x80, 33, (uint8_t)(number >> 8), (uint8_t)number};
    size_t head = traffic->options.rtp ? 0 : RTP_BYTES;
    struct config_ts_endpoint to;
    set_address(&to, service, false);
    make_datagram(traffic, service, number, core_time_now_ns(), bytes + RTP_BYTES);
    while (sendto(traffic->output, bytes + head, sizeof bytes - head, 0, (const struct sockaddr *)&to.address,
                  to.address_bytes) < 0 &&
           !atomic_load(&traffic->stop))
        core_time_sleep_until(core_time_now_ns() + 100 * CORE_NS_PER_US);
}

/* The services take turns, evenly spaced. */
static void *run_sender(void *argument)
{
    struct bench_ts_traffic *traffic = argument;
    size_t services = traffic->options.services;
    double interval_ns = BYTES * 8e9 / traffic->options.rate_bits_per_s / (double)services;
    core_ns begin_ns = core_time_now_ns();
    for (uint64_t i = 0; !atomic_load(&traffic->stop); i++) {
        core_ns due_ns = begin_ns + (core_ns)((double)i * interval_ns);
        core_ns now_ns = core_time_now_ns();
        if (due_ns - now_ns > 50 * CORE_NS_PER_US)
            core_time_sleep_until(due_ns);
        else if (now_ns - due_ns >
                 CORE_NS_PER_MS) /* it was kept from a core: what it missed is not sent at once */
            begin_ns += now_ns - due_ns;
        send_datagram(traffic, i % services, i / services);
        traffic->figures.sent++;
    }
    return NULL;
}

/* ---- what comes out ---- */

static void give_word(void *argument, uint64_t number, uint8_t word[BENCH_WORD_BYTES])
{
    const struct receiver *receiver = argument;
    struct bench_ts_traffic *traffic = receiver->traffic;
    bench_ts_word(traffic->options.seed, (size_t)(receiver - traffic->receivers), number, word);
    traffic->figures.changes += number > 0 && atomic_load(&traffic->measures);
}

static void judge(struct bench_ts_traffic *traffic, struct receiver *receiver, uint64_t number, bool is_right,
                  core_ns delay_ns)
{
    struct bench_ts_figures *figures = &traffic->figures;
    if (!atomic_load(&traffic->measures))
        return;
    if (receiver->judged && is_right) {
        figures->lost += number > receiver->next ? number - receiver->next : 0;
        figures->reordered += number < receiver->next;
    }
    receiver->judged = true;
    figures->received++;
    figures->packets += PACKETS;
    figures->wrong += !is_right;
    figures->late += is_right && delay_ns > traffic->options.bound_ns;
    if (is_right)
        core_histogram_record(&figures->delay, delay_ns);
}

/* Descrambled, it is as it was made: what is in clear must be, what is scrambled must have been. */
static void take_datagram(struct bench_ts_traffic *traffic, struct receiver *receiver, uint8_t *bytes,
                          const struct ts_arrival *arrival)
{
    size_t service = (size_t)(receiver - traffic->receivers), head = traffic->options.rtp ? RTP_BYTES : 0;
    uint8_t made[BYTES];
    uint64_t number = 0, scrambled = receiver->descrambler.scrambled;
    core_ns sent_ns = 0;
    bool is_right = arrival->bytes == head + BYTES;
    for (size_t i = 0; i < PACKETS && is_right; i++)
        is_right = bench_descramble(&receiver->descrambler, bytes + head + i * PACKET_BYTES);
    if (is_right) {
        memcpy(&number, bytes + head + 12, sizeof number);
        memcpy(&sent_ns, bytes + head + 20, sizeof sent_ns);
        make_datagram(traffic, service, number, sent_ns, made);
        is_right = memcmp(bytes + head, made, BYTES) == 0 &&
                   receiver->descrambler.scrambled - scrambled ==
                       (number % TABLES_EVERY == 0 ? PACKETS - 2 : PACKETS) &&
                   (head == 0 || (bytes[2] == (uint8_t)(number >> 8) && bytes[3] == (uint8_t)number));
    }
    judge(traffic, receiver, number, is_right, arrival->in_ns - sent_ns);
    if (receiver->next == 0)
        atomic_fetch_add(&traffic->heard, 1);
    receiver->next = number + 1;
}

static void receive(struct bench_ts_traffic *traffic, struct receiver *receiver, core_ns offset_ns)
{
    static uint8_t rooms[TS_BATCH][RTP_BYTES + BYTES];
    struct iovec vectors[TS_BATCH];
    struct ts_arrival arrivals[TS_BATCH];
    for (size_t i = 0; i < TS_BATCH; i++)
        vectors[i] = (struct iovec){.iov_base = rooms[i], .iov_len = sizeof rooms[i]};
    unsigned count =
        ts_socket_receive(receiver->socket, vectors, TS_BATCH, offset_ns, arrivals, &receiver->overflow);
    for (unsigned i = 0; i < count; i++)
        take_datagram(traffic, receiver, rooms[i], &arrivals[i]);
}

static void *run_checker(void *argument)
{
    struct bench_ts_traffic *traffic = argument;
    struct epoll_event events[EVENTS];
    int poller = epoll_create1(EPOLL_CLOEXEC);
    for (size_t i = 0; i < traffic->options.services; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &traffic->receivers[i]};
        (void)epoll_ctl(poller, EPOLL_CTL_ADD, traffic->receivers[i].socket, &event);
    }
    while (!atomic_load(&traffic->stop)) {
        int count = epoll_wait(poller, events, EVENTS, WAIT_MS);
        core_ns offset_ns = ts_clock_offset_ns();
        for (int i = 0; i < count; i++)
            receive(traffic, events[i].data.ptr, offset_ns);
    }
    close(poller);
    return NULL;
}

/* ---- from the beginning to the end ---- */

static core_status open_sockets(struct bench_ts_traffic *traffic, struct core_error *error)
{
    struct config_ts_service sender = {.name = (char *)(uintptr_t) "the bench"};
    set_address(&sender.output, 0, false);
    core_status status = ts_socket_output(&sender, &traffic->output, error);
    for (size_t i = 0; i < traffic->options.services && status == CORE_OK; i++) {
        struct receiver *receiver = &traffic->receivers[i];
        receiver->traffic = traffic;
        receiver->descrambler.word = give_word;
        receiver->descrambler.argument = receiver;
        receiver->config.name = sender.name;
        set_address(&receiver->config.input, i, true);
        status = ts_socket_input(&receiver->config, &receiver->socket, error);
    }
    return status;
}

core_status bench_ts_start(const struct bench_ts_options *options, struct bench_ts_traffic **traffic,
                           struct core_error *error)
{
    static const struct core_thread_options sends = {.name = "sender", .cpu = -1},
                                            checks = {.name = "checker", .cpu = -1};
    struct bench_ts_traffic *made = calloc(1, sizeof *made);
    struct receiver *receivers = calloc(options->services, sizeof *receivers);
    if (made == NULL || receivers == NULL) {
        free(made);
        free(receivers);
        return core_error_set(error, CORE_NO_MEMORY, "no memory for %zu services", options->services);
    }
    made->receivers = receivers;
    made->options = *options;
    core_histogram_init(&made->figures.delay);
    for (size_t i = 0; i < PATTERN; i++)
        made->pattern[i] = made->pattern[i + PATTERN] = (uint8_t)mix(options->seed + i);
    core_status status = open_sockets(made, error);
    if (status == CORE_OK)
        status = core_thread_start(&made->checker, &checks, run_checker, made, NULL, error);
    if (status == CORE_OK)
        status = core_thread_start(&made->sender, &sends, run_sender, made, NULL, error);
    *traffic = made;
    return status; /* after a failure the bench ends */
}

size_t bench_ts_heard(const struct bench_ts_traffic *traffic)
{
    return atomic_load(&traffic->heard);
}

void bench_ts_measure(struct bench_ts_traffic *traffic)
{
    atomic_store(&traffic->measures, true);
}

void bench_ts_stop(struct bench_ts_traffic *traffic, struct bench_ts_figures *figures)
{
    atomic_store(&traffic->stop, true);
    pthread_join(traffic->sender, NULL);
    pthread_join(traffic->checker, NULL);
    for (size_t i = 0; i < traffic->options.services; i++) {
        traffic->figures.overflow += traffic->receivers[i].overflow;
        bench_descrambler_close(&traffic->receivers[i].descrambler);
        close(traffic->receivers[i].socket);
    }
    close(traffic->output);
    memcpy((void *)figures, (const void *)&traffic->figures, sizeof *figures);
    free(traffic->receivers);
    free(traffic);
}
