#include "client/ts/tables.h"

#include <stdlib.h>
#include <string.h>

#define PID_PAT       0x0000
#define PID_CAT       0x0001
#define PID_RESERVED  0x0020 /* below: tables of MPEG and DVB */
#define PID_ATSC      0x1FFB
#define PID_NULL      0x1FFF
#define CA_DESCRIPTOR 0x09
#define HEAD_BYTES    8 /* of a section, before what it says */
#define CRC_BYTES     4
#define STUFFING      0xFF
#define VERSION_NONE  0xFF

enum { TABLE_PAT = 0, TABLE_CAT = 1, TABLE_PMT = 2 };

static uint16_t get_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static uint16_t get_pid(const uint8_t *at)
{
    return get_u16(at) & (TS_PIDS - 1);
}

static size_t get_length(const uint8_t *at)
{
    return get_u16(at) & 0x0FFF;
}

/* ---- what is clear ---- */

static void set_clear(struct ts_tables *tables, const uint16_t *pids, size_t count)
{
    for (size_t i = 0; i < count; i++)
        tables->clear[pids[i] / 8] = (uint8_t)(tables->clear[pids[i] / 8] | 1u << pids[i] % 8);
}

/* From all that is known: what is no table any more may be scrambled again. */
static void update(struct ts_tables *tables)
{
    static const uint16_t always[] = {PID_ATSC, PID_NULL};
    memset(tables->clear, 0, sizeof tables->clear);
    memset(tables->clear, 0xFF, PID_RESERVED / 8);
    set_clear(tables, always, 2);
    set_clear(tables, tables->configured, tables->configured_count);
    set_clear(tables, tables->emm.pids, tables->emm.count);
    for (size_t i = 0; i < tables->program_count; i++) {
        set_clear(tables, &tables->programs[i]->pid, 1);
        set_clear(tables, tables->programs[i]->ecm.pids, tables->programs[i]->ecm.count);
    }
}

/* ---- sections ---- */

/* Adds what comes of it. Returns how many bytes; none: there is no section. */
static size_t add(struct ts_section *section, const uint8_t *bytes, size_t count)
{
    if (section->bytes == 0 && bytes[0] == STUFFING)
        return 0;
    size_t whole = section->bytes < 3 ? 3 : 3 + get_length(section->content + 1);
    size_t part = whole - section->bytes < count ? whole - section->bytes : count;
    if (whole > TS_SECTION_BYTES)
        return 0;
    memcpy(section->content + section->bytes, bytes, part);
    section->bytes += part;
    return part;
}

static bool is_whole(const struct ts_section *section)
{
    return section->bytes >= 3 && section->bytes == 3 + get_length(section->content + 1);
}

/* Of this table, of the long form, in force now, and without an error. */
static bool is_sound(const struct ts_section *section, uint8_t table)
{
    uint32_t crc = 0xFFFFFFFF;
    if (section->bytes < HEAD_BYTES + CRC_BYTES || section->content[0] != table ||
        (section->content[1] & 0x80) == 0 || (section->content[5] & 1) == 0)
        return false;
    for (size_t i = 0; i < section->bytes; i++) {
        crc ^= (uint32_t)section->content[i] << 24;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc << 1) ^ (crc >> 31 != 0 ? UINT32_C(0x04C11DB7) : 0);
    }
    return crc == 0;
}

typedef void take_section(struct ts_tables *tables, struct ts_program *program,
                          const struct ts_section *section);

static void feed(struct ts_section *section, const uint8_t *bytes, size_t count, uint8_t table,
                 take_section *take, struct ts_tables *tables, struct ts_program *program)
{
    while (count > 0 && section->begun) {
        size_t added = add(section, bytes, count);
        section->begun = added > 0;
        bytes += added;
        count -= added;
        if (!is_whole(section))
            continue;
        if (is_sound(section, table))
            take(tables, program, section);
        section->bytes = 0;
    }
}

/* A packet of the section's PID, with payload. */
static void read_packet(struct ts_section *section, const uint8_t *packet, uint8_t table, take_section *take,
                        struct ts_tables *tables, struct ts_program *program)
{
    size_t at = ts_packet_payload(packet), pointer = 0;
    uint8_t counter = packet[3] & 0x0F;
    bool begins = (packet[1] & 0x40) != 0;
    if (section->begun && counter == section->counter)
        return; /* the same packet again */
    if (counter != ((section->counter + 1) & 0x0F))
        section->begun = false;
    section->counter = counter;
    if (begins)
        pointer = packet[at++];
    if (at + pointer > TS_PACKET_BYTES)
        pointer = TS_PACKET_BYTES - at;
    feed(section, packet + at, begins ? pointer : TS_PACKET_BYTES - at, table, take, tables, program);
    if (!begins)
        return;
    section->begun = true;
    section->bytes = 0;
    feed(section, packet + at + pointer, TS_PACKET_BYTES - at - pointer, table, take, tables, program);
}

/* ---- what they say ---- */

static void add_pid(struct ts_ca_pids *ca, uint16_t pid)
{
    for (size_t i = 0; i < ca->count; i++)
        if (ca->pids[i] == pid)
            return;
    if (ca->count < TS_CA_PIDS_MAX)
        ca->pids[ca->count++] = pid;
}

