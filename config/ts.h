/* The services of `millrace ts`, from one file:
 *
 *   services:
 *     - name: news
 *       input: udp:239.1.1.1:5000        # or [ff15::1]:5000; an address of this machine; 0.0.0.0 or [::] is any
 *       input_interface: eth0            # of a group; default: as the system routes it
 *       input_source: 192.0.2.7          # of a group: from this sender alone
 *       output: udp:239.2.1.1:5000
 *       output_interface: eth1
 *       ttl: 16                          # of a group; default 1
 *       rate_mbit_per_s: 4               # the highest, of what is in the datagrams
 *       datagram_bytes: 1316             # of transport stream in one, at most
 *       jitter_ms: 10                    # of its arrival
 *       bound_ms: 5                      # from its arrival until it has left
 *       hold: false                      # true: it leaves when bound_ms is over, not as soon as it can
 *       guaranteed: false                # keeps its promise when a GPU is lost
 *       clear_pids: [0x1F0]              # never scrambled, beside the tables and what they say
 *       words: {file: words/news}        # or {command: "..."}: where its control words come from
 *
 * docs/operations/ts.md is for people. */
#ifndef MILLRACE_CONFIG_TS_H
#define MILLRACE_CONFIG_TS_H

#include "core/status.h"
#include "core/time.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define CONFIG_TS_SERVICES_MAX       1000
#define CONFIG_TS_PACKET_BYTES       188
#define CONFIG_TS_DATAGRAM_BYTES_MAX (CONFIG_TS_PACKET_BYTES * 47) /* fits a jumbo frame of 9,000 bytes */

struct config_ts_endpoint {
    struct sockaddr_storage address; /* with its port */
    socklen_t address_bytes;
    bool is_group;
    char *interface; /* of a group; NULL: not given */
};

struct config_ts_service {
    char *name;
    struct config_ts_endpoint input, output;
    bool has_source;
    struct sockaddr_storage source; /* of the input's group, without a port */
    int ttl;
    double rate_bits_per_s;
    uint32_t datagram_bytes; /* a multiple of CONFIG_TS_PACKET_BYTES */
    core_ns jitter_ns, bound_ns;
    bool hold, guaranteed;
    uint16_t *clear_pids;
    size_t clear_pid_count;
    char *words_file, *words_command; /* one of them */
};

struct config_ts {
    struct config_ts_service *services;
    size_t service_count;
};

CORE_CHECKED core_status config_ts_load(const char *path, struct config_ts **ts, struct core_error *error);
CORE_CHECKED core_status config_ts_parse(const char *text, size_t bytes, const char *name,
                                         struct config_ts **ts, struct core_error *error);
void config_ts_free(struct config_ts *ts); /* NULL is fine */

#endif
