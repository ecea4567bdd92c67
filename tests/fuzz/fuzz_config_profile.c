/* Any text as a hardware profile: an answer without harm; what is accepted passes the check for profiles that
 * did not come from a file, and can be copied. */
#include "config/profile.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Same numbers, in memory of their own. */
static bool gpus_equal(const struct config_profile *a, const struct config_profile *b)
{
    bool equal = a->gpu_count == b->gpu_count && a->pinned_bytes == b->pinned_bytes;
    for (uint32_t i = 0; equal && i < a->gpu_count; i++) {
        const struct config_profile_gpu *x = &a->gpus[i], *y = &b->gpus[i];
        equal = strcmp(x->name, y->name) == 0 && x->copies != y->copies && x->utilisation != y->utilisation &&
                memcmp(x->copies, y->copies, x->copy_count * sizeof *x->copies) == 0 &&
                memcmp(x->utilisation, y->utilisation, x->utilisation_count * sizeof *x->utilisation) == 0;
    }
    return equal;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct config_profile *profile = NULL, *copy = NULL;
    struct core_error error = {""};

    if (config_profile_parse((const char *)data, size, "fuzz.yaml", &profile, &error) != CORE_OK) {
        if (profile || !error.text[0])
            abort();
        return 0;
    }
    if (config_profile_check(profile, &error) != CORE_OK)
        abort();
    if (config_profile_copy(profile, &copy) == CORE_OK &&
        (strcmp(profile->machine, copy->machine) != 0 || !gpus_equal(profile, copy)))
        abort();
    config_profile_free(copy);
    config_profile_free(profile);
    return 0;
}
