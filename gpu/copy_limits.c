#include "gpu/copy_limits.h"

#include "gpu/ask.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT_NS (60 * CORE_NS_PER_S)

const char *gpu_copy_pages_name(enum gpu_copy_pages pages)
{
    static const char *const names[GPU_COPY_PAGES] = {"driver", "small", "huge"};
    return names[pages];
}

static bool pages_parse(const char *name, enum gpu_copy_pages *pages)
{
    for (*pages = 0; *pages < GPU_COPY_PAGES; ++*pages)
        if (strcmp(name, gpu_copy_pages_name(*pages)) == 0)
            return true;
    return false;
}

bool gpu_copy_limits_parse(const char *line, struct gpu_copy_limits *limits)
{
    char text[160], name[8];
    snprintf(text, sizeof text, "%.*s", (int)strcspn(line, "\n"), line);
    const int found =
        sscanf(text, "%7[a-z]\t%18" SCNd64 "\t%18" SCNd64 "\t%18" SCNd64 "\t%18" SCNd64 "\t%18" SCNd64, name,
               &limits->up, &limits->down, &limits->up_beside, &limits->down_beside, &limits->pin_ns);
    return found == 6 && pages_parse(name, &limits->pages) && limits->up > 0 && limits->down > 0 &&
           limits->up_beside > 0 && limits->down_beside > 0 && limits->pin_ns >= 0;
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
