#include "config/profile.h"

#include "config/profile_gpu.h"
#include "config/report.h"
#include "config/yaml.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define COST_NS_MAX              CORE_NS_PER_S
#define PERCENT_PPM              (CONFIG_PROFILE_MARGIN_PPM / 100)
#define DECRYPT_MORE_PERCENT_MAX 100000              /* calibration beside others' work: 2,000 was seen */
#define COST_FS_MAX              INT64_C(1000000000) /* 1 us per byte: slower than any machine of interest */

/* libcyaml loads straight into the public structs; only the keys of the arrays by cipher need help. */
#define CIPHER_FIELD(name, cipher)                                                                           \
    {                                                                                                        \
        .key = (name), .data_offset = ((cipher)-1) * sizeof(int64_t), .value = {                             \
            CYAML_VALUE_INT(CYAML_FLAG_DEFAULT, int64_t)                                                     \
        }                                                                                                    \
    }
#define INT_FIELD(structure, member)  CYAML_FIELD_INT(#member, CYAML_FLAG_DEFAULT, structure, member)
#define UINT_FIELD(structure, member) CYAML_FIELD_UINT(#member, CYAML_FLAG_DEFAULT, structure, member)
#define TEXT_FIELD(structure, member)                                                                        \
    CYAML_FIELD_STRING_PTR(#member, CYAML_FLAG_POINTER, structure, member, 1, CONFIG_PROFILE_TEXT_BYTES_MAX)
#define PART_FIELD(structure, member, fields)                                                                \
    CYAML_FIELD_MAPPING(#member, CYAML_FLAG_DEFAULT, structure, member, fields)

static const cyaml_schema_field_t cipher_fields[] = {
    CIPHER_FIELD("aes_128_cbc", CORE_CIPHER_AES_128_CBC),
    CIPHER_FIELD("aes_192_cbc", CORE_CIPHER_AES_192_CBC),
    CIPHER_FIELD("aes_256_cbc", CORE_CIPHER_AES_256_CBC),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t cpu_fields[] = {
    TEXT_FIELD(struct config_profile_cpu, engine),
    UINT_FIELD(struct config_profile_cpu, lanes),
    UINT_FIELD(struct config_profile_cpu, burst_pieces),
    UINT_FIELD(struct config_profile_cpu, piece_bytes),
    INT_FIELD(struct config_profile_cpu, per_piece_ns),
    PART_FIELD(struct config_profile_cpu, per_byte_fs, cipher_fields),
    PART_FIELD(struct config_profile_cpu, lane_ns, cipher_fields),
    CYAML_FIELD_UINT("decrypt_more_percent", CYAML_FLAG_OPTIONAL, struct config_profile_cpu,
                     decrypt_more_percent),
    INT_FIELD(struct config_profile_cpu, queue_granularity_ns),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t io_fields[] = {
    INT_FIELD(struct config_profile_io, per_packet_ns),
    INT_FIELD(struct config_profile_io, per_byte_fs),
    CYAML_FIELD_INT("pattern_per_byte_fs", CYAML_FLAG_OPTIONAL, struct config_profile_io,
                    pattern_per_byte_fs),
    CYAML_FIELD_INT("mac_per_byte_fs", CYAML_FLAG_OPTIONAL, struct config_profile_io, mac_per_byte_fs),
    CYAML_FIELD_INT("by_lane_per_packet_ns", CYAML_FLAG_OPTIONAL, struct config_profile_io,
                    by_lane_per_packet_ns),
    CYAML_FIELD_INT("by_lane_per_byte_fs", CYAML_FLAG_OPTIONAL, struct config_profile_io,
                    by_lane_per_byte_fs),
    UINT_FIELD(struct config_profile_io, limit_percent),
    INT_FIELD(struct config_profile_io, rest_max_ns),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t margins_fields[] = {
    INT_FIELD(struct config_profile_margins, in_ns),
    INT_FIELD(struct config_profile_margins, out_ns),
    UINT_FIELD(struct config_profile_margins, percent),
    CYAML_FIELD_UINT("copies_ppm", CYAML_FLAG_OPTIONAL, struct config_profile_margins, copies_ppm),
    CYAML_FIELD_UINT("kernels_ppm", CYAML_FLAG_OPTIONAL, struct config_profile_margins, kernels_ppm),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t profile_fields[] = {
    TEXT_FIELD(struct config_profile, name),
    TEXT_FIELD(struct config_profile, machine),
    TEXT_FIELD(struct config_profile, measured),
    PART_FIELD(struct config_profile, cpu, cpu_fields),
    PART_FIELD(struct config_profile, io, io_fields),
    PART_FIELD(struct config_profile, margins, margins_fields),
    CYAML_FIELD_UINT("workers", CYAML_FLAG_OPTIONAL, struct config_profile, workers),
    CYAML_FIELD_UINT("pinned_bytes", CYAML_FLAG_OPTIONAL, struct config_profile, pinned_bytes),
    CYAML_FIELD_SEQUENCE_COUNT("gpus", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct config_profile, gpus,
                               gpu_count, &config_profile_gpu_schema, 1, CONFIG_PROFILE_GPU_KINDS_MAX),
    CYAML_FIELD_END,
};

static const cyaml_schema_value_t profile_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct config_profile, profile_fields),
};

static const char *const cipher_keys[CORE_CIPHER_COUNT] = {"aes_128_cbc", "aes_192_cbc", "aes_256_cbc"};

/* ---- checks ---- */

void config_profile_text_check(struct config_report *report, const char *path, const char *text)
{
    if (!text || !text[0])
        config_report_invalid(report, path, "is empty; give a text");
    else if (strlen(text) > CONFIG_PROFILE_TEXT_BYTES_MAX)
        config_report_invalid(report, path, "is longer than %d bytes; shorten it",
                              CONFIG_PROFILE_TEXT_BYTES_MAX);
    else
        for (const char *c = text; *c; c++)
            if ((unsigned char)*c < ' ' || (unsigned char)*c > '~')
                config_report_invalid(report, path, "has characters other than printable ASCII; remove them");
}

static void cpu_check(struct config_report *report, const struct config_profile_cpu *cpu)
{
    config_profile_text_check(report, "cpu.engine", cpu->engine);
    if (cpu->engine && strcmp(cpu->engine, "vaes") != 0 && strcmp(cpu->engine, "ipsec-mb") != 0 &&
        strcmp(cpu->engine, "openssl") != 0)
        config_report_invalid(report, "cpu.engine", "'%.40s' is no engine; give vaes, ipsec-mb or openssl",
                              cpu->engine);
    config_report_range(report, "cpu.lanes", cpu->lanes, 1, 128);
    config_report_range(report, "cpu.burst_pieces", cpu->burst_pieces, 1, 128);
    if (cpu->lanes > 0 && cpu->burst_pieces % cpu->lanes != 0)
        config_report_invalid(report, "cpu.burst_pieces", "%u is no multiple of the %u lanes",
                              (unsigned)cpu->burst_pieces, (unsigned)cpu->lanes);
    config_report_range(report, "cpu.piece_bytes", cpu->piece_bytes, 16, 65520);
    if (cpu->piece_bytes % CORE_BLOCK_BYTES != 0)
        config_report_invalid(report, "cpu.piece_bytes", "%u is no multiple of 16",
                              (unsigned)cpu->piece_bytes);
    config_report_range(report, "cpu.per_piece_ns", cpu->per_piece_ns, 0, COST_NS_MAX);
    for (size_t i = 0; i < CORE_CIPHER_COUNT; i++) {
        config_report_range(report, config_path("cpu.per_byte_fs.%s", cipher_keys[i]).text,
                            cpu->per_byte_fs[i], 1, COST_FS_MAX);
        config_report_range(report, config_path("cpu.lane_ns.%s", cipher_keys[i]).text, cpu->lane_ns[i], 0,
                            COST_NS_MAX);
    }
    config_report_range(report, "cpu.decrypt_more_percent", cpu->decrypt_more_percent, 0,
                        DECRYPT_MORE_PERCENT_MAX);
    config_report_range(report, "cpu.queue_granularity_ns", cpu->queue_granularity_ns, 0, COST_NS_MAX);
}

static core_status profile_check(const struct config_profile *profile, const struct config_yaml *yaml,
                                 struct core_error *error)
{
    struct config_report report = {.yaml = yaml, .error = error};

    config_profile_text_check(&report, "name", profile->name);
    config_profile_text_check(&report, "machine", profile->machine);
    config_profile_text_check(&report, "measured", profile->measured);
    cpu_check(&report, &profile->cpu);
    config_report_range(&report, "io.per_packet_ns", profile->io.per_packet_ns, 0, COST_NS_MAX);
    config_report_range(&report, "io.per_byte_fs", profile->io.per_byte_fs, 0, COST_FS_MAX);
    config_report_range(&report, "io.pattern_per_byte_fs", profile->io.pattern_per_byte_fs, 0, COST_FS_MAX);
    config_report_range(&report, "io.mac_per_byte_fs", profile->io.mac_per_byte_fs, 0, COST_FS_MAX);
    config_report_range(&report, "io.by_lane_per_packet_ns", profile->io.by_lane_per_packet_ns, 0,
                        COST_NS_MAX);
    config_report_range(&report, "io.by_lane_per_byte_fs", profile->io.by_lane_per_byte_fs, 0, COST_FS_MAX);
    config_report_range(&report, "io.limit_percent", profile->io.limit_percent, 1, 100);
    config_report_range(&report, "io.rest_max_ns", profile->io.rest_max_ns, 0, CORE_NS_PER_S);
    config_report_range(&report, "margins.in_ns", profile->margins.in_ns, 0, COST_NS_MAX);
    config_report_range(&report, "margins.out_ns", profile->margins.out_ns, 0, COST_NS_MAX);
    config_report_range(&report, "margins.percent", profile->margins.percent, 0, 100);
    config_report_range(&report, "margins.copies_ppm", profile->margins.copies_ppm, 0,
                        CONFIG_PROFILE_MARGIN_PPM);
    config_report_range(&report, "margins.kernels_ppm", profile->margins.kernels_ppm, 0,
                        CONFIG_PROFILE_MARGIN_PPM);
    /* a file that has no workers was given its 1 before; a struct may leave them out */
    config_report_range(&report, "workers", profile->workers, yaml ? 1 : 0, CONFIG_PROFILE_WORKERS_MAX);
    config_profile_gpus_check(&report, profile);
    return report.status;
}

core_status config_profile_check(const struct config_profile *profile, struct core_error *error)
{
    return profile_check(profile, NULL, error);
}

/* ---- loading ---- */

/* `part` (NULL: the file itself) is a mapping of the file. */
static bool key_present(struct config_yaml *yaml, const char *part, const char *key)
{
    const yaml_node_t *mapping = yaml_document_get_root_node(&yaml->document);
    if (part)
        mapping = config_yaml_find(yaml, mapping, part, strlen(part), NULL);
    return config_yaml_find(yaml, mapping, key, strlen(key), NULL);
}

static void defaults_fill(struct config_yaml *yaml, struct config_profile *profile)
{
    struct config_profile_margins *margins = &profile->margins;
    if (!key_present(yaml, NULL, "workers"))
        profile->workers = 1;
    if (!key_present(yaml, "cpu", "decrypt_more_percent"))
        profile->cpu.decrypt_more_percent = CONFIG_PROFILE_DECRYPT_MORE_PERCENT;
    if (!key_present(yaml, "io", "pattern_per_byte_fs"))
        profile->io.pattern_per_byte_fs = CONFIG_PROFILE_PATTERN_FS;
    if (!key_present(yaml, "io", "mac_per_byte_fs"))
        profile->io.mac_per_byte_fs = CONFIG_PROFILE_MAC_FS;
    if (!key_present(yaml, "io", "by_lane_per_packet_ns"))
        profile->io.by_lane_per_packet_ns = profile->io.per_packet_ns;
    if (!key_present(yaml, "io", "by_lane_per_byte_fs"))
        profile->io.by_lane_per_byte_fs = profile->io.per_byte_fs;
    if (margins->percent > 100)
        return; /* the check says so */
    if (!key_present(yaml, "margins", "copies_ppm"))
        margins->copies_ppm = margins->percent * PERCENT_PPM;
    if (!key_present(yaml, "margins", "kernels_ppm"))
        margins->kernels_ppm = margins->percent * PERCENT_PPM;
}

static void derive_audits(struct config_profile *profile)
{
    for (int i = 0; i < CORE_CIPHER_COUNT; i++) {
        profile->io.audit_per_piece_ns[i] = profile->cpu.per_piece_ns + profile->cpu.lane_ns[i];
        profile->io.audit_per_byte_fs[i] = profile->cpu.per_byte_fs[i];
    }
}

/* Closes the document. */
static core_status profile_from(struct config_yaml *yaml, struct config_profile **profile,
                                struct core_error *error)
{
    void *raw;
    core_status status = config_yaml_load(yaml, &profile_schema, &raw, error);

    if (status == CORE_OK) {
        struct config_profile *loaded = raw;
        defaults_fill(yaml, loaded);
        derive_audits(loaded);
        status = profile_check(loaded, yaml, error);
        if (status == CORE_OK)
            *profile = loaded;
        else
            config_profile_free(loaded);
    }
    config_yaml_close(yaml);
    return status;
}

core_status config_profile_load(const char *path, struct config_profile **profile, struct core_error *error)
{
    struct config_yaml *yaml;
    const core_status status = config_yaml_open(path, &yaml, error);

    return status == CORE_OK ? profile_from(yaml, profile, error) : status;
}

core_status config_profile_parse(const char *text, size_t bytes, const char *name,
                                 struct config_profile **profile, struct core_error *error)
{
    struct config_yaml *yaml;
    const core_status status = config_yaml_parse(text, bytes, name, &yaml, error);

    return status == CORE_OK ? profile_from(yaml, profile, error) : status;
}

core_status config_profile_copy(const struct config_profile *profile, struct config_profile **copy)
{
    struct config_profile *made = malloc(sizeof *made);

    if (!made)
        return CORE_NO_MEMORY;
    *made = *profile;
    made->name = strdup(profile->name);
    made->machine = strdup(profile->machine);
    made->measured = strdup(profile->measured);
    made->cpu.engine = strdup(profile->cpu.engine);
    const core_status status = config_profile_gpus_copy(profile, made);
    if (status != CORE_OK || !made->name || !made->machine || !made->measured || !made->cpu.engine) {
        config_profile_free(made);
        return CORE_NO_MEMORY;
    }
    *copy = made;
    return CORE_OK;
}

void config_profile_free(struct config_profile *profile)
{
    if (!profile)
        return;
    free(profile->name);
    free(profile->machine);
    free(profile->measured);
    free(profile->cpu.engine);
    config_profile_gpus_free(profile);
    free(profile);
}
