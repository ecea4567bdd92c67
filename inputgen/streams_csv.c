/* The list as a file. */
#include "inputgen/streams.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define COLUMN_COUNT   17
#define LINE_BYTES_MAX 1024
#define TEXT_BYTES     24 /* of a number, its end included */

struct reader;

/* A column of the file. */
struct column {
    const char *name;
    const char *absent; /* what a list without it means; NULL: every list has it */
    core_status (*read)(struct reader *reader, const char *field, const char *text,
                        struct inputgen_stream *stream);
    /* Text of the stream's value; it may be in `room`. */
    const char *(*text)(const struct inputgen_streams *list, size_t index, char room[TEXT_BYTES]);
};

/* A list being read. */
struct reader {
    FILE *file;
    const char *name;
    size_t line; /* the one being read, from 1 */
    struct inputgen_streams *list;
    size_t stream_room, class_room;
    const struct column *order[COLUMN_COUNT]; /* as the first line has them */
    size_t order_count;
    struct core_error *error;
};

static core_status invalid(const struct reader *reader, const char *field, const char *what)
{
    return core_error_set(reader->error, CORE_INVALID, "%s:%zu: %s%s%s", reader->name, reader->line,
                          field ? field : "", field ? ": " : "", what);
}

static core_status no_memory(const struct reader *reader)
{
    return core_error_set(reader->error, CORE_NO_MEMORY, "%s:%zu: out of memory", reader->name, reader->line);
}

/* Room for one more element; NULL if there is no memory. */
static void *grow(void *array, size_t count, size_t *room, size_t element_bytes)
{
    if (count < *room)
        return array;
    const size_t wanted = *room ? 2 * *room : 64;
    void *grown = reallocarray(array, wanted, element_bytes);
    if (grown)
        *room = wanted;
    return grown;
}

/* Digits only, no sign, no leading zero. */
static core_status integer_read(const struct reader *reader, const char *field, const char *text,
                                uint64_t low, uint64_t high, uint64_t *value)
{
    const size_t length = strlen(text);

    if (length == 0 || strspn(text, "0123456789") != length || (text[0] == '0' && length > 1))
        return invalid(reader, field, "is not a plain decimal number");
    errno = 0;
    *value = strtoull(text, NULL, 10);
    if (errno != 0 || *value < low || *value > high)
        return core_error_set(reader->error, CORE_INVALID,
                              "%s:%zu: %s: %s is out of range; give %" PRIu64 " to %" PRIu64, reader->name,
                              reader->line, field, text, low, high);
    return CORE_OK;
}

static bool class_name_valid(const char *name)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const size_t length = strlen(name);

    return length >= 1 && length <= INPUTGEN_CLASS_NAME_MAX && strspn(name, allowed) == length;
}

/* The class of that name, made if new. */
static core_status class_read(struct reader *reader, const char *field, const char *name,
                              struct inputgen_stream *stream)
{
    struct inputgen_streams *list = reader->list;

    for (size_t i = 0; i < list->class_count; i++)
        if (strcmp(list->classes[i].name, name) == 0) {
            stream->class_index = (uint32_t)i;
            return CORE_OK;
        }
    if (!class_name_valid(name))
        return invalid(reader, field, "must be 1 to 63 letters, digits, '.', '_' or '-'");
    if (list->class_count == INPUTGEN_CLASSES_MAX)
        return invalid(reader, field, "there are more than 4096 classes; use fewer");
    struct inputgen_class *grown =
        grow(list->classes, list->class_count, &reader->class_room, sizeof *list->classes);
    if (!grown)
        return no_memory(reader);
    list->classes = grown;
    memset(&grown[list->class_count], 0, sizeof *grown);
    memcpy(grown[list->class_count].name, name, strlen(name));
    stream->class_index = (uint32_t)list->class_count++;
    return CORE_OK;
}

/* ---- columns ---- */

static const char *number_text(uint64_t value, char room[TEXT_BYTES])
{
    (void)snprintf(room, TEXT_BYTES, "%" PRIu64, value);
    return room;
}

