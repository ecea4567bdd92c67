/* millrace-gpu: drives one GPU for millraced. Secrets never come by the command line. */
#include "core/log.h"
#include "core/options.h"
#include "core/standard.h"
#include "gpu/child.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct gpu_device_ops *const backends[] = {
#ifdef MILLRACE_CUDA
    &gpu_device_cuda,
#endif
    &gpu_device_emulated,
};

struct options {
    const struct gpu_device_ops *ops;
    uint32_t index;
    const char *uuid;
    uint64_t copies_bytes; /* 0: not asked */
    bool list, serve, has_user;
    struct core_user user;
    enum core_log_format format;
};

enum { KEY_SERVE = 256, KEY_COPIES, KEY_LOG_FORMAT, KEY_USER, KEY_UUID };

static const struct argp_option option_table[] = {
    {"backend", 'b', "NAME", 0, "cuda or emulated (default: cuda)", 0},
    {"device", 'd', "INDEX", 0, "Which card, from 0 on (default: 0)", 0},
    {"list", 'l', NULL, 0, "List the cards: index, name, memory, SMs, copy engines, driver, UUID, PCI bus id",
     0},
    {"copies", KEY_COPIES, "BYTES", 0,
     "Measure what copies of so many bytes reach on a card, by the kind of the host's pages", 0},
    {"serve", KEY_SERVE, NULL, OPTION_HIDDEN, NULL, 0},
    {"log-format", KEY_LOG_FORMAT, "FORMAT", OPTION_HIDDEN, NULL, 0},
    {"uuid", KEY_UUID, "UUID", OPTION_HIDDEN, NULL, 0},
    {"user", KEY_USER, "UID:GID[,GID...]", OPTION_HIDDEN, NULL, 0},
    {0},
};

static const struct gpu_device_ops *backend_find(const char *name)
{
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    return NULL;
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;
    char *end;
    switch (key) {
    case 'b':
        options->ops = backend_find(argument);
        if (options->ops == NULL)
            argp_error(state, "this millrace-gpu has no backend '%s'%s", argument,
                       strcmp(argument, "cuda") == 0 ? ": it was built without CUDA" : "");
        return 0;
    case 'd': {
        const unsigned long index = strtoul(argument, &end, 10);
        if (*argument < '0' || *argument > '9' || *end != '\0' || index > 1023)
            argp_error(state, "'%s' is not the index of a card", argument);
        options->index = (uint32_t)index;
        return 0;
    }
    case 'l':
        options->list = true;
        return 0;
    case KEY_COPIES:
        options->copies_bytes = (uint64_t)core_options_bytes(state, "copies", argument, GPU_COPY_BYTES_LEAST,
                                                             GPU_COPY_BYTES_MOST);
        return 0;
    case KEY_LOG_FORMAT:
        if (core_log_format_parse(argument, &options->format) != CORE_OK)
            argp_error(state, "--log-format: text or json");
        return 0;
    case KEY_UUID:
        options->uuid = argument;
        return 0;
    case KEY_USER:
        if (core_user_parse(argument, &options->user) != CORE_OK)
            argp_error(state, "--user '%s': UID:GID[,GID...]", argument);
        options->has_user = true;
        return 0;
    case KEY_SERVE:
        options->serve = true;
        return 0;
    case ARGP_KEY_END:
        if (!options->list && options->copies_bytes == 0 && !options->serve)
            argp_error(state, "millraced starts this program; by hand, use --list or --copies");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    option_table,
    parse_option,
    NULL,
    "Drives one GPU for millraced, which starts it and talks to it through shared memory.\v"
    "Exit status: 0 told to stop, or listed or measured (\"none\" where there is no card or driver); 2 "
    "usage; 3 the "
    "device "
    "can not be used; 4 it failed; 5 the server ended; 6 stuck in the driver.",
    NULL,
    NULL,
    NULL,
};

/* Cards are numbered as nvidia-smi does, unless somebody else has chosen some or an order. */
static void order_set(void)
{
    if (getenv("CUDA_VISIBLE_DEVICES") == NULL)
        (void)setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 0);
}

int main(int argc, char **argv)
{
    static struct gpu_child child;
    struct options options = {.ops = backend_find("cuda")};
    order_set();
    if (!core_standard_open())
        return GPU_EXIT_START;
    if (core_options_parse(&argp, argc, argv, &options) != 0)
        return GPU_EXIT_START;
    if (options.ops == NULL && options.list) {
        printf("none\n");
        fprintf(stderr, "millrace-gpu: built without CUDA, so there are emulated cards only\n");
        return GPU_EXIT_STOPPED;
    }
    if (options.ops == NULL) {
        fprintf(stderr, "millrace-gpu: built without CUDA; --backend emulated is what there is\n");
        return GPU_EXIT_START;
    }
    if (options.list)
        return gpu_child_list(options.ops);
    if (options.copies_bytes > 0)
        return gpu_child_copies(options.ops, options.index, options.copies_bytes);
    struct core_log_options log = core_log_configured();
    log.format = options.format;
    core_log_configure(&log);
    child.ops = options.ops;
    child.index = options.index;
    child.uuid = options.uuid;
    child.user = options.has_user ? &options.user : NULL;
    return gpu_child_serve(&child);
}
