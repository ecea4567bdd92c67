/* Datagrams of transport streams: what of one is RTP, which are refused, and which packets are marked: all but tables,
 * what tables name, and packets without payload, as the tables change. */
#include "client/ts/tables.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

/* ---- packets ---- */

static void make_packet(uint8_t *packet, uint16_t pid, uint8_t control)
{
    memset(packet, 0x5A, TS_PACKET_BYTES);
    packet[0] = 0x47;
    packet[1] = (uint8_t)(pid >> 8);
    packet[2] = (uint8_t)pid;
    packet[3] = control;
    packet[4] = 0; /* of an adaptation field */
}

static void packets_are_found(void **state)
{
    static const struct {
        const char *name;
        uint8_t head[28];
        size_t head_bytes, packets, tail_bytes;
        uint8_t last;  /* byte of the tail */
        size_t offset; /* 0xFFFF: refused */
    } cases[] = {
        {"plain", {0}, 0, 1, 0, 0, 0},
        {"seven", {0}, 0, 7, 0, 0, 0},
        {"none", {0}, 0, 0, 0, 0, 0xFFFF},
        {"a byte too much", {0}, 0, 1, 1, 0, 0xFFFF},
        {"RTP", {0x80, 33}, 12, 7, 0, 0, 12},
        {"RTP with nothing in it", {0x80, 33}, 12, 0, 0, 0, 0xFFFF},
        {"a marker, and two sources", {0x82, 33 | 0x80}, 20, 1, 0, 0, 20},
        {"an extension of two words", {0x90, 33, [15] = 2}, 24, 1, 0, 0, 24},
        {"an extension and a source", {0x91, 33, [19] = 1}, 24, 1, 0, 0, 24},
        {"an extension that is longer", {0x90, 33, [14] = 1}, 24, 1, 0, 0, 0xFFFF},
        {"an extension that is cut", {0x90, 33}, 12, 0, 0, 0, 0xFFFF},
        {"padding", {0xA0, 33}, 12, 2, 4, 4, 12},
        {"padding that is longer than all", {0xA0, 33}, 12, 1, 4, 250, 0xFFFF},
        {"another version of RTP", {0x40, 33}, 12, 1, 0, 0, 0xFFFF},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        size_t packet_bytes = cases[i].packets * TS_PACKET_BYTES;
        size_t bytes = cases[i].head_bytes + packet_bytes + cases[i].tail_bytes;
        uint8_t *room = calloc(1, bytes + 1); /* as long as it is, so that a sanitizer sees reads beyond it */
        struct ts_datagram datagram;
        assert_non_null(room);
        memcpy(room, cases[i].head, cases[i].head_bytes);
        for (size_t j = 0; j < cases[i].packets; j++)
            make_packet(room + cases[i].head_bytes + j * TS_PACKET_BYTES, 100, 0x10);
        if (cases[i].tail_bytes > 0)
            room[bytes - 1] = cases[i].last;
        bool taken = ts_datagram_read(room, bytes, &datagram);
        if (taken != (cases[i].offset != 0xFFFF) ||
            (taken && (datagram.offset != cases[i].offset || datagram.bytes != packet_bytes)))
            fail_msg("%s: %s", cases[i].name, taken ? "taken" : "refused");
        free(room);
    }
}

static void broken_packets_are_refused(void **state)
{
    static const struct {
        size_t at;
        uint8_t value;
        bool taken;
    } cases[] = {{0, 0x46, false}, {3, 0x90, false}, {3, 0xD0, false},
                 {3, 0x50, false}, {3, 0x10, true},  {3, 0x00, true},
                 {4, 183, true},   {4, 184, false},  {TS_PACKET_BYTES, 0x46, false}};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        uint8_t room[2 * TS_PACKET_BYTES];
        struct ts_datagram datagram;
        make_packet(room, 100, cases[i].at == 4 ? 0x30 : 0x10);
        make_packet(room + TS_PACKET_BYTES, 100, 0x10);
        room[cases[i].at] = cases[i].value;
        if (ts_datagram_read(room, sizeof room, &datagram) != cases[i].taken)
            fail_msg("byte %zu as %02x is %s", cases[i].at, cases[i].value,
                     cases[i].taken ? "refused" : "taken");
    }
}

