#include "config/profile_gpu.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define INT_FIELD(structure, member)  CYAML_FIELD_INT(#member, CYAML_FLAG_DEFAULT, structure, member)
#define UINT_FIELD(structure, member) CYAML_FIELD_UINT(#member, CYAML_FLAG_DEFAULT, structure, member)

static const cyaml_schema_field_t copy_fields[] = {
    UINT_FIELD(struct config_profile_copy, bytes),       INT_FIELD(struct config_profile_copy, up_ns),
    INT_FIELD(struct config_profile_copy, down_ns),      INT_FIELD(struct config_profile_copy, up_busy_ns),
    INT_FIELD(struct config_profile_copy, down_busy_ns), CYAML_FIELD_END,
};
static const cyaml_schema_value_t copy_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct config_profile_copy, copy_fields),
};

static const cyaml_schema_field_t utilisation_fields[] = {
    UINT_FIELD(struct config_profile_utilisation, jobs),
    UINT_FIELD(struct config_profile_utilisation, share_ppm),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t utilisation_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct config_profile_utilisation, utilisation_fields),
};

static const cyaml_schema_field_t gpu_fields[] = {
    CYAML_FIELD_STRING_PTR("name", CYAML_FLAG_POINTER, struct config_profile_gpu, name, 1,
                           CONFIG_PROFILE_TEXT_BYTES_MAX),
    CYAML_FIELD_STRING_PTR("kernel", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct config_profile_gpu,
                           kernel, 1, CONFIG_PROFILE_TEXT_BYTES_MAX),
    UINT_FIELD(struct config_profile_gpu, count),
    UINT_FIELD(struct config_profile_gpu, sms),
    UINT_FIELD(struct config_profile_gpu, copy_engines),
    UINT_FIELD(struct config_profile_gpu, memory_bytes),
    INT_FIELD(struct config_profile_gpu, sm_bytes_per_s),
    INT_FIELD(struct config_profile_gpu, launch_ns),
    UINT_FIELD(struct config_profile_gpu, job_bytes),
    CYAML_FIELD_INT("host_batch_ns", CYAML_FLAG_OPTIONAL, struct config_profile_gpu, host_batch_ns),
    CYAML_FIELD_INT("host_packet_ns", CYAML_FLAG_OPTIONAL, struct config_profile_gpu, host_packet_ns),
    CYAML_FIELD_SEQUENCE_COUNT("copies", CYAML_FLAG_POINTER, struct config_profile_gpu, copies, copy_count,
                               &copy_schema, 1, CONFIG_PROFILE_COPY_ROWS_MAX),
    CYAML_FIELD_SEQUENCE_COUNT("utilisation", CYAML_FLAG_POINTER, struct config_profile_gpu, utilisation,
                               utilisation_count, &utilisation_schema, 1,
                               CONFIG_PROFILE_UTILISATION_ROWS_MAX),
    CYAML_FIELD_END,
};

const cyaml_schema_value_t config_profile_gpu_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct config_profile_gpu, gpu_fields),
};

/* ---- checks ---- */

/* `value` may use the 64th bit, which no range here reaches. */
static void unsigned_check(struct config_report *report, struct config_path path, uint64_t value,
                           uint64_t low, uint64_t high)
{
    if (value < low || value > high)
        config_report_invalid(report, path.text, "%" PRIu64 " is out of range; give %" PRIu64 " to %" PRIu64,
                              value, low, high);
}

static void signed_check(struct config_report *report, struct config_path path, int64_t value, int64_t low,
                         int64_t high)
{
    config_report_range(report, path.text, value, low, high);
}

/* One direction in one row of a transfer table. */
struct column {
    const char *alone, *busy; /* their keys */
    core_ns alone_ns, busy_ns;
};

static void column_check(struct config_report *report, const char *row, const struct column *column)
{
    signed_check(report, config_path("%s.%s", row, column->alone), column->alone_ns, 1,
                 CONFIG_PROFILE_COPY_NS_MAX);
    signed_check(report, config_path("%s.%s", row, column->busy), column->busy_ns, 1,
                 CONFIG_PROFILE_COPY_NS_MAX);
    if (column->busy_ns < column->alone_ns)
        config_report_invalid(report, config_path("%s.%s", row, column->busy).text,
                              "%" PRId64 " is shorter than %s, %" PRId64
                              "; a copy is never faster on a busy bus",
                              column->busy_ns, column->alone, column->alone_ns);
}

static void rise_check(struct config_report *report, struct config_path path, core_ns value_ns,
                       core_ns before_ns)
{
    if (value_ns < before_ns)
        config_report_invalid(report, path.text,
                              "%" PRId64 " is shorter than %" PRId64
                              " for fewer bytes; no time may fall from one row to the next",
                              value_ns, before_ns);
}