/* A column with a number of the stream. */
#define NUMBER_COLUMN(name, member, type, low, high)                                                         \
    static core_status name##_read(struct reader *reader, const char *field, const char *text,               \
                                   struct inputgen_stream *stream)                                           \
    {                                                                                                        \
        uint64_t value;                                                                                      \
        const core_status status = integer_read(reader, field, text, low, high, &value);                     \
        if (status == CORE_OK)                                                                               \
            stream->member = (type)value;                                                                    \
        return status;                                                                                       \
    }                                                                                                        \
    static const char *name##_text(const struct inputgen_streams *list, size_t index, char room[TEXT_BYTES]) \
    {                                                                                                        \
        return number_text((uint64_t)list->streams[index].member, room);                                     \
    }

/* One with a word of core/stream.h for a part of the contract. */
#define WORD_COLUMN(noun, words)                                                                             \
    static core_status noun##_read(struct reader *reader, const char *field, const char *text,               \
                                   struct inputgen_stream *stream)                                           \
    {                                                                                                        \
        return core_##noun##_parse(text, &stream->spec.noun) == CORE_OK                                      \
                   ? CORE_OK                                                                                 \
                   : invalid(reader, field, "must be " words);                                               \
    }                                                                                                        \
    static const char *noun##_text(const struct inputgen_streams *list, size_t index, char room[TEXT_BYTES]) \
    {                                                                                                        \
        (void)room;                                                                                          \
        return core_##noun##_name(list->streams[index].spec.noun);                                           \
    }

NUMBER_COLUMN(packet_bytes, spec.packet_bytes, uint32_t, 1, CORE_PACKET_BYTES_MAX)
NUMBER_COLUMN(interval_ns, spec.interval_ns, core_ns, CORE_INTERVAL_NS_MIN, CORE_INTERVAL_NS_MAX)
NUMBER_COLUMN(burst_packets, spec.burst_packets, uint32_t, 1, CORE_BURST_MAX)
NUMBER_COLUMN(latency_ns, spec.latency_ns, core_ns, CORE_LATENCY_NS_MIN, CORE_LATENCY_NS_MAX)
NUMBER_COLUMN(start_ns, start_ns, core_ns, 0, INPUTGEN_TIME_NS_MAX)
NUMBER_COLUMN(stop_ns, stop_ns, core_ns, 1, INPUTGEN_TIME_NS_MAX)
NUMBER_COLUMN(message_packets, message_packets, uint32_t, 1, CONFIG_MESSAGE_PACKETS_MAX)
NUMBER_COLUMN(first_unit, spec.first_unit, uint64_t, 0, UINT64_MAX)
WORD_COLUMN(cipher, "aes-128-cbc, aes-192-cbc or aes-256-cbc")
WORD_COLUMN(padding, "none, pkcs7 or clear")
WORD_COLUMN(unit, "stream or message")
WORD_COLUMN(iv, "chain, constant, counter, explicit or random")
WORD_COLUMN(direction, "encrypt or decrypt")
WORD_COLUMN(records, "none or ts")

static core_status pattern_read(struct reader *reader, const char *field, const char *text,
                                struct inputgen_stream *stream)
{
    return core_pattern_parse(text, &stream->spec) == CORE_OK
               ? CORE_OK
               : invalid(reader, field, "must be none, or blocks that are encrypted and that pass, as 1:9");
}

static const char *pattern_text(const struct inputgen_streams *list, size_t index, char room[TEXT_BYTES])
{
    return core_pattern_format(&list->streams[index].spec, room);
}

static core_status stream_read(struct reader *reader, const char *field, const char *text,
                               struct inputgen_stream *stream)
{
    const size_t count = reader->list->count;
    uint64_t number;
    const core_status status = integer_read(reader, field, text, 0, INPUTGEN_STREAMS_MAX - 1, &number);

    (void)stream;
    if (status == CORE_OK && number != count)
        return core_error_set(reader->error, CORE_INVALID,
                              "%s:%zu: %s: is %" PRIu64 ", not %zu; number the streams from 0 in order",
                              reader->name, reader->line, field, number, count);
    return status;
}

static const char *stream_text(const struct inputgen_streams *list, size_t index, char room[TEXT_BYTES])
{
    (void)list;
    return number_text(index, room);
}

static const char *class_text(const struct inputgen_streams *list, size_t index, char room[TEXT_BYTES])
{
    (void)room;
    return list->classes[list->streams[index].class_index].name;
}

