/* millrace status: the server's own JSON as tables. A figure that the server does not send shows as "-". */
#include "client/command.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
    const char *admin;
    int timeout_ms;
    bool streams, pool;
};

enum { OPTION_TIMEOUT = 0x100, OPTION_POOL };

static const struct argp_option option_table[] = {
    {"admin", 'a', "ADDRESS", 0, "the server's admin socket, unix:/path or tcp:host:port [$MILLRACE_ADMIN]",
     0},
    {"streams", 'S', NULL, 0, "list every stream too", 0},
    {"pool", OPTION_POOL, NULL, 0,
     "a line for each of several servers; --admin: their addresses, separated by commas", 0},
    {"json", 'j', NULL, 0, "print the document as it came, or an error; with --pool an array of them", 0},
    {"timeout", OPTION_TIMEOUT, "TIME", 0, "give up after this long [10s]", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case 'a':
        options->admin = argument;
        return 0;
    case 'S':
        options->streams = true;
        return 0;
    case 'j':
        command_want_json();
        return 0;
    case OPTION_POOL:
        options->pool = true;
        return 0;
    case OPTION_TIMEOUT:
        options->timeout_ms = (int)(core_options_duration(state, "timeout", argument, CORE_NS_PER_S,
                                                          CORE_NS_PER_MS, 86400 * CORE_NS_PER_S) /
                                    CORE_NS_PER_MS);
        return 0;
    case ARGP_KEY_END:
        if (options->pool && options->streams)
            argp_error(state, "--streams is for one server");
        if (options->admin == NULL)
            argp_error(state, "give --admin, the address under `admin:` in the server's configuration");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = option_table,
    .parser = parse,
    .doc = "Shows what the server's admin socket says under /status."
           "\v" COMMAND_EXIT_HELP,
};

/* ---- figures ---- */

enum form { COUNT, BYTES, MICROSECONDS, PROMISE /* microseconds; 0: there is none now */, SHARE, TEXT };

static void format_figure(const json_t *value, enum form form, char text[CORE_TEXT_BYTES])
{
    double number = json_number_value(value);
    snprintf(text, CORE_TEXT_BYTES, "-");
    if (form == TEXT && json_is_string(value))
        snprintf(text, CORE_TEXT_BYTES, "%s", json_string_value(value));
    else if (json_is_integer(value) && (form == COUNT || form == TEXT))
        snprintf(text, CORE_TEXT_BYTES, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (!json_is_number(value) || form == TEXT || (form == PROMISE && number <= 0))
        return;
    else if (form == BYTES)
        core_bytes_format(number, text);
    else if ((form == MICROSECONDS || form == PROMISE) && fabs(number) < 9e15)
        core_duration_format((core_ns)(number * 1e3), text);
    else if (form == SHARE)
        snprintf(text, CORE_TEXT_BYTES, "%.1f %%", 100 * number);
    else
        snprintf(text, CORE_TEXT_BYTES, "%.0f", number);
}

struct column {
    const char *key; /* "a.b": member b of member a */
    const char *title;
    enum form form;
};

static const json_t *find(const json_t *object, const char *key)
{
    char first[32];
    const char *dot = strchr(key, '.');
    if (dot == NULL || (size_t)(dot - key) >= sizeof first)
        return json_object_get(object, key);
    snprintf(first, sizeof first, "%.*s", (int)(dot - key), key);
    return json_object_get(json_object_get(object, first), dot + 1);
}

static void print_cell(const char *text, const struct column *column)
{
    int width = (int)strlen(column->title);
    printf("  %*s", width > 10 ? width : 10, text);
}

/* One line for each member of the array; nothing if there is no such array. */
static void print_table(const json_t *rows, const char *title, const struct column *columns, size_t count)
{
    size_t index;
    const json_t *row;
    char text[CORE_TEXT_BYTES];
    if (!json_is_array(rows))
        return;
    printf("\n%-10s", title);
    for (size_t i = 0; i < count; i++)
        print_cell(columns[i].title, &columns[i]);
    putchar('\n');
    json_array_foreach(rows, index, row)
    {
        printf("%-10zu", index);
        for (size_t i = 0; i < count; i++) {
            format_figure(find(row, columns[i].key), columns[i].form, text);
            print_cell(text, &columns[i]);
        }
        putchar('\n');
    }
}

/* "title: value name, value name" for the keys of one object. */
static void print_line(const json_t *object, const char *title, const struct column *columns, size_t count)
{
    char text[CORE_TEXT_BYTES];
    printf("%-10s", title);
    for (size_t i = 0; i < count; i++) {
        format_figure(find(object, columns[i].key), columns[i].form, text);
        printf("%s%s %s", i > 0 ? ", " : "", columns[i].title, text);
    }
    putchar('\n');
}

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

static const struct column totals_now[] = {
    {"connections", "connections", COUNT}, {"streams", "streams", COUNT}, {"opened", "opened", COUNT},
    {"modified", "modified", COUNT},       {"refused", "refused", COUNT}, {"idled", "closed as idle", COUNT},
    {"errors", "protocol errors", COUNT}};
static const struct column totals_packets[] = {{"packets", "encrypted", COUNT},
                                               {"bytes", "in all", BYTES},
                                               {"policed", "came early", COUNT},
                                               {"rejected", "rejected", COUNT},
                                               {"lost", "lost", COUNT}};
static const struct column totals_deadlines[] = {{"met", "met", COUNT},
                                                 {"missed", "missed", COUNT},
                                                 {"diverted_late", "by a GPU fault", COUNT},
                                                 {"guaranteed_missed", "guaranteed", COUNT},
                                                 {"reader_late", "read late", COUNT}};
static const struct column totals_slack[] = {{"p50", "p50", MICROSECONDS},
                                             {"p1", "p1", MICROSECONDS},
                                             {"p0_01", "p0.01", MICROSECONDS},
                                             {"min", "min", MICROSECONDS}};
static const struct column totals_latency[] = {{"p50", "p50", MICROSECONDS},
                                               {"p99", "p99", MICROSECONDS},
                                               {"p99_99", "p99.99", MICROSECONDS},
                                               {"max", "max", MICROSECONDS}};
static const struct column totals_admission[] = {
    {"p50", "p50", MICROSECONDS}, {"p99", "p99", MICROSECONDS}, {"max", "max", MICROSECONDS}};
static const struct column moves_columns[] = {{"moved", "migrated", COUNT},
                                              {"given_up", "timed out", COUNT},
                                              {"held_max_us", "longest hold", MICROSECONDS}};
static const struct column io_columns[] = {{"connections", "connections", COUNT},
                                           {"streams", "streams", COUNT},
                                           {"packets", "packets", COUNT},
                                           {"bytes", "bytes", BYTES},
                                           {"met", "met", COUNT},
                                           {"missed", "missed", COUNT},
                                           {"reader_late", "read late", COUNT},
                                           {"policed", "early", COUNT},
                                           {"utilisation", "reserved", SHARE}};
static const struct column worker_columns[] = {{"streams", "streams", COUNT},
                                               {"utilisation", "utilised", SHARE},
                                               {"headroom", "headroom", SHARE},
                                               {"backups", "backups", COUNT},
                                               {"reserved", "reserved", SHARE},
                                               {"bursts", "bursts", COUNT},
                                               {"pieces", "pieces", COUNT},
                                               {"burst_max_us", "longest", MICROSECONDS},
                                               {"burst_bound_us", "bound", MICROSECONDS},
                                               {"exceeded", "exceeded", COUNT},
                                               {"excess_us", "by", MICROSECONDS}};
static const struct column gpu_columns[] = {{"card", "card", TEXT},
                                            {"state", "state", TEXT},
                                            {"streams", "streams", COUNT},
                                            {"guaranteed", "guaranteed", COUNT},
                                            {"backups", "backups", COUNT},
                                            {"reserved", "reserved", SHARE},
                                            {"period_us", "period", PROMISE},
                                            {"period_changes", "changes", COUNT},
                                            {"latency_bound_us", "bound", PROMISE},
                                            {"batches", "batches", COUNT},
                                            {"packets", "packets", COUNT},
                                            {"late", "late", COUNT},
                                            {"faults", "faults", COUNT},
                                            {"lost_batches", "lost batches", COUNT}};
static const struct column stage_columns[] = {{"mean_us", "mean", MICROSECONDS},
                                              {"max_us", "longest", MICROSECONDS},
                                              {"exceeded", "exceeded", COUNT},
                                              {"bound_us", "bound", MICROSECONDS},
                                              {"worst", "worst share", SHARE}};
#define STAGE_COLUMNS_UNBOUND 3 /* the rest are of a bound, which a card without streams has not */
static const struct column missed_columns[] = {{"io_late", "I/O late", COUNT},
                                               {"burst_over_bound", "burst over bound", COUNT},
                                               {"stage_over_bound", "stage over bound", COUNT},
                                               {"off_core", "off core", COUNT},
                                               {"page_fault", "page fault", COUNT},
                                               {"queue", "queue", COUNT},
                                               {"held", "held", COUNT},
                                               {"diverted", "diverted", COUNT},
                                               {"unknown", "unknown", COUNT}};
static const struct column totals_gpus[] = {{"gpu_packets", "encrypted", COUNT},
                                            {"diverted", "diverted", COUNT},
                                            {"diverted_late", "of these late", COUNT},
                                            {"audited", "compared", COUNT},
                                            {"corrupt", "wrong", COUNT}};
static const struct column stream_columns[] = {{"connection", "connection", TEXT},
                                               {"stream", "stream", COUNT},
                                               {"unit", "unit", TEXT},
                                               {"state", "state", TEXT},
                                               {"class", "class", TEXT},
                                               {"backup", "backup", TEXT},
                                               {"packet_bytes", "packet", COUNT},
                                               {"interval_us", "interval", MICROSECONDS},
                                               {"latency_us", "latency", MICROSECONDS},
                                               {"packets", "packets", COUNT},
                                               {"met", "met", COUNT},
                                               {"missed", "missed", COUNT},
                                               {"fault_late", "GPU fault", COUNT},
                                               {"reader_late", "read late", COUNT},
                                               {"policed", "early", COUNT},
                                               {"slack_min_us", "least slack", MICROSECONDS}};
static const struct column unit_columns[] = {{"unit", "", TEXT},
                                             {"packets", "packets", COUNT},
                                             {"missed", "missed", COUNT},
                                             {"reader_late", "read late", COUNT},
                                             {"lost_us", "time lost", MICROSECONDS},
                                             {"overload_us", "overload", MICROSECONDS},
                                             {"held_back", "withheld", SHARE},
                                             {"slack_us.p50", "slack p50", MICROSECONDS},
                                             {"slack_us.p1", "p1", MICROSECONDS},
                                             {"slack_us.p0_01", "p0.01", MICROSECONDS},
                                             {"slack_us.min", "min", MICROSECONDS}};
static const struct column worst_columns[] = {{"slack_us", "slack", MICROSECONDS},
                                              {"latency_us", "bound", MICROSECONDS},
                                              {"connection", "connection", COUNT},
                                              {"stream", "stream", COUNT},
                                              {"sequence", "packet", COUNT},
                                              {"unit", "unit", TEXT},
                                              {"at_s", "at s", COUNT},
                                              {"cause", "cause", TEXT},
                                              {"held_by", "held by", TEXT},
                                              {"held_us", "for", MICROSECONDS},
                                              {"policed_us", "policed", MICROSECONDS},
                                              {"stages_us.hand_over", "hand-over", MICROSECONDS},
                                              {"stages_us.queue", "queue", MICROSECONDS},
                                              {"stages_us.copy_up", "copy up", MICROSECONDS},
                                              {"stages_us.encrypt", "encrypt", MICROSECONDS},
                                              {"stages_us.copy_down", "copy down", MICROSECONDS},
                                              {"stages_us.delivery", "delivery", MICROSECONDS}};

static void print_head(const json_t *root)
{
    static const struct column parts[] = {{"version", "millraced ", TEXT},
                                          {"state", ", ", TEXT},
                                          {"engine", ", engine ", TEXT},
                                          {"profile", ", profile ", TEXT}};
    const char *doubt = json_string_value(json_object_get(root, "profile_doubt"));
    const json_t *uptime = json_object_get(root, "uptime_s");
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        char text[CORE_TEXT_BYTES];
        format_figure(json_object_get(root, parts[i].key), TEXT, text);
        printf("%s%s", parts[i].title, text);
    }
    if (json_is_number(uptime)) {
        double seconds = json_number_value(uptime);
        printf(", up %.0f h %02d min %02d s", floor(seconds / 3600), (int)fmod(seconds / 60, 60),
               (int)fmod(seconds, 60));
    }
    putchar('\n');
    if (doubt != NULL && doubt[0] != '\0')
        printf("latency bounds may not hold, since the profile is in doubt: %s\n", doubt);
}

static void print_stage(const json_t *stage, const char *title)
{
    bool bound = json_number_value(json_object_get(stage, "bound_us")) > 0;
    print_line(stage, title, stage_columns, bound ? COUNT_OF(stage_columns) : STAGE_COLUMNS_UNBOUND);
}

/* A table of the cards, then the stages of each. */
static void print_gpus(const json_t *root, const json_t *totals)
{
    const json_t *gpus = json_object_get(root, "gpus"), *gpu;
    size_t index;
    print_table(gpus, "gpu", gpu_columns, COUNT_OF(gpu_columns));
    json_array_foreach(gpus, index, gpu)
    {
        print_stage(json_object_get(gpu, "copy_up"), "copy up");
        print_stage(json_object_get(gpu, "kernel"), "kernel");
        print_stage(json_object_get(gpu, "copy_down"), "copy down");
        print_stage(json_object_get(gpu, "whole"), "batch");
    }
    print_line(totals, "on GPUs", totals_gpus, COUNT_OF(totals_gpus));
}

static void print_tables(const json_t *root, bool streams)
{
    const json_t *totals = json_object_get(root, "totals");
    print_head(root);
    print_line(totals, "now", totals_now, COUNT_OF(totals_now));
    print_line(totals, "packets", totals_packets, COUNT_OF(totals_packets));
    print_line(totals, "deadlines", totals_deadlines, COUNT_OF(totals_deadlines));
    if (json_integer_value(json_object_get(totals, "missed")) > 0)
        print_line(json_object_get(totals, "missed_by"), "missed by", missed_columns,
                   COUNT_OF(missed_columns));
    print_line(json_object_get(totals, "latency_us"), "latency", totals_latency, COUNT_OF(totals_latency));
    print_line(json_object_get(totals, "slack_us"), "slack", totals_slack, COUNT_OF(totals_slack));
    print_line(json_object_get(totals, "admission_us"), "admission", totals_admission,
               COUNT_OF(totals_admission));
    if (json_object_get(totals, "in_force_us") != NULL)
        print_line(json_object_get(totals, "in_force_us"), "in force", totals_admission,
                   COUNT_OF(totals_admission));
    if (json_object_get(root, "moves") != NULL)
        print_line(json_object_get(root, "moves"), "moves", moves_columns, COUNT_OF(moves_columns));
    print_table(json_object_get(root, "io_threads"), "io thread", io_columns, COUNT_OF(io_columns));
    print_table(json_object_get(root, "workers"), "worker", worker_columns, COUNT_OF(worker_columns));
    if (json_array_size(json_object_get(root, "gpus")) > 0)
        print_gpus(root, totals);
    print_table(json_object_get(root, "units"), "unit", unit_columns, COUNT_OF(unit_columns));
    if (json_array_size(json_object_get(root, "worst")) > 0)
        print_table(json_object_get(root, "worst"), "worst", worst_columns, COUNT_OF(worst_columns));
    if (streams)
        print_table(json_object_get(root, "streams"), "", stream_columns, COUNT_OF(stream_columns));
}

static int print_document(const char *body, size_t bytes, const struct options *options)
{
    json_error_t why;
    if (command_wants_json()) {
        fwrite(body, 1, bytes, stdout);
    } else {
        json_t *root = json_loadb(body, bytes, 0, &why);
        if (!json_is_object(root)) {
            json_decref(root);
            return command_fail(COMMAND_FAILED, "%s/status is no JSON object: %s", options->admin, why.text);
        }
        print_tables(root, options->streams);
        json_decref(root);
    }
    if (fflush(stdout) != 0)
        return command_fail(COMMAND_FAILED, "standard output can not be written");
    return COMMAND_OK;
}

/* ---- several servers ---- */

static const struct column node_columns[] = {{"state", "state", TEXT},
                                             {"version", "version", TEXT},
                                             {"totals.connections", "connections", COUNT},
                                             {"totals.streams", "streams", COUNT},
                                             {"totals.refused", "refused", COUNT},
                                             {"totals.packets", "packets", COUNT},
                                             {"totals.missed", "missed", COUNT},
                                             {"node", "address", TEXT}};

/* What the server says, with its address; or that, and why it says nothing. */
static json_t *ask_node(const char *address, const struct options *options)
{
    struct core_error error;
    char *body;
    size_t bytes;
    json_t *root = NULL;
    if (command_http_get(address, "/status", options->timeout_ms, &body, &bytes, &error) == CORE_OK) {
        root = json_loadb(body, bytes, 0, NULL);
        free(body);
        core_error_set(&error, CORE_INVALID, "%s/status is no JSON object", address);
    }
    if (!json_is_object(root)) {
        json_decref(root);
        root = json_pack("{s:s, s:o}", "state", "?", "error", command_pack_error(error.text));
        if (!command_wants_json())
            fprintf(stderr, "millrace: %s\n", error.text);
    }
    (void)json_object_set_new(root, "node", json_string(address));
    return root;
}

static int show_pool(const struct options *options)
{
    char *addresses = strdup(options->admin), *rest = NULL;
    json_t *all = json_array();
    int exit = COMMAND_OK, printed = COMMAND_OK;
    for (char *address = addresses == NULL ? NULL : strtok_r(addresses, ",", &rest); address != NULL;
         address = strtok_r(NULL, ",", &rest)) {
        json_t *node = ask_node(address, options);
        exit = json_object_get(node, "error") != NULL ? COMMAND_FAILED : exit;
        (void)json_array_append_new(all, node);
    }
    free(addresses);
    if (command_wants_json()) {
        printed = command_print_json(all);
    } else {
        print_table(all, "node", node_columns, COUNT_OF(node_columns));
        json_decref(all);
    }
    return exit ? exit : printed;
}

int command_status(int argc, char **argv)
{
    struct options options = {.admin = getenv("MILLRACE_ADMIN"), .timeout_ms = 10000};
    struct core_error error;
    char *body;
    size_t bytes;
    if (core_options_parse(&argp, argc, argv, &options) != 0)
        return COMMAND_FAILED;
    if (options.pool)
        return show_pool(&options);
    const char *path = options.streams ? "/status?streams=1" : "/status";
    if (command_http_get(options.admin, path, options.timeout_ms, &body, &bytes, &error) != CORE_OK)
        return command_fail(COMMAND_FAILED, "%s", error.text);
    int exit = print_document(body, bytes, &options);
    free(body);
    return exit;
}