static void take_descriptors(const uint8_t *at, const uint8_t *end, struct ts_ca_pids *ca)
{
    for (; end - at >= 2 && end - at >= 2 + at[1]; at += 2 + at[1])
        if (at[0] == CA_DESCRIPTOR && at[1] >= 4)
            add_pid(ca, get_pid(at + 4));
}

static void take_cat(struct ts_tables *tables, struct ts_program *program, const struct ts_section *section)
{
    uint8_t version = section->content[5];
    (void)program;
    if (version != tables->cat_version || section->content[7] == 0)
        tables->emm.count = 0;
    tables->cat_version = version;
    take_descriptors(section->content + HEAD_BYTES, section->content + section->bytes - CRC_BYTES,
                     &tables->emm);
    update(tables);
}

static void take_pmt(struct ts_tables *tables, struct ts_program *program, const struct ts_section *section)
{
    const uint8_t *at = section->content + HEAD_BYTES, *end = section->content + section->bytes - CRC_BYTES;
    if (get_u16(section->content + 3) != program->number || end - at < 4)
        return;
    program->ecm.count = 0;
    for (size_t head = 4; (size_t)(end - at) >= head; head = 5) { /* of the program; of its streams */
        const uint8_t *descriptors = at + head;
        size_t length = get_length(descriptors - 2);
        if ((size_t)(end - descriptors) < length)
            break;
        at = descriptors + length;
        take_descriptors(descriptors, at, &program->ecm);
    }
    update(tables);
}

static void keep_program(struct ts_tables *tables, uint16_t number, uint16_t pid)
{
    struct ts_program *program = NULL;
    for (size_t i = 0; i < tables->program_count && program == NULL; i++)
        if (tables->programs[i]->number == number && tables->programs[i]->pid == pid)
            program = tables->programs[i];
    if (program == NULL && tables->program_count < TS_PROGRAMS_MAX &&
        (program = calloc(1, sizeof *program)) != NULL) {
        program->number = number;
        program->pid = pid;
        tables->programs[tables->program_count++] = program;
    }
    if (program != NULL)
        program->kept = true;
}

/* The PAT is whole: what it does not have is gone. */
static void drop_programs(struct ts_tables *tables)
{
    size_t kept = 0;
    for (size_t i = 0; i < tables->program_count; i++)
        if (tables->programs[i]->kept)
            tables->programs[kept++] = tables->programs[i];
        else
            free(tables->programs[i]);
    tables->program_count = kept;
    tables->complete = true;
}

static void take_pat(struct ts_tables *tables, struct ts_program *program, const struct ts_section *section)
{
    const uint8_t *at = section->content + HEAD_BYTES, *end = section->content + section->bytes - CRC_BYTES;
    uint8_t version = section->content[5], number = section->content[6], last = section->content[7];
    bool is_whole_pat = true;
    (void)program;
    if (version != tables->pat_version || last == 0) {
        memset(tables->pat_seen, 0, sizeof tables->pat_seen);
        for (size_t i = 0; i < tables->program_count; i++)
            tables->programs[i]->kept = false;
    }
    tables->pat_version = version;
    tables->pat_seen[number / 8] = (uint8_t)(tables->pat_seen[number / 8] | 1u << number % 8);
    for (; end - at >= 4; at += 4)
        keep_program(tables, get_u16(at), get_pid(at + 2));
    for (unsigned i = 0; i <= last && is_whole_pat; i++)
        is_whole_pat = (tables->pat_seen[i / 8] >> i % 8 & 1) != 0;
    if (is_whole_pat)
        drop_programs(tables);
    update(tables);
}

void ts_tables_open(struct ts_tables *tables, const uint16_t *configured, size_t count)
{
    *tables = (struct ts_tables){.configured = configured,
                                 .configured_count = count,
                                 .pat_version = VERSION_NONE,
                                 .cat_version = VERSION_NONE};
    update(tables);
}

/* Number 0 is the network's, which has no PMT. */
void ts_tables_read(struct ts_tables *tables, const uint8_t *packets, size_t bytes)
{
    for (const uint8_t *packet = packets; packet < packets + bytes; packet += TS_PACKET_BYTES) {
        uint16_t pid = ts_packet_pid(packet);
        if ((tables->clear[pid / 8] >> (pid % 8) & 1) == 0 || ts_packet_payload(packet) >= TS_PACKET_BYTES)
            continue;
        if (pid == PID_PAT)
            read_packet(&tables->pat, packet, TABLE_PAT, take_pat, tables, NULL);
        else if (pid == PID_CAT)
            read_packet(&tables->cat, packet, TABLE_CAT, take_cat, tables, NULL);
        for (size_t i = 0; i < tables->program_count && pid > PID_CAT; i++)
            if (tables->programs[i]->pid == pid && tables->programs[i]->number != 0)
                read_packet(&tables->programs[i]->pmt, packet, TABLE_PMT, take_pmt, tables,
                            tables->programs[i]);
    }
}

void ts_tables_close(struct ts_tables *tables)
{
    for (size_t i = 0; i < tables->program_count; i++)
        free(tables->programs[i]);
    tables->program_count = 0;
}
