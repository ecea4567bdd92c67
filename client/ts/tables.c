#include "client/ts/tables.h"

#include <stdlib.h>
#include <string.h>

/* libdvbpsi's headers do not include each other. */
/* clang-format off */
#include <dvbpsi/dvbpsi.h>
#include <dvbpsi/psi.h>
#include <dvbpsi/descriptor.h>
#include <dvbpsi/pat.h>
#include <dvbpsi/pmt.h>
#include <dvbpsi/cat.h>
/* clang-format on */

#define PID_PAT       0x0000
#define PID_CAT       0x0001
#define PID_RESERVED  0x0020 /* below: tables of MPEG and DVB */
#define PID_ATSC      0x1FFB
#define PID_NULL      0x1FFF
#define CA_DESCRIPTOR 0x09

static void set_clear(struct ts_tables *tables, uint16_t pid)
{
    tables->clear[pid / 8] = (uint8_t)(tables->clear[pid / 8] | 1u << pid % 8);
}

static void set_clear_all(struct ts_tables *tables, const uint16_t *pids, size_t count)
{
    for (size_t i = 0; i < count; i++)
        set_clear(tables, pids[i]);
}

/* From all that is known: what is no table any more may be scrambled again. */
static void update(struct ts_tables *tables)
{
    memset(tables->clear, 0, sizeof tables->clear);
    memset(tables->clear, 0xFF, PID_RESERVED / 8);
    set_clear(tables, PID_ATSC);
    set_clear(tables, PID_NULL);
    set_clear_all(tables, tables->configured, tables->configured_count);
    set_clear_all(tables, tables->emm.pids, tables->emm.count);
    for (size_t i = 0; i < tables->program_count; i++) {
        set_clear(tables, tables->programs[i]->pid);
        set_clear_all(tables, tables->programs[i]->ecm.pids, tables->programs[i]->ecm.count);
    }
}

static void take_descriptors(const dvbpsi_descriptor_t *descriptor, struct ts_ca_pids *ca)
{
    for (; descriptor != NULL && ca->count < TS_CA_PIDS_MAX; descriptor = descriptor->p_next)
        if (descriptor->i_tag == CA_DESCRIPTOR && descriptor->i_length >= 4)
            ca->pids[ca->count++] = (uint16_t)((descriptor->p_data[2] & 0x1F) << 8 | descriptor->p_data[3]);
}

static void on_cat(void *argument, dvbpsi_cat_t *cat)
{
    struct ts_tables *tables = argument;
    if (cat->b_current_next) {
        tables->emm.count = 0;
        take_descriptors(cat->p_first_descriptor, &tables->emm);
        update(tables);
    }
    dvbpsi_cat_delete(cat);
}

static void on_pmt(void *argument, dvbpsi_pmt_t *pmt)
{
    struct ts_program *program = argument;
    if (pmt->b_current_next) {
        program->ecm.count = 0;
        take_descriptors(pmt->p_first_descriptor, &program->ecm);
        for (const dvbpsi_pmt_es_t *stream = pmt->p_first_es; stream != NULL; stream = stream->p_next)
            take_descriptors(stream->p_first_descriptor, &program->ecm);
        update(program->tables);
    }
    dvbpsi_pmt_delete(pmt);
}

static void drop_program(struct ts_program *program)
{
    if (program->pmt != NULL && program->pmt->p_decoder != NULL)
        dvbpsi_pmt_detach(program->pmt);
    if (program->pmt != NULL)
        dvbpsi_delete(program->pmt);
    free(program);
}

/* Its network (number 0) has no PMT. */
static struct ts_program *make_program(struct ts_tables *tables, uint16_t number, uint16_t pid)
{
    struct ts_program *program = calloc(1, sizeof *program);
    if (program == NULL)
        return NULL;
    *program = (struct ts_program){.tables = tables, .number = number, .pid = pid};
    if (number == 0)
        return program;
    program->pmt = dvbpsi_new(NULL, DVBPSI_MSG_NONE);
    if (program->pmt != NULL && dvbpsi_pmt_attach(program->pmt, number, on_pmt, program))
        return program;
    drop_program(program);
    return NULL;
}

