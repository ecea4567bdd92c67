#include "bench/options.h"

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