static void copy_check(struct config_report *report, const char *row, const struct config_profile_copy *copy,
                       const struct config_profile_copy *before)
{
    const struct column up = {"up_ns", "up_busy_ns", copy->up_ns, copy->up_busy_ns};
    const struct column down = {"down_ns", "down_busy_ns", copy->down_ns, copy->down_busy_ns};

    unsigned_check(report, config_path("%s.bytes", row), copy->bytes, 1, CONFIG_PROFILE_COPY_BYTES_MAX);
    column_check(report, row, &up);
    column_check(report, row, &down);
    if (!before)
        return;
    if (copy->bytes <= before->bytes)
        config_report_invalid(report, config_path("%s.bytes", row).text,
                              "%" PRIu64 " does not rise above %" PRIu64
                              "; sort the rows and give each size once",
                              copy->bytes, before->bytes);
    rise_check(report, config_path("%s.up_ns", row), copy->up_ns, before->up_ns);
    rise_check(report, config_path("%s.down_ns", row), copy->down_ns, before->down_ns);
    rise_check(report, config_path("%s.up_busy_ns", row), copy->up_busy_ns, before->up_busy_ns);
    rise_check(report, config_path("%s.down_busy_ns", row), copy->down_busy_ns, before->down_busy_ns);
}

static void copies_check(struct config_report *report, const char *card, const struct config_profile_gpu *gpu)
{
    if (!gpu->copies || gpu->copy_count < 1 || gpu->copy_count > CONFIG_PROFILE_COPY_ROWS_MAX) {
        config_report_invalid(report, config_path("%s.copies", card).text, "needs 1 to %d rows",
                              CONFIG_PROFILE_COPY_ROWS_MAX);
        return;
    }
    for (uint32_t i = 0; i < gpu->copy_count && report->status == CORE_OK; i++)
        copy_check(report, config_path("%s.copies[%" PRIu32 "]", card, i).text, &gpu->copies[i],
                   i > 0 ? &gpu->copies[i - 1] : NULL);
}

static void utilisation_check(struct config_report *report, const char *card,
                              const struct config_profile_gpu *gpu)
{
    const struct config_profile_utilisation *rows = gpu->utilisation;

    if (!rows || gpu->utilisation_count < 1 || gpu->utilisation_count > CONFIG_PROFILE_UTILISATION_ROWS_MAX) {
        config_report_invalid(report, config_path("%s.utilisation", card).text, "needs 1 to %d rows",
                              CONFIG_PROFILE_UTILISATION_ROWS_MAX);
        return;
    }
    if (rows[0].jobs != 1)
        config_report_invalid(report, config_path("%s.utilisation[0].jobs", card).text,
                              "%" PRIu32 " is not 1; the first row tells what one job alone reaches",
                              rows[0].jobs);
    for (uint32_t i = 0; i < gpu->utilisation_count && report->status == CORE_OK; i++) {
        const struct config_path row = config_path("%s.utilisation[%" PRIu32 "]", card, i);
        unsigned_check(report, config_path("%s.jobs", row.text), rows[i].jobs, 1, CONFIG_PROFILE_JOBS_MAX);
        unsigned_check(report, config_path("%s.share_ppm", row.text), rows[i].share_ppm, 1,
                       CONFIG_PROFILE_SHARE_PPM);
        if (i > 0 && rows[i].jobs <= rows[i - 1].jobs)
            config_report_invalid(report, config_path("%s.jobs", row.text).text,
                                  "%" PRIu32 " does not rise above %" PRIu32
                                  "; sort the rows and give each number once",
                                  rows[i].jobs, rows[i - 1].jobs);
    }
}

static void gpu_check(struct config_report *report, const char *card, const struct config_profile_gpu *gpu)
{
    config_profile_text_check(report, config_path("%s.name", card).text, gpu->name);
    if (gpu->kernel && strcmp(gpu->kernel, "whole") != 0 && strcmp(gpu->kernel, "quad") != 0)
        config_report_invalid(report, config_path("%s.kernel", card).text,
                              "'%.40s' is no form of the kernel; give whole or quad, or leave it out",
                              gpu->kernel);
    unsigned_check(report, config_path("%s.count", card), gpu->count, 1, CONFIG_PROFILE_GPU_COUNT_MAX);
    unsigned_check(report, config_path("%s.sms", card), gpu->sms, 1, CONFIG_PROFILE_SMS_MAX);
    unsigned_check(report, config_path("%s.copy_engines", card), gpu->copy_engines, 1, 2);
    unsigned_check(report, config_path("%s.memory_bytes", card), gpu->memory_bytes, 1,
                   CONFIG_PROFILE_MEMORY_BYTES_MAX);
    signed_check(report, config_path("%s.sm_bytes_per_s", card), gpu->sm_bytes_per_s, 1,
                 CONFIG_PROFILE_SM_RATE_MAX);
    signed_check(report, config_path("%s.launch_ns", card), gpu->launch_ns, 0, CORE_NS_PER_S);
    unsigned_check(report, config_path("%s.job_bytes", card), gpu->job_bytes, 0,
                   CONFIG_PROFILE_GPU_JOB_BYTES_MAX);
    signed_check(report, config_path("%s.host_batch_ns", card), gpu->host_batch_ns, 0, CORE_NS_PER_S);
    signed_check(report, config_path("%s.host_packet_ns", card), gpu->host_packet_ns, 0, CORE_NS_PER_MS);
    copies_check(report, card, gpu);
    utilisation_check(report, card, gpu);
}