static void clock_references_are_seen(void **state)
{
    static const uint8_t cases[][4] = {/* control, length, flags, seen */
                                       {0x30, 7, 0x10, 1},
                                       {0x20, 183, 0x50, 1},
                                       {0x30, 7, 0x40, 0},
                                       {0x30, 6, 0x10, 0},
                                       {0x10, 7, 0x10, 0}};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        uint8_t packet[TS_PACKET_BYTES];
        struct ts_datagram datagram;
        make_packet(packet, 100, cases[i][0]);
        packet[4] = cases[i][1];
        packet[5] = cases[i][2];
        assert_true(ts_datagram_read(packet, sizeof packet, &datagram));
        assert_int_equal(datagram.has_pcr, cases[i][3]);
    }
}

static void what_has_payload_is_marked(void **state)
{
    static const struct {
        uint16_t pid;
        uint8_t control, length;
        bool marked;
    } cases[] = {{100, 0x10, 0, true},    {100, 0x3F, 182, true}, {100, 0x30, 183, false},
                 {100, 0x20, 183, false}, {7, 0x10, 0, false},    {8191, 0x10, 0, false},
                 {8190, 0x1F, 0, true}};
    uint8_t clear[TS_PIDS / 8] = {[0] = 0x80, [1023] = 0x80};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        for (int odd = 0; odd < 2; odd++) {
            uint8_t packet[TS_PACKET_BYTES], before[TS_PACKET_BYTES];
            make_packet(packet, cases[i].pid, cases[i].control);
            packet[4] = cases[i].length;
            memcpy(before, packet, sizeof before);
            (void)ts_datagram_mark(packet, sizeof packet, clear, odd == 0); /* it can be marked anew */
            assert_int_equal(ts_datagram_mark(packet, sizeof packet, clear, odd != 0), cases[i].marked);
            assert_int_equal(packet[3] >> 6, cases[i].marked ? 2 + odd : 0);
            packet[3] &= 0x3F;
            assert_memory_equal(packet, before, sizeof packet);
        }
}

/* ---- tables ---- */

static uint32_t section_crc(const uint8_t *bytes, size_t count)
{
    uint32_t crc = 0xFFFFFFFF;
    for (size_t i = 0; i < 8 * count; i++) {
        uint32_t bit = (uint32_t)bytes[i / 8] >> (7 - i % 8) & 1u;
        crc = (crc << 1) ^ ((crc >> 31) != bit ? UINT32_C(0x04C11DB7) : 0);
    }
    return crc;
}

static uint8_t counters[TS_PIDS]; /* continuity */

static uint8_t section_number, last_section;
static enum { NOTHING, CHECKSUM, CONTINUITY, NOT_YET } broken; /* of the section */