static void keep_program(struct ts_tables *tables, uint16_t number, uint16_t pid)
{
    struct ts_program *program = NULL;
    for (size_t i = 0; i < tables->program_count && program == NULL; i++)
        if (tables->programs[i]->number == number && tables->programs[i]->pid == pid)
            program = tables->programs[i];
    if (program == NULL && tables->program_count < TS_PROGRAMS_MAX &&
        (program = make_program(tables, number, pid)) != NULL)
        tables->programs[tables->program_count++] = program;
    if (program != NULL)
        program->kept = true;
}

static void on_pat(void *argument, dvbpsi_pat_t *pat)
{
    struct ts_tables *tables = argument;
    size_t kept = 0;
    if (pat->b_current_next) {
        for (size_t i = 0; i < tables->program_count; i++)
            tables->programs[i]->kept = false;
        for (const dvbpsi_pat_program_t *program = pat->p_first_program; program != NULL;
             program = program->p_next)
            keep_program(tables, program->i_number, program->i_pid);
        for (size_t i = 0; i < tables->program_count; i++)
            if (tables->programs[i]->kept)
                tables->programs[kept++] = tables->programs[i];
            else
                drop_program(tables->programs[i]);
        tables->program_count = kept;
        tables->complete = true;
        update(tables);
    }
    dvbpsi_pat_delete(pat);
}

core_status ts_tables_open(struct ts_tables *tables, const uint16_t *configured, size_t count)
{
    *tables = (struct ts_tables){.configured = configured, .configured_count = count};
    update(tables);
    tables->pat = dvbpsi_new(NULL, DVBPSI_MSG_NONE);
    tables->cat = dvbpsi_new(NULL, DVBPSI_MSG_NONE);
    if (tables->pat == NULL || tables->cat == NULL || !dvbpsi_pat_attach(tables->pat, on_pat, tables) ||
        !dvbpsi_cat_attach(tables->cat, on_cat, tables))
        return CORE_NO_MEMORY;
    return CORE_OK;
}

/* What libdvbpsi relies on, where a section begins: that its beginning is in the packet. */
static bool is_sound(const uint8_t *packet)
{
    size_t payload = ts_packet_payload(packet);
    bool begins = (packet[1] & 0x40) != 0;
    return payload < TS_PACKET_BYTES && (!begins || payload + 1 + packet[payload] < TS_PACKET_BYTES);
}

void ts_tables_read(struct ts_tables *tables, uint8_t *packets, size_t bytes)
{
    for (uint8_t *packet = packets; packet < packets + bytes; packet += TS_PACKET_BYTES) {
        uint16_t pid = ts_packet_pid(packet);
        if ((tables->clear[pid / 8] >> (pid % 8) & 1) == 0 || !is_sound(packet))
            continue;
        if (pid == PID_PAT)
            dvbpsi_packet_push(tables->pat, packet);
        if (pid == PID_CAT)
            dvbpsi_packet_push(tables->cat, packet);
        for (size_t i = 0; i < tables->program_count; i++)
            if (tables->programs[i]->pid == pid && tables->programs[i]->pmt != NULL)
                dvbpsi_packet_push(tables->programs[i]->pmt, packet);
    }
}

void ts_tables_close(struct ts_tables *tables)
{
    if (tables->pat != NULL && tables->pat->p_decoder != NULL)
        dvbpsi_pat_detach(tables->pat);
    if (tables->cat != NULL && tables->cat->p_decoder != NULL)
        dvbpsi_cat_detach(tables->cat);
    if (tables->pat != NULL)
        dvbpsi_delete(tables->pat);
    if (tables->cat != NULL)
        dvbpsi_delete(tables->cat);
    for (size_t i = 0; i < tables->program_count; i++)
        drop_program(tables->programs[i]);
    *tables = (struct ts_tables){0};
}
