#include "tests/support/stages.h"

static void run_kernel(struct stages *stages, int n)
{
    core_ns free_ns = n > 0 ? stages->kernel_end_ns[n - 1] : 0;
    stages->kernel_end_ns[n] = core_time_max(stages->up_end_ns[n], free_ns) + stages->takes[n].kernel_ns;
}

void stages_two_engines(struct stages *stages)
{
    for (int n = 0; n < stages->count; n++) {
        core_ns up_free_ns = n > 0 ? stages->up_end_ns[n - 1] : 0;
        core_ns down_free_ns = n > 0 ? stages->down_end_ns[n - 1] : 0;
        stages->up_end_ns[n] = core_time_max(stages->close_ns[n], up_free_ns) + stages->takes[n].up_ns;
        run_kernel(stages, n);
        stages->down_end_ns[n] =
            core_time_max(stages->kernel_end_ns[n], down_free_ns) + stages->takes[n].down_ns;
    }
}

void stages_one_engine(struct stages *stages, bool last_up, stages_up_next *up_next, void *argument)
{
    core_ns now_ns = 0;
    for (int up = 0, down = 0; down < stages->count;) {
        core_ns up_ready_ns = up < stages->count ? stages->close_ns[up] : CORE_NS_NEVER;
        core_ns down_ready_ns = down < up ? stages->kernel_end_ns[down] : CORE_NS_NEVER;
        now_ns = core_time_max(now_ns, core_time_min(up_ready_ns, down_ready_ns));
        bool up_goes = up_ready_ns <= now_ns;
        if (up_goes && down_ready_ns <= now_ns)
            up_goes =
                up_next != NULL ? up_next(argument, last_up, now_ns, up_ready_ns, down_ready_ns) : !last_up;
        last_up = up_goes;
        if (up_goes) {
            now_ns += stages->takes[up].up_ns;
            stages->up_end_ns[up] = now_ns;
            run_kernel(stages, up++);
        } else {
            now_ns += stages->takes[down].down_ns;
            stages->down_end_ns[down++] = now_ns;
        }
    }
}