/* A section with this body behind its 8 bytes of header, in as many packets as it needs, through the reader. */
static void read_section(struct ts_tables *tables, uint16_t pid, uint8_t table, uint16_t number,
                         uint8_t version, const uint8_t *body, size_t body_bytes)
{
    uint8_t section[1024] = {0}, packet[TS_PACKET_BYTES];
    size_t bytes = 8 + body_bytes + 4, length = bytes - 3;
    const uint8_t header[] = {table,           (uint8_t)(0xB0 | length >> 8),
                              (uint8_t)length, (uint8_t)(number >> 8),
                              (uint8_t)number, (uint8_t)((broken == NOT_YET ? 0xC0 : 0xC1) | version << 1),
                              section_number,  last_section};
    memcpy(section, header, sizeof header);
    memcpy(section + 8, body, body_bytes);
    uint32_t crc = section_crc(section, bytes - 4) ^ (broken == CHECKSUM ? 1 : 0);
    for (size_t i = 0; i < 4; i++)
        section[bytes - 4 + i] = (uint8_t)(crc >> (24 - 8 * i));
    for (size_t at = 0; at < bytes;) {
        size_t head = at == 0 ? 5 : 4;
        size_t part = bytes - at < TS_PACKET_BYTES - head ? bytes - at : TS_PACKET_BYTES - head;
        make_packet(packet, pid, (uint8_t)(0x10 | (counters[pid]++ & 0x0F)));
        packet[1] = (uint8_t)(packet[1] | (at == 0 ? 0x40 : 0));
        memset(packet + 4, 0xFF, TS_PACKET_BYTES - 4);
        packet[4] = at == 0 ? 0 : packet[4];
        memcpy(packet + head, section + at, part);
        ts_tables_read(tables, packet, sizeof packet);
        ts_tables_read(tables, packet, sizeof packet); /* packets may come twice */
        counters[pid] = (uint8_t)(counters[pid] + (broken == CONTINUITY ? 1 : 0));
        at += part;
    }
}

static bool is_clear(const struct ts_tables *tables, uint16_t pid)
{
    return (tables->clear[pid / 8] >> (pid % 8) & 1) != 0;
}

#define PROGRAM(number, pid) 0, (number), (uint8_t)(0xE0 | (pid) >> 8), (uint8_t)((pid)&0xFF)
#define CA(pid)              9, 4, 0x06, 0x04, 0xE0 | (pid) >> 8, (pid)&0xFF

static void tables_are_followed(void **state)
{
    static const uint16_t configured[] = {0x300};
    static const uint8_t pat[] = {PROGRAM(0, 0x40), PROGRAM(1, 0x100), PROGRAM(2, 0x200)};
    static const uint8_t pmt[] = {0xE1, 0x01, 0xF0, 6, CA(0x150), 0x02, 0xE1, 0x01, 0xF0, 6, CA(0x151)};
    static const uint8_t cat[] = {CA(0x160)};
    static const uint8_t later[] = {PROGRAM(1, 0x100), PROGRAM(3, 0x210)};
    static const uint8_t pmt_later[] = {0xE1, 0x01, 0xF0, 0, 0x02, 0xE1, 0x01, 0xF0, 6, CA(0x152)};
    struct ts_tables tables;
    (void)state;
    ts_tables_open(&tables, configured, 1);
    for (uint16_t pid = 0; pid < TS_PIDS; pid++)
        if (is_clear(&tables, pid) != (pid < 0x20 || pid == 0x1FFB || pid == 0x1FFF || pid == 0x300))
            fail_msg("PID %04x before all tables", pid);
    assert_false(tables.complete);
    read_section(&tables, 0x100, 2, 1, 0, pmt, sizeof pmt); /* nothing has said that this is one */
    assert_false(is_clear(&tables, 0x150));
    read_section(&tables, 0, 0, 7, 0, pat, sizeof pat);
    assert_true(tables.complete);
    assert_true(is_clear(&tables, 0x40) && is_clear(&tables, 0x100) && is_clear(&tables, 0x200));
    read_section(&tables, 0x100, 2, 1, 0, pmt, sizeof pmt);
    assert_true(is_clear(&tables, 0x150) && is_clear(&tables, 0x151));
    assert_false(is_clear(&tables, 0x101));
    read_section(&tables, 1, 1, 0xFFFF, 0, cat, sizeof cat);
    assert_true(is_clear(&tables, 0x160));
    /* Others: what is no table any more is scrambled; what is said of program 1 stays. */
    read_section(&tables, 0, 0, 7, 1, later, sizeof later);
    assert_false(is_clear(&tables, 0x40) || is_clear(&tables, 0x200));
    assert_true(is_clear(&tables, 0x100) && is_clear(&tables, 0x210) && is_clear(&tables, 0x150));
    read_section(&tables, 0x100, 2, 1, 1, pmt_later, sizeof pmt_later);
    assert_false(is_clear(&tables, 0x150) || is_clear(&tables, 0x151));
    assert_true(is_clear(&tables, 0x152) && is_clear(&tables, 0x160) && is_clear(&tables, 0x300));
    ts_tables_close(&tables);
    ts_tables_close(&tables);
}

