/* How much room there is, in streams of one contract. */
#include "partition/admission/internal.h"

uint32_t admission_emptiest_io(const struct admission *admission)
{
    uint32_t best = 0;
    for (uint32_t io = 1; io < admission->io_count; io++)
        if (admission->io_ppb[io] < admission->io_ppb[best])
            best = io;
    return best;
}

bool admission_without_reasons(void *owner)
{
    (void)owner;
    return true;
}

uint32_t admission_fill(struct admission *copy, const struct core_stream_spec *spec, uint32_t wanted)
{
    struct admission_placement placement;
    uint32_t done = 0;

    admission_set_cancel(copy, admission_without_reasons, NULL);
    while (done < wanted &&
           admission_admit(copy, spec, admission_emptiest_io(copy), 0, &placement, NULL) == CORE_OK &&
           placement.accepted)
        done++;
    return done;
}
