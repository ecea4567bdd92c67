/* Which PIDs of a transport stream are never scrambled: those of its tables, and those of the messages of conditional
 * access. Its tables say which these are: the PAT where its PMTs are, PMTs where ECMs, and the CAT where EMMs.
 *
 * They are followed as they change. Sections are read by libdvbpsi, and are in force with the packet that ends them.
 * One thread. */
#ifndef MILLRACE_CLIENT_TS_TABLES_H
#define MILLRACE_CLIENT_TS_TABLES_H

#include "client/ts/packet.h"

#include "core/status.h"

#define TS_PROGRAMS_MAX 128
#define TS_CA_PIDS_MAX  32 /* of one table */

struct ts_tables {
    uint8_t clear[TS_PIDS / 8]; /* a bit for each PID */
    bool complete;              /* there was a PAT */
    /* its own */
    struct ts_ca_pids {
        uint16_t pids[TS_CA_PIDS_MAX];
        size_t count;
    } emm;
    struct ts_program {
        struct ts_tables *tables;
        uint16_t number, pid;
        struct dvbpsi_s *pmt;
        struct ts_ca_pids ecm;
        bool kept; /* while a PAT is read */
    } * programs[TS_PROGRAMS_MAX];
    size_t program_count;
    struct dvbpsi_s *pat, *cat;
    const uint16_t *configured;
    size_t configured_count;
};

/* Beside them the PIDs that are configured, which must live as long. CORE_NO_MEMORY: to be closed all the same. */
CORE_CHECKED core_status ts_tables_open(struct ts_tables *tables, const uint16_t *configured, size_t count);

/* Reads packets of ts_datagram_read, before they are marked. */
void ts_tables_read(struct ts_tables *tables, uint8_t *packets, size_t bytes);

void ts_tables_close(struct ts_tables *tables);

#endif
