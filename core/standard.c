#include "core/standard.h"

#include <fcntl.h>
#include <unistd.h>

bool core_standard_open(void)
{
    for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; descriptor++) {
        const int wrong_way = descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY;
        /* What is opened gets the lowest number that is free. */
        if (fcntl(descriptor, F_GETFD) < 0 && open("/dev/null", wrong_way) != descriptor)
            return false;
    }
    return true;
}
