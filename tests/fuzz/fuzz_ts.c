/* Arbitrary datagrams to `millrace ts`, each behind its length, arbitrary sections in packets of their own, with the
 * checksum that they need, and an arbitrary line of control words: what is taken is whole packets inside the datagram,
 * and marking them touches nothing but their scrambling control. */
#include "client/ts/tables.h"
#include "client/ts/words.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition)
        abort();
}

static void take_datagram(struct ts_tables *tables, const uint8_t *data, size_t size)
{
    struct ts_datagram datagram;
    uint8_t *bytes = malloc(size + 1); /* so that a sanitizer sees reads beyond it */
    if (bytes == NULL)
        return;
    memcpy(bytes, data, size);
    if (ts_datagram_read(bytes, size, &datagram)) {
        require(datagram.bytes > 0 && datagram.bytes % TS_PACKET_BYTES == 0 &&
                datagram.offset + datagram.bytes <= size);
        ts_tables_read(tables, bytes + datagram.offset, datagram.bytes);
        (void)ts_datagram_mark(bytes + datagram.offset, datagram.bytes, tables->clear, size % 2 != 0);
        for (size_t i = 0; i < size; i++) {
            bool is_control = i >= datagram.offset && i < datagram.offset + datagram.bytes &&
                              (i - datagram.offset) % TS_PACKET_BYTES == 3;
            require((bytes[i] & (is_control ? 0x3F : 0xFF)) == data[i]);
        }
    }
    free(bytes);
}

static uint32_t section_crc(const uint8_t *bytes, size_t count)
{
    uint32_t crc = 0xFFFFFFFF;
    for (size_t i = 0; i < 8 * count; i++)
        crc = (crc << 1) ^
              ((crc >> 31) != ((uint32_t)bytes[i / 8] >> (7 - i % 8) & 1u) ? UINT32_C(0x04C11DB7) : 0);
    return crc;
}

/* The first byte says which table; PMTs are where the PAT of the second one may say. */
static void take_section(struct ts_tables *tables, const uint8_t *data, size_t size)
{
    static uint8_t counter;
    uint8_t packet[TS_PACKET_BYTES], table = data[0] % 3, *section = packet + 5;
    size = size < 176 ? size : 176;
    memset(packet, 0xFF, sizeof packet);
    memcpy(packet, (uint8_t[]){0x47, table == 2 ? 0x41 : 0x40, table == 1, 0x10 | (counter++ & 0x0F), 0}, 5);
    memcpy(section, data, size);
    section[0] = table;
    section[1] = 0xB0;
    section[2] = (uint8_t)(size + 1);
    uint32_t crc = section_crc(section, size);
    for (size_t i = 0; i < 4; i++)
        section[size + i] = (uint8_t)(crc >> (24 - 8 * i));
    take_datagram(tables, packet, sizeof packet);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ts_tables tables;
    struct ts_word word;
    struct core_error error;
    if (ts_word_parse((const char *)data, size, 0, 0, &word, &error) == CORE_OK)
        require(word.key_bytes > 0 && word.key_bytes <= TS_KEY_NAME_MAX);
    ts_tables_open(&tables, NULL, 0);
    while (size > 2) {
        size_t bytes = (size_t)(data[0] << 8 | data[1]) % 1500;
        bytes = bytes < size - 2 ? bytes : size - 2;
        if (bytes >= 8 && data[0] >= 0x80)
            take_section(&tables, data + 2, bytes);
        else
            take_datagram(&tables, data + 2, bytes);
        data += 2 + bytes;
        size -= 2 + bytes;
    }
    ts_tables_close(&tables);
    return 0;
}