#define COLUMN(name, absent)                                                                                 \
    {                                                                                                        \
#name, absent, name##_read, name##_text                                                              \
    }

static const struct column columns[COLUMN_COUNT] = {
    COLUMN(stream, NULL),         COLUMN(class, NULL),         COLUMN(packet_bytes, NULL),
    COLUMN(interval_ns, NULL),    COLUMN(burst_packets, NULL), COLUMN(latency_ns, NULL),
    COLUMN(cipher, NULL),         COLUMN(padding, NULL),       COLUMN(start_ns, NULL),
    COLUMN(stop_ns, NULL),        COLUMN(unit, "stream"),      COLUMN(message_packets, "1"),
    COLUMN(iv, "chain"),          COLUMN(first_unit, "0"),     COLUMN(pattern, "none"),
    COLUMN(direction, "encrypt"), COLUMN(records, "none"),
};

/* ---- writing ---- */

static bool is_written(const struct inputgen_streams *list, const struct column *column)
{
    char room[TEXT_BYTES];

    for (size_t i = 0; column->absent && i < list->count; i++)
        if (strcmp(column->text(list, i, room), column->absent) != 0)
            return true;
    return !column->absent;
}

core_status inputgen_streams_write(const struct inputgen_streams *list, FILE *file, struct core_error *error)
{
    const struct column *written[COLUMN_COUNT];
    char room[TEXT_BYTES];
    size_t count = 0;

    for (size_t i = 0; i < COLUMN_COUNT; i++)
        if (is_written(list, &columns[i]))
            written[count++] = &columns[i];
    for (size_t i = 0; i < count; i++)
        fprintf(file, "%s%s", i > 0 ? "," : "", written[i]->name);
    for (size_t stream = 0; stream < list->count; stream++)
        for (size_t i = 0; i < count; i++)
            fprintf(file, "%s%s", i > 0 ? "," : "\n", written[i]->text(list, stream, room));
    fputc('\n', file);
    return ferror(file) ? core_error_errno(error, "the stream list can not be written") : CORE_OK;
}

/* ---- reading ---- */

static core_status stream_append(struct reader *reader, const struct inputgen_stream *stream)
{
    struct inputgen_streams *list = reader->list;
    struct inputgen_stream *grown =
        grow(list->streams, list->count, &reader->stream_room, sizeof *list->streams);

    if (!grown)
        return no_memory(reader);
    list->streams = grown;
    grown[list->count++] = *stream;
    return CORE_OK;
}

static bool is_there(const struct reader *reader, const struct column *column)
{
    for (size_t i = 0; i < reader->order_count; i++)
        if (reader->order[i] == column)
            return true;
    return false;
}

static core_status row_read(struct reader *reader, char *const *text)
{
    struct inputgen_stream stream = {.start_ns = 0};
    struct core_error why;
    core_status status = CORE_OK;

    for (size_t i = 0; status == CORE_OK && i < reader->order_count; i++)
        status = reader->order[i]->read(reader, reader->order[i]->name, text[i], &stream);
    for (size_t i = 0; status == CORE_OK && i < COLUMN_COUNT; i++)
        if (!is_there(reader, &columns[i]))
            status = columns[i].read(reader, columns[i].name, columns[i].absent, &stream);
    if (status != CORE_OK)
        return status;
    config_workload_declare(&stream.spec, stream.message_packets);
    if (config_workload_spec_check(&stream.spec, stream.message_packets, &why) != CORE_OK)
        return invalid(reader, NULL, why.text);
    if (stream.stop_ns <= stream.start_ns)
        return invalid(reader, "stop_ns", "must be above start_ns");
    return stream_append(reader, &stream);
}

/* Cuts the line at its commas; how many fields it has, or one more than there is room for. */
static size_t line_cut(char *line, char *field[COLUMN_COUNT])
{
    size_t count = 0;

    while (line && count < COLUMN_COUNT)
        field[count++] = strsep(&line, ",");
    return line ? COLUMN_COUNT + 1 : count;
}

