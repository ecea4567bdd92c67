#include "bench/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

double bench_option_seconds(const struct argp_state *state, const char *name, const char *text,
                            double minimum_s, double maximum_s)
{
    return (double)core_options_duration(state, name, text, CORE_NS_PER_S, (core_ns)(minimum_s * 1e9),
                                         (core_ns)(maximum_s * 1e9)) /
           1e9;
}

/* The millraced that was built or installed with this program; if there is none "millraced", by PATH. */
static const char *program_beside(char *path, size_t size)
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
    case 'S':
        options->program = argument;
        return 0;
    case 'P':
        options->profile = argument;
        return 0;
    case 'j':
        options->json = true;
        return 0;
    case ARGP_KEY_END:
        if (options->program == NULL)
            options->program = program_beside(found, sizeof found);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option server_table[] = {
    {"millraced", 'S', "PROGRAM", 0, "The server to start (default: the one built beside this program)", 0},
    {"profile", 'P', "PROFILE", 0,
     "Its hardware profile: a path or a shipped one's name (default: it measures at start)", 0},
    {"json", 'j', NULL, 0, "One JSON document", 0},
    {0},
};

static const struct argp server_argp = {.options = server_table, .parser = parse_server};
const struct argp_child bench_options_server[] = {{&server_argp, 0, NULL, 0}, {0}};
