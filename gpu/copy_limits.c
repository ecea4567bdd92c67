#include "gpu/copy_limits.h"

#include "gpu/ask.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT_NS (60 * CORE_NS_PER_S)

const char *gpu_copy_pages_name(enum gpu_copy_pages pages)
{
    static const char *const names[GPU_COPY_PAGES] = {"driver", "small", "huge"};
    return names[pages];
}

static bool pages_parse(const char *name, size_t bytes, enum gpu_copy_pages *pages)
{
    for (*pages = 0; *pages < GPU_COPY_PAGES; ++*pages)
        if (strlen(gpu_copy_pages_name(*pages)) == bytes &&
            memcmp(name, gpu_copy_pages_name(*pages), bytes) == 0)
            return true;
    return false;
}

/* "\tN", which is passed; false: it is not so, or N is less than `least` or too large. */
static bool figure_read(const char **at, int64_t least, int64_t *value)
{
    char *end;
    if ((*at)[0] != '\t' || (*at)[1] < '0' || (*at)[1] > '9')
        return false;
    errno = 0;
    *value = strtoll(*at + 1, &end, 10);
    *at = end;
    return errno == 0 && *value >= least;
}

bool gpu_copy_limits_parse(const char *line, struct gpu_copy_limits *limits)
{
    const size_t name_bytes = strcspn(line, "\t\n");
    const char *at = line + name_bytes;
    return pages_parse(line, name_bytes, &limits->pages) && figure_read(&at, 1, &limits->up) &&
           figure_read(&at, 1, &limits->down) && figure_read(&at, 1, &limits->up_beside) &&
           figure_read(&at, 1, &limits->down_beside) && figure_read(&at, 0, &limits->pin_ns) &&
           (*at == '\n' || *at == '\0');
}

void gpu_copy_limits_print(const struct gpu_copy_limits *limits, uint32_t count, FILE *to)
{
    fprintf(to, "pages\tup B/s\tdown B/s\tup beside down\tdown beside up\tpinning ns/MiB\n");
    for (uint32_t i = 0; i < count; i++)
        fprintf(to, "%s\t%" PRId64 "\t%" PRId64 "\t%" PRId64 "\t%" PRId64 "\t%" PRId64 "\n",
                gpu_copy_pages_name(limits[i].pages), limits[i].up, limits[i].down, limits[i].up_beside,
                limits[i].down_beside, limits[i].pin_ns);
}

core_status gpu_copy_limits_run(const char *program, const char *backend, uint32_t index, uint64_t bytes,
                                struct gpu_copy_limits limits[GPU_COPY_PAGES], uint32_t *count,
                                struct core_error *error)
{
    char device[16], size[24], *answer;
    char *const arguments[] = {"millrace-gpu",  "--copies", size,   "--backend",
                               (char *)backend, "--device", device, NULL};
    const struct gpu_question question = {.program = program, .arguments = arguments, .limit_ns = LIMIT_NS};

    snprintf(device, sizeof device, "%" PRIu32, index);
    snprintf(size, sizeof size, "%" PRIu64, bytes);
    *count = 0;
    const core_status status = gpu_ask(&question, &answer, error);
    for (const char *line = answer, *end; status == CORE_OK && *line != '\0';
         line = *end == '\0' ? end : end + 1) {
        end = strchrnul(line, '\n');
        *count += *count < GPU_COPY_PAGES && gpu_copy_limits_parse(line, &limits[*count]);
    }
    free(answer);
    return status;
}
