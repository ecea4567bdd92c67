#include "bench/gpu/journal.h"

#include <string.h>
#include <unistd.h>

#define KEY_BYTES  256
#define COUNT_MOST 1000 /* of a series in a record */

struct record {
    char key[KEY_BYTES];
    struct gpu_nvml_health health;
    uint32_t counts[BENCH_GPU_JOURNAL_SERIES]; /* of values that follow, series by series */
};

core_status bench_gpu_journal_open(struct bench_gpu_journal *journal, const char *path, core_ns end_ns,
                                   struct core_error *error)
{
    *journal = (struct bench_gpu_journal){.file = fopen(path, "a+be"), .end_ns = end_ns};
    if (journal->file == NULL)
        return core_error_errno(error, "%s can not be opened", path);
    rewind(journal->file);
    return CORE_OK;
}

void bench_gpu_journal_close(struct bench_gpu_journal *journal)
{
    if (journal->file != NULL)
        (void)fclose(journal->file);
    *journal = (struct bench_gpu_journal){0};
}

/* All of the values or none. */
static bool values_read(FILE *file, const struct record *record,
                        struct bench_samples *series[BENCH_GPU_JOURNAL_SERIES])
{
    double values[BENCH_GPU_JOURNAL_SERIES][COUNT_MOST];
    for (int i = 0; i < BENCH_GPU_JOURNAL_SERIES; i++)
        if (record->counts[i] > COUNT_MOST ||
            fread(values[i], sizeof values[i][0], record->counts[i], file) != record->counts[i])
            return false;
    for (int i = 0; i < BENCH_GPU_JOURNAL_SERIES; i++)
        for (uint32_t j = 0; j < record->counts[i]; j++)
            bench_samples_add(series[i], values[i][j]);
    return true;
}

/* What is behind the last whole record is cut off. */
static core_status end_of_records(struct bench_gpu_journal *journal, long at, struct core_error *error)
{
    journal->all_read = true;
    if (fseek(journal->file, at, SEEK_SET) == 0 && ftruncate(fileno(journal->file), at) == 0)
        return CORE_NOT_FOUND;
    return core_error_errno(error, "the journal can not be cut off at %ld bytes", at);
}

core_status bench_gpu_journal_take(struct bench_gpu_journal *journal, const char *key,
                                   struct bench_samples *series[BENCH_GPU_JOURNAL_SERIES],
                                   struct gpu_nvml_health *health, struct core_error *error)
{
    struct record record;
    const long at = ftell(journal->file);
    core_status status = CORE_NOT_FOUND;
    if (!journal->all_read && fread(&record, sizeof record, 1, journal->file) == 1) {
        if (strncmp(record.key, key, sizeof record.key - 1) != 0)
            return core_error_set(error, CORE_MISMATCH,
                                  "the journal is of another calibration (%.*s, not %s): remove it",
                                  KEY_BYTES, record.key, key);
        *health = record.health;
        if (values_read(journal->file, &record, series))
            return CORE_OK;
    }
    if (!journal->all_read)
        status = end_of_records(journal, at, error);
    return status == CORE_NOT_FOUND && journal->measured && core_time_now_ns() >= journal->end_ns
               ? core_error_set(error, CORE_AGAIN, "this part's time is up; the same command goes on")
               : status;
}

core_status bench_gpu_journal_put(struct bench_gpu_journal *journal, const char *key,
                                  struct bench_samples *const series[BENCH_GPU_JOURNAL_SERIES],
                                  const uint32_t first[BENCH_GPU_JOURNAL_SERIES],
                                  const struct gpu_nvml_health *health, struct core_error *error)
{
    struct record record = {.health = *health};
    bool written = true;
    strncpy(record.key, key, sizeof record.key - 1);
    for (int i = 0; i < BENCH_GPU_JOURNAL_SERIES; i++)
        record.counts[i] = series[i]->count - first[i];
    written = fwrite(&record, sizeof record, 1, journal->file) == 1;
    for (int i = 0; i < BENCH_GPU_JOURNAL_SERIES && written; i++)
        written = fwrite(series[i]->values + first[i], sizeof(double), record.counts[i], journal->file) ==
                  record.counts[i];
    journal->measured = true;
    if (!written || fflush(journal->file) != 0)
        return core_error_errno(error, "the journal can not be written");
    return CORE_OK;
}