/* 120 programs: sections of three packets. */
static void sections_span_packets(void **state)
{
    uint8_t pat[4 * 120];
    struct ts_tables tables;
    (void)state;
    for (unsigned i = 0; i < 120; i++)
        memcpy(pat + 4 * i, (uint8_t[]){PROGRAM((uint8_t)(i + 1), (uint16_t)(0x400 + i))}, 4);
    ts_tables_open(&tables, NULL, 0);
    read_section(&tables, 0, 0, 7, 0, pat, sizeof pat);
    for (uint16_t pid = 0x3FF; pid <= 0x400 + 120; pid++)
        assert_int_equal(is_clear(&tables, pid), pid >= 0x400 && pid < 0x400 + 120);
    ts_tables_close(&tables);
}

static void read_programs(struct ts_tables *tables, uint8_t version, uint16_t from, uint16_t count)
{
    uint8_t pat[4 * 200];
    for (uint16_t i = 0; i < count; i++)
        memcpy(pat + (size_t)4 * i, (uint8_t[]){PROGRAM((uint8_t)(i + 1), (uint16_t)(from + i))}, 4);
    read_section(tables, 0, 0, 7, version, pat, (size_t)4 * count);
}

static void broken_sections_are_left_out(void **state)
{
    struct ts_tables tables;
    (void)state;
    ts_tables_open(&tables, NULL, 0);
    for (broken = CHECKSUM; broken <= NOT_YET; broken++) {
        read_programs(&tables, 0, 0x400, 120);
        assert_false(tables.complete || is_clear(&tables, 0x400));
    }
    broken = NOTHING;
    read_programs(&tables, 0, 0x400, 120);
    assert_true(tables.complete && is_clear(&tables, 0x400));
    ts_tables_close(&tables);
}

/* What an old one had is clear until all of the new one is there. */
static void a_pat_has_several_sections(void **state)
{
    struct ts_tables tables;
    (void)state;
    ts_tables_open(&tables, NULL, 0);
    last_section = 1;
    for (uint8_t version = 0; version < 2; version++) {
        uint16_t from = version == 0 ? 0x400 : 0x800;
        section_number = 1;
        read_programs(&tables, version, from, 10);
        assert_int_equal(tables.complete, version == 1);
        section_number = 0;
        read_programs(&tables, version, (uint16_t)(from + 10), 10);
        assert_true(tables.complete);
        for (uint16_t pid = 0x400; pid < 0xA00; pid++)
            assert_int_equal(is_clear(&tables, pid), pid >= from && pid < from + 20);
    }
    section_number = last_section = 0;
    ts_tables_close(&tables);
}

