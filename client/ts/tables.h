/* Which PIDs of a transport stream are never scrambled: those of its tables, and those of the messages of conditional
 * access. Its tables say which these are (ISO/IEC 13818-1, 2.4.4): the PAT where its PMTs are, PMTs where ECMs, and the
 * CAT where EMMs.
 *
 * They are followed as they change: a section that is whole, and whose checksum is right, is in force with the packet
 * that ends it. One thread. (Of the ready-made parsers libdvbpsi 1.3.3 reads beyond a PMT that is made for that.) */
#ifndef MILLRACE_CLIENT_TS_TABLES_H
#define MILLRACE_CLIENT_TS_TABLES_H

#include "client/ts/packet.h"

#define TS_PROGRAMS_MAX  256
#define TS_CA_PIDS_MAX   32   /* of one table; more are not taken */
#define TS_SECTION_BYTES 1024 /* the longest one */

/* A section of a table, as it comes in packets. */
struct ts_section {
    bool begun;
    uint8_t counter; /* continuity, of the packet before */
    size_t bytes;
    uint8_t content[TS_SECTION_BYTES];
};

struct ts_ca_pids {
    uint16_t pids[TS_CA_PIDS_MAX];
    size_t count;
};

struct ts_tables {
    uint8_t clear[TS_PIDS / 8]; /* a bit for each PID */
    bool complete;              /* there was a whole PAT */
    /* its own */
    struct ts_section pat, cat;
    uint8_t pat_seen[32]; /* a bit for each of its sections, of this version */
    uint8_t pat_version, cat_version;
    struct ts_ca_pids emm;
    struct ts_program {
        uint16_t number, pid;
        bool kept; /* it is in the newest PAT */
        struct ts_section pmt;
        struct ts_ca_pids ecm;
    } * programs[TS_PROGRAMS_MAX];
    size_t program_count;
    const uint16_t *configured;
    size_t configured_count;
};

/* Beside them the PIDs that are configured, which must live as long. */
void ts_tables_open(struct ts_tables *tables, const uint16_t *configured, size_t count);

/* Reads packets of ts_datagram_read, before they are marked. */
void ts_tables_read(struct ts_tables *tables, const uint8_t *packets, size_t bytes);

void ts_tables_close(struct ts_tables *tables);

#endif
