#include "inputgen/churn_watch.h"

#include "client/command.h"
#include "inputgen/replay_process.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_EVERY_NS (100 * CORE_NS_PER_MS)
#define PATIENCE_MS   5000

/* ---- the server's document ---- */

/* Figures that a sample takes over as they are. */
static const struct figure {
    const char *column;
    const char *object, *member; /* object: members with dots between them */
} figures[] = {
    {"streams", "totals", "streams"},
    {"opened", "totals", "opened"},
    {"refused", "totals", "refused"},
    {"packets", "totals", "packets"},
    {"met", "totals", "met"},
    {"missed", "totals", "missed"},
    {"diverted", "totals", "diverted"},
    {"diverted_late", "totals", "diverted_late"},
    {"guaranteed", "totals", "guaranteed"},
    {"guaranteed_missed", "totals", "guaranteed_missed"},
    {"lost", "totals", "lost"},
    {"errors", "totals", "errors"},
    {"corrupt", "totals", "corrupt"},
    {"latency_p50_us", "totals.latency_us", "p50"},
    {"latency_p99_us", "totals.latency_us", "p99"},
    {"latency_p99_99_us", "totals.latency_us", "p99_99"},
    {"latency_max_us", "totals.latency_us", "max"},
    {"slack_min_us", "totals.slack_us", "min"},
    {"slack_p1_us", "totals.slack_us", "p1"},
    {"slack_p50_us", "totals.slack_us", "p50"},
    {"admission_p50_us", "totals.admission_us", "p50"},
    {"admission_p99_us", "totals.admission_us", "p99"},
    {"admission_max_us", "totals.admission_us", "max"},
};
#define FIGURES (sizeof figures / sizeof figures[0])

/* NULL: the document has no such object. */
static const json_t *object_at(const json_t *root, const char *path)
{
    char name[32];
    while (root && *path) {
        size_t length = strcspn(path, ".");
        (void)snprintf(name, sizeof name, "%.*s", (int)length, path);
        root = json_object_get(root, name);
        path += length + (path[length] == '.');
    }
    return root;
}

static double number_at(const json_t *root, const char *object, const char *member)
{
    return json_number_value(json_object_get(object_at(root, object), member));
}

static core_ns us_at(const json_t *root, const char *object, const char *member)
{
    return (core_ns)(number_at(root, object, member) * 1e3);
}

/* ---- a look ---- */

static void look_at_gpu(struct inputgen_watch_gpu *gpu, const json_t *object, bool first)
{
    core_ns period_ns = us_at(object, "", "period_us");
    uint64_t faults = (uint64_t)number_at(object, "", "faults");
    uint64_t restarts = (uint64_t)number_at(object, "", "restarts");
    uint64_t changes = (uint64_t)number_at(object, "", "period_changes");
    if (first) {
        gpu->faults_before = faults;
        gpu->restarts_before = restarts;
        gpu->changes_before = changes;
    }
    gpu->faults = faults - gpu->faults_before;
    gpu->restarts = restarts - gpu->restarts_before;
    gpu->changes = changes - gpu->changes_before;
    const char *state = json_string_value(json_object_get(object, "state"));
    gpu->process = (pid_t)number_at(object, "", "process");
    gpu->up = state && strcmp(state, "up") == 0;
    if (period_ns == 0)
        return;
    gpu->period_ns = period_ns;
    if (gpu->shortest_ns == 0 || period_ns < gpu->shortest_ns)
        gpu->shortest_ns = period_ns;
    if (period_ns > gpu->longest_ns)
        gpu->longest_ns = period_ns;
}

static double largest_share(const json_t *units, const char *member)
{
    double largest = 0;
    for (size_t at = 0; at < json_array_size(units); at++) {
        double share = number_at(json_array_get(units, at), "", member);
        if (share > largest)
            largest = share;
    }
    return largest;
}

static void document_take(struct inputgen_watch *watch, const json_t *root)
{
    const json_t *gpus = json_object_get(root, "gpus");
    bool first = watch->looks == 0;
    watch->streams = (uint64_t)number_at(root, "totals", "streams");
    watch->held_back = largest_share(json_object_get(root, "units"), "held_back");
    watch->gpu_count = json_array_size(gpus);
    if (watch->gpu_count > INPUTGEN_WATCH_GPUS)
        watch->gpu_count = INPUTGEN_WATCH_GPUS;
    for (size_t at = 0; at < watch->gpu_count; at++)
        look_at_gpu(&watch->gpus[at], json_array_get(gpus, at), first);
    watch->looks++;
}

static core_status document_get(const char *admin, json_t **root, struct core_error *error)
{
    char *body;
    size_t bytes;
    json_error_t why;
    core_status status = command_http_get(admin, "/status", PATIENCE_MS, &body, &bytes, error);
    if (status != CORE_OK)
        return status;
    *root = json_loadb(body, bytes, 0, &why);
    free(body);
    if (json_is_object(*root))
        return CORE_OK;
    json_decref(*root);
    return core_error_set(error, CORE_INVALID, "%s/status is no JSON object: %s", admin, why.text);
}

/* ---- a sample ---- */

void inputgen_watch_head(FILE *file)
{
    (void)fputs("seconds", file);
    for (size_t at = 0; at < FIGURES; at++)
        (void)fprintf(file, ",%s", figures[at].column);
    (void)fputs(",server_bytes,server_descriptors,server_threads,cards,card_faults,card_restarts,card_bytes,"
                "card_descriptors,card_threads,period_us,period_changes,generator_bytes\n",
                file);
}

