#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/standard.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static bool is_null(int descriptor)
{
    struct stat here, null;
    return fstat(descriptor, &here) == 0 && stat("/dev/null", &null) == 0 && here.st_rdev == null.st_rdev &&
           S_ISCHR(here.st_mode);
}

/* In a child of the test: closes those of the mask, and says whether all is as it must be. */
static bool fills(unsigned closed)
{
    int ends[2];
    char byte = 0;
    for (int descriptor = 0; descriptor < 3; descriptor++) {
        close(descriptor);
        if ((closed & 1U << descriptor) == 0 && dup2(descriptor < 2 ? 3 : 4, descriptor) != descriptor)
            return false; /* a pipe stands for it */
    }
    if (!core_standard_open())
        return false;
    for (int descriptor = 0; descriptor < 3; descriptor++)
        if (is_null(descriptor) != ((closed & 1U << descriptor) != 0))
            return false;
    if ((closed & 1U) != 0 && (read(0, &byte, 1) != -1 || errno != EBADF))
        return false;
    if ((closed & 4U) != 0 && (write(2, &byte, 1) != -1 || errno != EBADF))
        return false;
    return pipe(ends) == 0 && ends[0] > 2;
}

static void what_is_closed_is_opened_on_nothing(void **state)
{
    (void)state;
    for (unsigned closed = 0; closed < 8; closed++) {
        const pid_t pid = fork();
        int status = -1;
        assert_true(pid >= 0);
        if (pid == 0) {
            int ends[2];
            _exit(pipe(ends) == 0 && dup2(ends[0], 3) == 3 && dup2(ends[1], 4) == 4 && fills(closed) ? 0 : 1);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_closed_is_opened_on_nothing)};
    return cmocka_run_group_tests_name("core/standard", tests, NULL, NULL);
}
