/* Receives the datagrams of a transport stream until it is ended by SIGTERM, descrambles them if it is given words, and
 * writes each behind its length, two bytes, most significant first:
 *
 *   ts_receive udp:239.2.1.1:5000 lo FILE [WORDS]
 *
 * WORDS is as `millrace ts` reads it, but for times: the words follow each other as lines do. It is read when a word is
 * needed. What can not be descrambled is an error. "ready" is printed once it listens. */
#include "bench/ts/descramble.h"
#include "client/ts/packet.h"
#include "client/ts/sockets.h"
#include "core/value.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t ended;

static void on_signal(int number)
{
    ended = number;
}

static void give_word(void *argument, uint64_t number, uint8_t word[BENCH_WORD_BYTES])
{
    char line[128] = "", hex[33] = "";
    size_t count = 0;
    FILE *words = fopen(argument, "re");
    for (uint64_t i = 0; words != NULL && i <= number; i++)
        if (fgets(line, sizeof line, words) == NULL)
            line[0] = '\0';
    if (words != NULL)
        fclose(words);
    if (sscanf(line, "%*s %32s", hex) != 1 || !core_hex_parse(hex, 32, word, BENCH_WORD_BYTES, &count) ||
        count != BENCH_WORD_BYTES) {
        fprintf(stderr, "ts_receive: there is no word %llu\n", (unsigned long long)number);
        exit(1);
    }
}

/* Where the packets of a datagram are: only what ffmpeg sends, without extensions. */
static void descramble(struct bench_descrambler *descrambler, uint8_t *bytes, size_t count)
{
    for (size_t at = bytes[0] == 0x47 ? 0 : 12; at + TS_PACKET_BYTES <= count; at += TS_PACKET_BYTES)
        if (!bench_descramble(descrambler, bytes + at)) {
            fprintf(stderr, "ts_receive: a packet can not be descrambled: %02x %02x %02x %02x\n", bytes[at],
                    bytes[at + 1], bytes[at + 2], bytes[at + 3]);
            exit(1);
        }
}

static int open_socket(const char *address, const char *interface)
{
    char text[512];
    struct config_ts *config;
    struct core_error error;
    int made;
    snprintf(
        text, sizeof text,
        "services:\n  - {name: a, input: \"%s\"%s%s, output: \"udp:127.0.0.1:1\", rate_mbit_per_s: 1, words: "
        "{file: a}}\n",
        address, interface[0] != '\0' ? ", input_interface: " : "", interface);
    if (config_ts_parse(text, strlen(text), "ts_receive", &config, &error) != CORE_OK ||
        ts_socket_input(&config->services[0], &made, &error) != CORE_OK) {
        fprintf(stderr, "ts_receive: %s\n", error.text);
        exit(1);
    }
    config_ts_free(config);
    return made;
}

int main(int argc, char **argv)
{
    uint8_t bytes[2048];
    uint64_t overflow = 0;
    struct ts_arrival arrival;
    const struct iovec room = {.iov_base = bytes, .iov_len = sizeof bytes};
    const struct sigaction stop = {.sa_handler = on_signal};
    struct bench_descrambler descrambler = {.word = give_word, .argument = argc > 4 ? argv[4] : NULL};
    FILE *out = argc >= 4 ? fopen(argv[3], "we") : NULL;
    if (out == NULL)
        return 2;
    struct pollfd ready = {.fd = open_socket(argv[1], argv[2]), .events = POLLIN};
    sigaction(SIGTERM, &stop, NULL);
    puts("ready");
    fflush(stdout);
    while (!ended && overflow == 0) {
        if (ts_socket_receive(ready.fd, &room, 1, 0, &arrival, &overflow) == 0) {
            (void)poll(&ready, 1, 100);
            continue;
        }
        if (arrival.bytes > sizeof bytes)
            return 1;
        if (argc > 4)
            descramble(&descrambler, bytes, arrival.bytes);
        fputc((int)(arrival.bytes >> 8), out);
        fputc((int)(arrival.bytes & 0xFF), out);
        fwrite(bytes, 1, arrival.bytes, out);
    }
    fprintf(stderr, "ts_receive: %llu changes of words\n", (unsigned long long)descrambler.number);
    bench_descrambler_close(&descrambler);
    return fclose(out) == 0 && overflow == 0 ? 0 : 1;
}