static void names_check(struct config_report *report, const struct config_profile *profile)
{
    for (uint32_t i = 1; i < profile->gpu_count && report->status == CORE_OK; i++)
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(profile->gpus[i].name, profile->gpus[j].name) == 0)
                config_report_invalid(report, config_path("gpus[%" PRIu32 "].name", i).text,
                                      "'%.40s' is given twice; raise the other's count or rename one",
                                      profile->gpus[i].name);
}

void config_profile_gpus_check(struct config_report *report, const struct config_profile *profile)
{
    unsigned_check(report, config_path("pinned_bytes"), profile->pinned_bytes, 0,
                   CONFIG_PROFILE_MEMORY_BYTES_MAX);
    if (profile->gpu_count > CONFIG_PROFILE_GPU_KINDS_MAX || !profile->gpus != !profile->gpu_count) {
        config_report_invalid(report, "gpus", "needs 1 to %d kinds of cards, or none",
                              CONFIG_PROFILE_GPU_KINDS_MAX);
        return;
    }
    for (uint32_t i = 0; i < profile->gpu_count; i++)
        gpu_check(report, config_path("gpus[%" PRIu32 "]", i).text, &profile->gpus[i]);
    if (profile->gpu_count > 0 && profile->pinned_bytes == 0)
        config_report_invalid(report, "gpus", "need pinned_bytes, the host memory for their batches; add it");
    names_check(report, profile);
}

/* ---- copies ---- */

/* `count` elements; NULL for none, and where memory is short. */
static void *array_copy(const void *from, uint32_t count, size_t bytes)
{
    void *to = count > 0 ? calloc(count, bytes) : NULL;

    if (to)
        memcpy(to, from, count * bytes);
    return to;
}

static core_status gpu_copy(struct config_profile_gpu *gpu)
{
    const bool has_kernel = gpu->kernel != NULL;
    gpu->name = strdup(gpu->name);
    gpu->kernel = has_kernel ? strdup(gpu->kernel) : NULL;
    gpu->copies = array_copy(gpu->copies, gpu->copy_count, sizeof *gpu->copies);
    gpu->utilisation = array_copy(gpu->utilisation, gpu->utilisation_count, sizeof *gpu->utilisation);
    return gpu->name && !gpu->kernel == !has_kernel && gpu->copies && gpu->utilisation ? CORE_OK
                                                                                       : CORE_NO_MEMORY;
}

core_status config_profile_gpus_copy(const struct config_profile *profile, struct config_profile *copy)
{
    core_status status = CORE_OK;

    copy->gpus = array_copy(profile->gpus, profile->gpu_count, sizeof *profile->gpus);
    copy->gpu_count = copy->gpus ? profile->gpu_count : 0;
    if (copy->gpu_count != profile->gpu_count)
        return CORE_NO_MEMORY;
    for (uint32_t i = 0; i < copy->gpu_count; i++) /* all of them: none may point into the original */
        if (gpu_copy(&copy->gpus[i]) != CORE_OK)
            status = CORE_NO_MEMORY;
    return status;
}

static void kind_free(struct config_profile_gpu *kind)
{
    free(kind->name);
    free(kind->kernel);
    free(kind->copies);
    free(kind->utilisation);
}

void config_profile_gpus_free(struct config_profile *profile)
{
    for (uint32_t i = 0; profile->gpus && i < profile->gpu_count; i++)
        kind_free(&profile->gpus[i]);
    free(profile->gpus);
}

void config_profile_keep_gpus(struct config_profile *profile, const uint32_t *count)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < profile->gpu_count; i++) {
        if (count[i] == 0) {
            kind_free(&profile->gpus[i]);
            continue;
        }
        profile->gpus[kept] = profile->gpus[i];
        profile->gpus[kept++].count = count[i];
    }
    profile->gpu_count = kept;
    if (kept == 0) {
        free(profile->gpus);
        profile->gpus = NULL;
        profile->pinned_bytes = 0;
    }
}