/* A section may end, and the next one begin, in the middle of a packet. */
static void sections_follow_each_other(void **state)
{
    static const uint8_t sections[2][2][4] = {{{PROGRAM(1, 0x100)}, {PROGRAM(2, 0x200)}},
                                              {{PROGRAM(1, 0x110)}, {PROGRAM(2, 0x210)}}};
    uint8_t packets[2 * TS_PACKET_BYTES], stream[64];
    struct ts_tables tables;
    size_t bytes = 0;
    (void)state;
    for (uint8_t i = 0; i < 2; i++) {
        const uint8_t head[] = {0, 0xB0, 17, 0, 7, (uint8_t)(0xC1 | i << 1), 0, 0};
        memcpy(stream + bytes, head, 8);
        memcpy(stream + bytes + 8, sections[i], 8);
        uint32_t crc = section_crc(stream + bytes, 16);
        for (size_t j = 0; j < 4; j++)
            stream[bytes + 16 + j] = (uint8_t)(crc >> (24 - 8 * j));
        bytes += 20;
    }
    for (size_t cut = 1; cut < bytes; cut++) { /* bytes of the stream in the first packet, at its end */
        ts_tables_open(&tables, NULL, 0);
        make_packet(packets, 0, 0x30);
        make_packet(packets + TS_PACKET_BYTES, 0, 0x11);
        packets[1] = packets[TS_PACKET_BYTES + 1] = 0x40;
        packets[4] = (uint8_t)(TS_PACKET_BYTES - 5 - 1 - cut); /* an adaptation field before them */
        packets[5] = 0;
        packets[TS_PACKET_BYTES - 1 - cut] = 0;
        memcpy(packets + TS_PACKET_BYTES - cut, stream, cut);
        memset(packets + TS_PACKET_BYTES + 5, 0xFF, TS_PACKET_BYTES - 5);
        memcpy(packets + TS_PACKET_BYTES + 5, stream + cut, bytes - cut);
        packets[TS_PACKET_BYTES + 4] = (uint8_t)(cut < 20 ? 20 - cut : bytes - cut); /* pointer */
        ts_tables_read(&tables, packets, sizeof packets);
        assert_true(tables.complete);
        if (!is_clear(&tables, 0x110) || !is_clear(&tables, 0x210) || is_clear(&tables, 0x100))
            fail_msg("cut behind %zu bytes", cut);
        ts_tables_close(&tables);
    }
}

/* What a table says of itself is not believed beyond its end. */
static void odd_tables_are_read(void **state)
{
    static const struct {
        const char *name;
        uint8_t number, bytes, body[16];
        bool clear; /* 0x150 */
    } cases[] = {
        {"a program's own", 1, 10, {0xE1, 0x01, 0xF0, 6, CA(0x150)}, true},
        {"named twice", 1, 16, {0xE1, 0x01, 0xF0, 12, CA(0x150), CA(0x150)}, true},
        {"another program's", 2, 10, {0xE1, 0x01, 0xF0, 6, CA(0x150)}, false},
        {"no length", 1, 3, {0xE1, 0x01, 0xF0}, false},
        {"a loop that is longer than the table", 1, 10, {0xE1, 0x01, 0xF0, 7, CA(0x150)}, false},
        {"a descriptor that is longer than its loop",
         1,
         10,
         {0xE1, 0x01, 0xF0, 6, 9, 5, 6, 4, 0xE1, 0x50},
         false},
        {"another descriptor", 1, 10, {0xE1, 0x01, 0xF0, 6, 10, 4, 6, 4, 0xE1, 0x50}, false},
        {"a descriptor without a PID", 1, 10, {0xE1, 0x01, 0xF0, 4, 9, 2, 6, 4, 0xE1, 0x50}, false},
    };
    static const uint8_t pat[] = {PROGRAM(1, 0x100), PROGRAM(0, 0x40)};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct ts_tables tables;
        ts_tables_open(&tables, NULL, 0);
        read_section(&tables, 0, 0, 7, 0, pat, sizeof pat);
        read_section(&tables, 0x40, 2, 0, 0, cases[i].body, cases[i].bytes); /* no PMT: the network's */
        assert_false(is_clear(&tables, 0x150));
        read_section(&tables, 0x100, 2, cases[i].number, 0, cases[i].body, cases[i].bytes);
        if (is_clear(&tables, 0x150) != cases[i].clear)
            fail_msg("%s: 0x150 is %s", cases[i].name, cases[i].clear ? "scrambled" : "clear");
        ts_tables_close(&tables);
    }
}

