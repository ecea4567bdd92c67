#include "bench/options.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

double bench_option_number(struct argp_state *state, const char *name, const char *text, double minimum,
                           double maximum)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= minimum && value <= maximum))
        argp_error(state, "--%s %s: a number from %g to %g", name, text, minimum, maximum);
    return value;
}

uint64_t bench_option_whole(struct argp_state *state, const char *name, const char *text, uint64_t minimum,
                            uint64_t maximum)
{
    char *end;

    errno = 0;
    const uint64_t value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value < minimum || value > maximum)
        argp_error(state, "--%s %s: a whole number from %" PRIu64 " to %" PRIu64, name, text, minimum,
                   maximum);
    return value;
}

const char *bench_option_server(char *path, size_t size)
{
    static const char *const places[] = {"../server/millraced", "millraced", "../sbin/millraced"};
    char self[512];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);

    for (size_t i = 0; length > 0 && i < sizeof places / sizeof places[0]; i++) {
        self[length] = '\0';
        *(strrchr(self, '/') + 1) = '\0';
        if ((size_t)snprintf(path, size, "%s%s", self, places[i]) < size && access(path, X_OK) == 0)
            return path;
    }
    snprintf(path, size, "millraced");
    return path;
}

static error_t parse_server(int key, char *argument, struct argp_state *state)
{
    static char found[640];
    struct bench_options_server *options = state->input;

    switch (key) {
    case 's':
        options->server = argument;
        return 0;
    case 'P':
        options->profile = argument;
        return 0;
    case 'j':
        options->json = true;
        return 0;
    case ARGP_KEY_END:
        if (options->server == NULL)
            options->server = bench_option_server(found, sizeof found);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option server_table[] = {
    {"server", 's', "PROGRAM", 0, "The millraced to start (default: the one built beside this program)", 0},
    {"profile", 'P', "FILE", 0, "Its hardware profile (default: it measures at start)", 0},
    {"json", 'j', NULL, 0, "One JSON document", 0},
    {0},
};

const struct argp bench_options_server_argp = {.options = server_table, .parser = parse_server};
