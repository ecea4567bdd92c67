/* The list as a file. */
#include "inputgen/streams.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const char header[] =
    "stream,class,packet_bytes,interval_ns,burst_packets,latency_ns,cipher,padding,start_ns,stop_ns";

#define FIELD_COUNT    10
#define LINE_BYTES_MAX 512

core_status inputgen_streams_write(const struct inputgen_streams *list, FILE *file, struct core_error *error)
{
    fprintf(file, "%s\n", header);
    for (size_t i = 0; i < list->count; i++) {
        const struct inputgen_stream *stream = &list->streams[i];
        fprintf(file,
                "%zu,%s,%" PRIu32 ",%" PRId64 ",%" PRIu32 ",%" PRId64 ",%s,%s,%" PRId64 ",%" PRId64 "\n", i,
                list->classes[stream->class_index].name, stream->spec.packet_bytes, stream->spec.interval_ns,
                stream->spec.burst_packets, stream->spec.latency_ns, core_cipher_name(stream->spec.cipher),
                core_padding_name(stream->spec.padding), stream->start_ns, stream->stop_ns);
    }
    return ferror(file) ? core_error_errno(error, "the stream list can not be written") : CORE_OK;
}

/* A list being read. */
struct reader {
    FILE *file;
    const char *name;
    size_t line; /* the one being read, from 1 */
    struct inputgen_streams *list;
    size_t stream_room, class_room;
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

/* Digits only, no sign, no leading zero, at most 18 digits. */
static core_status integer_read(const struct reader *reader, const char *field, const char *text, int64_t low,
                                int64_t high, int64_t *value)
{
    const size_t length = strlen(text);

    if (length == 0 || length > 18 || strspn(text, "0123456789") != length || (text[0] == '0' && length > 1))
        return invalid(reader, field, "is not a plain decimal number");
    *value = strtoll(text, NULL, 10);
    if (*value < low || *value > high)
        return core_error_set(reader->error, CORE_INVALID,
                              "%s:%zu: %s: %s is out of range; give %" PRId64 " to %" PRId64, reader->name,
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
static core_status class_read(struct reader *reader, const char *name, uint32_t *index)
{
    struct inputgen_streams *list = reader->list;

    for (size_t i = 0; i < list->class_count; i++)
        if (strcmp(list->classes[i].name, name) == 0) {
            *index = (uint32_t)i;
            return CORE_OK;
        }
    if (!class_name_valid(name))
        return invalid(reader, "class", "must be 1 to 63 letters, digits, '.', '_' or '-'");
    if (list->class_count == INPUTGEN_CLASSES_MAX)
        return invalid(reader, "class", "there are more than 4096 classes; use fewer");
    struct inputgen_class *grown =
        grow(list->classes, list->class_count, &reader->class_room, sizeof *list->classes);
    if (!grown)
        return no_memory(reader);
    list->classes = grown;
    memset(&grown[list->class_count], 0, sizeof *grown);
    memcpy(grown[list->class_count].name, name, strlen(name));
    *index = (uint32_t)list->class_count++;
    return CORE_OK;
}

static core_status spec_read(const struct reader *reader, char *const field[FIELD_COUNT],
                             struct core_stream_spec *spec)
{
    int64_t packet_bytes, burst_packets;
    struct core_error why;
    core_status status =
        integer_read(reader, "packet_bytes", field[2], 1, CORE_PACKET_BYTES_MAX, &packet_bytes);

    if (status == CORE_OK)
        status = integer_read(reader, "interval_ns", field[3], CORE_INTERVAL_NS_MIN, CORE_INTERVAL_NS_MAX,
                              &spec->interval_ns);
    if (status == CORE_OK)
        status = integer_read(reader, "burst_packets", field[4], 1, CORE_BURST_MAX, &burst_packets);
    if (status == CORE_OK)
        status = integer_read(reader, "latency_ns", field[5], CORE_LATENCY_NS_MIN, CORE_LATENCY_NS_MAX,
                              &spec->latency_ns);
    if (status != CORE_OK)
        return status;
    spec->packet_bytes = (uint32_t)packet_bytes;
    spec->burst_packets = (uint32_t)burst_packets;
    if (core_cipher_parse(field[6], &spec->cipher) != CORE_OK)
        return invalid(reader, "cipher", "must be aes-128-cbc, aes-192-cbc or aes-256-cbc");
    if (core_padding_parse(field[7], &spec->padding) != CORE_OK)
        return invalid(reader, "padding", "must be none or pkcs7");
    if (core_stream_spec_check(spec, &why) != CORE_OK)
        return invalid(reader, NULL, why.text);
    return CORE_OK;
}

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

static core_status row_read(struct reader *reader, char *const field[FIELD_COUNT])
{
    struct inputgen_stream stream = {.start_ns = 0};
    int64_t number;
    core_status status = integer_read(reader, "stream", field[0], 0, INPUTGEN_STREAMS_MAX - 1, &number);

    if (status != CORE_OK)
        return status;
    if (number != (int64_t)reader->list->count)
        return core_error_set(reader->error, CORE_INVALID,
                              "%s:%zu: stream: is %" PRId64 ", not %zu; number the streams from 0 in order",
                              reader->name, reader->line, number, reader->list->count);
    status = class_read(reader, field[1], &stream.class_index);
    if (status == CORE_OK)
        status = spec_read(reader, field, &stream.spec);
    if (status == CORE_OK)
        status = integer_read(reader, "start_ns", field[8], 0, INPUTGEN_TIME_NS_MAX, &stream.start_ns);
    if (status == CORE_OK)
        status = integer_read(reader, "stop_ns", field[9], 1, INPUTGEN_TIME_NS_MAX, &stream.stop_ns);
    if (status == CORE_OK && stream.stop_ns <= stream.start_ns)
        status = invalid(reader, "stop_ns", "must be above start_ns");
    return status == CORE_OK ? stream_append(reader, &stream) : status;
}

/* Cuts the line at its commas. False unless there are exactly FIELD_COUNT fields. */
static bool line_cut(char *line, char *field[FIELD_COUNT])
{
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        field[i] = strsep(&line, ",");
        if (!field[i])
            return false;
    }
    return !line;
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

static core_status header_read(struct reader *reader)
{
    char line[LINE_BYTES_MAX];
    const core_status status = line_read(reader, line);

    if (status == CORE_NOT_FOUND || (status == CORE_OK && strcmp(line, header) != 0)) {
        reader->line = 1;
        return core_error_set(reader->error, CORE_INVALID,
                              "%s:1: is no stream list; the first line must be %s", reader->name, header);
    }
    return status;
}

static core_status rows_read(struct reader *reader)
{
    char line[LINE_BYTES_MAX];
    char *field[FIELD_COUNT];
    core_status status;

    while ((status = line_read(reader, line)) == CORE_OK) {
        if (!line_cut(line, field))
            return invalid(reader, NULL, "must have 10 fields with commas between them");
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