/* The next line without its end into `line`. CORE_NOT_FOUND at the end of the file. */
static core_status line_read(struct reader *reader, char line[LINE_BYTES_MAX])
{
    size_t length = 0;
    int c = getc(reader->file);

    if (c == EOF)
        return ferror(reader->file) ? core_error_errno(reader->error, "%s: can not be read", reader->name)
                                    : CORE_NOT_FOUND;
    reader->line++;
    for (; c != EOF && c != '\n'; c = getc(reader->file)) {
        if (length == LINE_BYTES_MAX - 1)
            return invalid(reader, NULL, "the line is too long for a stream list");
        if (c < ' ' || c > '~')
            return invalid(reader, NULL, "has a character that is not printable ASCII; remove it");
        line[length++] = (char)c;
    }
    line[length] = '\0';
    return CORE_OK;
}

/* The next column of the first line. */
static core_status column_read(struct reader *reader, const char *name)
{
    for (size_t i = 0; i < COLUMN_COUNT; i++) {
        if (strcmp(columns[i].name, name) != 0)
            continue;
        if (is_there(reader, &columns[i]))
            return invalid(reader, name, "is there twice; remove one of these columns");
        reader->order[reader->order_count++] = &columns[i];
        return CORE_OK;
    }
    return core_error_set(reader->error, CORE_INVALID,
                          "%s:1: is no stream list, or of a later version: there is no column '%.40s'",
                          reader->name, name);
}

static core_status header_read(struct reader *reader)
{
    char line[LINE_BYTES_MAX], *name[COLUMN_COUNT];
    core_status status = line_read(reader, line);
    const size_t count = status == CORE_OK ? line_cut(line, name) : 0;

    if (status != CORE_OK && status != CORE_NOT_FOUND)
        return status;
    status = CORE_OK;
    for (size_t i = 0; status == CORE_OK && i < count && i < COLUMN_COUNT; i++)
        status = column_read(reader, name[i]);
    for (size_t i = 0; status == CORE_OK && i < COLUMN_COUNT; i++)
        if (!columns[i].absent && !is_there(reader, &columns[i]))
            status = core_error_set(reader->error, CORE_INVALID,
                                    "%s:1: is no stream list: there is no column named %s", reader->name,
                                    columns[i].name);
    return status;
}

static core_status rows_read(struct reader *reader)
{
    char line[LINE_BYTES_MAX], *field[COLUMN_COUNT];
    core_status status;

    while ((status = line_read(reader, line)) == CORE_OK) {
        const size_t count = line_cut(line, field);
        if (count != reader->order_count)
            return core_error_set(reader->error, CORE_INVALID,
                                  "%s:%zu: must have %zu fields with commas between them, as the first line",
                                  reader->name, reader->line, reader->order_count);
        status = row_read(reader, field);
        if (status != CORE_OK)
            return status;
    }
    if (status != CORE_NOT_FOUND)
        return status;
    return reader->list->count ? CORE_OK : invalid(reader, NULL, "no streams follow; the list is empty");
}

/* Closes the file. */
static core_status list_read(FILE *file, const char *name, struct inputgen_streams **list,
                             struct core_error *error)
{
    struct reader reader = {.file = file, .name = name, .error = error};
    core_status status;

    reader.list = calloc(1, sizeof *reader.list);
    if (!reader.list)
        status = no_memory(&reader);
    else
        status = header_read(&reader);
    if (status == CORE_OK)
        status = rows_read(&reader);
    if (status == CORE_OK)
        *list = reader.list;
    else
        inputgen_streams_free(reader.list);
    fclose(file);
    return status;
}

core_status inputgen_streams_read(const char *path, struct inputgen_streams **list, struct core_error *error)
{
    FILE *file = fopen(path, "re");

    if (!file)
        return core_error_errno(error, "%s: can not be opened", path);
    return list_read(file, path, list, error);
}

core_status inputgen_streams_parse(const char *text, size_t bytes, const char *name,
                                   struct inputgen_streams **list, struct core_error *error)
{
    /* A stream of no bytes can not be opened; an empty list is refused all the same. */
    FILE *file = bytes ? fmemopen((void *)text, bytes, "r") : fopen("/dev/null", "re");

    if (!file)
        return core_error_errno(error, "%s: can not be read", name);
    return list_read(file, name, list, error);
}
