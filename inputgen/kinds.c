#include "inputgen/kinds.h"

#include "core/transport_stream.h"
#include "inputgen/streams.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct kind {
    const char *name;
    struct core_stream_spec form; /* packet_bytes 0: as the class has them */
    uint32_t message_packets;
} kinds[] = {
    {"hls", {.padding = CORE_PADDING_PKCS7, .unit = CORE_UNIT_MESSAGE, .iv = CORE_IV_COUNTER}, 100},
    {"dvb-cissa",
     {.packet_bytes = 7 * CORE_TS_BYTES,
      .padding = CORE_PADDING_CLEAR,
      .unit = CORE_UNIT_MESSAGE,
      .iv = CORE_IV_CONSTANT,
      .records = CORE_RECORDS_TS},
     1},
    {"cbcs",
     {.padding = CORE_PADDING_CLEAR,
      .unit = CORE_UNIT_MESSAGE,
      .iv = CORE_IV_CONSTANT,
      .crypt_blocks = 1,
      .skip_blocks = 9},
     4},
    {"packets", {.padding = CORE_PADDING_PKCS7, .unit = CORE_UNIT_MESSAGE, .iv = CORE_IV_RANDOM}, 1},
    {"decrypt",
     {.padding = CORE_PADDING_CLEAR,
      .unit = CORE_UNIT_MESSAGE,
      .iv = CORE_IV_EXPLICIT,
      .direction = CORE_DIRECTION_DECRYPT},
     1},
};
#define KIND_COUNT (sizeof kinds / sizeof kinds[0])

/* ---- what is asked for ---- */

/* "hls=20": the number's end is the text's or a comma. */
static core_status share_read(const char **text, double share[KIND_COUNT], struct core_error *error)
{
    const size_t length = strcspn(*text, "="), whole = strcspn(*text, ",");

    for (size_t i = 0; i < KIND_COUNT; i++) {
        char *end;
        if (length > whole || strncmp(*text, kinds[i].name, length) != 0 || kinds[i].name[length] != '\0')
            continue;
        const double percent = strtod(*text + length + 1, &end);
        if (end != *text + whole || !(percent > 0 && percent <= 100) || share[i] > 0)
            break;
        share[i] = percent / 100;
        *text += whole + ((*text)[whole] == ',' ? 1 : 0);
        return CORE_OK;
    }
    return core_error_set(error, CORE_INVALID, "--kinds: '%.*s': give " INPUTGEN_KINDS_HELP ", each once",
                          (int)(whole < 60 ? whole : 60), *text);
}

static core_status shares_read(const char *text, double share[KIND_COUNT], double *rest,
                               struct core_error *error)
{
    core_status status = CORE_OK;

    *rest = 1;
    do
        status = share_read(&text, share, error);
    while (status == CORE_OK && *text != '\0');
    for (size_t i = 0; i < KIND_COUNT; i++)
        *rest -= share[i];
    if (status == CORE_OK && *rest < -1e-9)
        return core_error_set(error, CORE_INVALID, "--kinds: more than 100 %% of the streams");
    if (*rest < 1e-9)
        *rest = 0; /* what rounding has left */
    return status;
}

/* ---- classes ---- */

static core_status class_make(const struct config_workload_class *from, const struct kind *kind, double share,
                              struct config_workload_class *made, struct core_error *error)
{
    char name[2 * INPUTGEN_CLASS_NAME_MAX];
    struct core_error why;

    *made = *from;
    made->weight = from->weight * share;
    made->spec = kind->form;
    if (kind->form.packet_bytes == 0)
        made->spec.packet_bytes = from->spec.packet_bytes;
    made->spec.burst_packets = from->spec.burst_packets;
    made->spec.interval_ns = from->spec.interval_ns;
    made->spec.latency_ns = from->spec.latency_ns;
    made->spec.cipher = CORE_CIPHER_AES_128_CBC;
    made->message_packets = kind->message_packets;
    config_workload_declare(&made->spec, kind->message_packets);
    (void)snprintf(name, sizeof name, "%s.%s", from->name, kind->name);
    made->name = strdup(name);
    if (!made->name)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    if (strlen(name) > INPUTGEN_CLASS_NAME_MAX)
        return core_error_set(error, CORE_INVALID, "class %s: the name is too long; at most %d characters",
                              name, INPUTGEN_CLASS_NAME_MAX);
    if (config_workload_spec_check(&made->spec, made->message_packets, &why) != CORE_OK)
        return core_error_set(error, CORE_INVALID, "class %s: %s", name, why.text);
    return CORE_OK;
}

core_status inputgen_kinds_share(struct config_workload *workload, const char *shares,
                                 struct core_error *error)
{
    const size_t count = workload->class_count;
    double share[KIND_COUNT] = {0}, rest;
    core_status status = shares_read(shares, share, &rest, error);

    if (status != CORE_OK)
        return status;
    if (count * (1 + KIND_COUNT) > INPUTGEN_CLASSES_MAX)
        return core_error_set(error, CORE_INVALID, "--kinds: %zu classes are too many for it", count);
    struct config_workload_class *grown =
        reallocarray(workload->classes, count * (1 + KIND_COUNT), sizeof *grown);
    if (!grown)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    workload->classes = grown;
    for (size_t class = 0; class < count; class ++) {
        for (size_t i = 0; status == CORE_OK && i < KIND_COUNT; i++)
            if (share[i] > 0)
                status =
                    class_make(&grown[class], &kinds[i], share[i], &grown[workload->class_count++], error);
        grown[class].weight *= rest;
    }
    return status;
}