/* Empty where it is not known. */
static void print_known(FILE *file, int64_t value)
{
    if (value < 0)
        (void)fputc(',', file);
    else
        (void)fprintf(file, ",%" PRId64, value);
}

static void print_process(FILE *file, pid_t process)
{
    print_known(file, inputgen_process_resident_bytes(process));
    print_known(file, inputgen_process_descriptors(process));
    print_known(file, inputgen_process_threads(process));
}

/* Of all cards together; nothing while one is being started again, whose process is not yet what it will be.
 */
static int64_t sum_cards(const struct inputgen_watch *watch, int64_t (*of_process)(pid_t))
{
    int64_t sum = 0;
    for (size_t at = 0; at < watch->gpu_count; at++) {
        int64_t value = watch->gpus[at].up ? of_process(watch->gpus[at].process) : 0;
        if (value <= 0)
            return 0;
        sum += value;
    }
    return sum;
}

static void print_cards(FILE *file, const struct inputgen_watch *watch)
{
    int64_t processes = 0;
    uint64_t faults = 0, restarts = 0, changes = 0;
    for (size_t at = 0; at < watch->gpu_count; at++) {
        const struct inputgen_watch_gpu *gpu = &watch->gpus[at];
        processes += gpu->process > 0;
        faults += gpu->faults;
        restarts += gpu->restarts;
        changes += gpu->changes;
    }
    (void)fprintf(file, ",%" PRId64 ",%" PRIu64 ",%" PRIu64 ",%" PRId64 ",%" PRId64 ",%" PRId64, processes,
                  faults, restarts, sum_cards(watch, inputgen_process_resident_bytes),
                  sum_cards(watch, inputgen_process_descriptors), sum_cards(watch, inputgen_process_threads));
    (void)fprintf(file, ",%.1f,%" PRIu64, watch->gpu_count ? (double)watch->gpus[0].period_ns / 1e3 : 0.0,
                  changes);
}

static void sample(struct inputgen_watch *watch, const json_t *root, core_ns now_ns)
{
    FILE *file = watch->samples;
    (void)fprintf(file, "%.1f", (double)(now_ns - watch->start_ns) / 1e9);
    for (size_t at = 0; at < FIGURES; at++)
        (void)fprintf(file, ",%.17g", number_at(root, figures[at].object, figures[at].member));
    print_process(file, watch->server);
    print_cards(file, watch);
    print_known(file, inputgen_process_resident_bytes(getpid()));
    (void)fputc('\n', file);
    (void)fflush(file);
}

/* ---- when ---- */

static core_status look(struct inputgen_watch *watch, core_ns now_ns, bool with_sample,
                        struct core_error *error)
{
    json_t *root;
    core_status status = document_get(watch->admin, &root, error);
    if (status != CORE_OK) {
        if (watch->failures++ == 0)
            memcpy(watch->failure, error->text, sizeof watch->failure);
        return status;
    }
    if (watch->start_ns == 0)
        watch->start_ns = now_ns;
    document_take(watch, root);
    if (with_sample && watch->samples)
        sample(watch, root, now_ns);
    json_decref(root);
    return CORE_OK;
}

void inputgen_watch_look(struct inputgen_watch *watch, core_ns now_ns)
{
    struct core_error error;
    if (!watch->admin || now_ns < watch->next_look_ns)
        return;
    bool with_sample = now_ns >= watch->next_sample_ns;
    if (with_sample)
        watch->next_sample_ns = now_ns + watch->sample_every_ns;
    (void)!look(watch, now_ns, with_sample, &error); /* counted there */
    watch->next_look_ns = core_time_now_ns() + LOOK_EVERY_NS;
}

core_status inputgen_watch_now(struct inputgen_watch *watch, struct core_error *error)
{
    return watch->admin ? look(watch, core_time_now_ns(), true, error) : CORE_OK;
}

/* The first card that is out of service, or gpu_count. */
static size_t card_down(const struct inputgen_watch *watch)
{
    size_t at = 0;
    while (at < watch->gpu_count && watch->gpus[at].up)
        at++;
    return at;
}

core_status inputgen_watch_await_idle(struct inputgen_watch *watch, int timeout_ms, struct core_error *error)
{
    core_ns end_ns = core_time_now_ns() + timeout_ms * CORE_NS_PER_MS;
    if (!watch->admin)
        return CORE_OK;
    for (;;) {
        core_ns now_ns = core_time_now_ns();
        core_status status = look(watch, now_ns, false, error);
        size_t down = card_down(watch);
        if (status != CORE_OK || (watch->streams == 0 && down == watch->gpu_count))
            return status;
        if (now_ns >= end_ns && watch->streams > 0)
            return core_error_set(error, CORE_TIMEOUT, "the server still has %" PRIu64 " streams after %d ms",
                                  watch->streams, timeout_ms);
        if (now_ns >= end_ns)
            return core_error_set(error, CORE_TIMEOUT, "GPU %zu is still out of service after %d ms", down,
                                  timeout_ms);
        core_time_sleep_until(now_ns + LOOK_EVERY_NS);
    }
}

core_status inputgen_watch_await_calm(struct inputgen_watch *watch, int patience_ms, struct core_error *error)
{
    core_ns end_ns = core_time_now_ns() + patience_ms * CORE_NS_PER_MS;
    if (!watch->admin)
        return CORE_OK;
    for (;;) {
        core_ns now_ns = core_time_now_ns();
        core_status status = look(watch, now_ns, false, error);
        if (status != CORE_OK || watch->held_back == 0 || now_ns >= end_ns)
            return status;
        core_time_sleep_until(now_ns + LOOK_EVERY_NS);
    }
}