/* More than is kept room for is scrambled. */
static void tables_have_an_end(void **state)
{
    uint8_t cat[6 * (TS_CA_PIDS_MAX + 1)];
    struct ts_tables tables;
    (void)state;
    for (unsigned i = 0; i <= TS_CA_PIDS_MAX; i++)
        memcpy(cat + (size_t)6 * i, (uint8_t[]){9, 4, 0x06, 0x04, 0xE5, (uint8_t)i}, 6); /* CA(0x500 + i) */
    ts_tables_open(&tables, NULL, 0);
    read_section(&tables, 1, 1, 0xFFFF, 0, cat, sizeof cat);
    assert_true(is_clear(&tables, 0x500 + TS_CA_PIDS_MAX - 1));
    assert_false(is_clear(&tables, 0x500 + TS_CA_PIDS_MAX));
    last_section = 1; /* a CAT of two sections: the second one adds to the first */
    read_section(&tables, 1, 1, 0xFFFF, 1, cat, 6);
    section_number = 1;
    read_section(&tables, 1, 1, 0xFFFF, 1, cat + 6, 6);
    assert_true(is_clear(&tables, 0x500) && is_clear(&tables, 0x501) && !is_clear(&tables, 0x502));
    section_number = 0;
    read_programs(&tables, 0, 0x800, 200);
    section_number = 1;
    read_programs(&tables, 0, 0x900, 200);
    section_number = last_section = 0;
    assert_true(tables.complete && tables.program_count == TS_PROGRAMS_MAX);
    assert_true(is_clear(&tables, 0x800 + 199) && is_clear(&tables, 0x900 + TS_PROGRAMS_MAX - 200 - 1));
    assert_false(is_clear(&tables, 0x900 + TS_PROGRAMS_MAX - 200));
    ts_tables_close(&tables);
}

/* Packets of the PAT's PID in which there is none, and of one with a checksum that is right. */
static void what_is_no_section_is_left_out(void **state)
{
    static const struct {
        const char *name;
        uint8_t control, at, bytes[3];
    } cases[] = {
        {"nothing but stuffing", 0x10, 5, {0xFF, 0xFF, 0xFF}},
        {"a pointer beyond the packet", 0x10, 4, {0xFF, 0, 0xB0}},
        {"a section that is too long", 0x10, 5, {0, 0xBF, 0xFF}},
        {"one that is too short", 0x10, 5, {0, 0xB0, 4}},
        {"another table", 0x10, 5, {3, 0xB0, 13}},
        {"of the short form", 0x10, 5, {0, 0x30, 13}},
        {"no payload", 0x20, 4, {183, 0, 0}},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        uint8_t packet[TS_PACKET_BYTES], *section = packet + 5;
        struct ts_tables tables;
        ts_tables_open(&tables, NULL, 0);
        make_packet(packet, 0, cases[i].control);
        packet[1] = 0x40;
        memcpy(section, (uint8_t[]){0, 0xB0, 13, 0, 7, 0xC1, 0, 0, PROGRAM(1, 0x100)}, 12);
        memcpy(packet + cases[i].at, cases[i].bytes, 3);
        const uint32_t crc = section_crc(section, 12);
        for (size_t j = 0; j < 4; j++)
            section[12 + j] = (uint8_t)(crc >> (24 - 8 * j));
        ts_tables_read(&tables, packet, sizeof packet);
        if (tables.complete || is_clear(&tables, 0x100))
            fail_msg("%s is taken", cases[i].name);
        ts_tables_close(&tables);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packets_are_found),
        cmocka_unit_test(broken_packets_are_refused),
        cmocka_unit_test(clock_references_are_seen),
        cmocka_unit_test(what_has_payload_is_marked),
        cmocka_unit_test(tables_are_followed),
        cmocka_unit_test(sections_span_packets),
        cmocka_unit_test(broken_sections_are_left_out),
        cmocka_unit_test(a_pat_has_several_sections),
        cmocka_unit_test(sections_follow_each_other),
        cmocka_unit_test(odd_tables_are_read),
        cmocka_unit_test(tables_have_an_end),
        cmocka_unit_test(what_is_no_section_is_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
