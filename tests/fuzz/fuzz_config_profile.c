/* Any text as a hardware profile: an answer without harm; what is accepted passes the check for profiles that
 * did not come from a file, and can be copied. */
#include "config/profile.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
    if (config_profile_copy(profile, &copy) == CORE_OK && strcmp(profile->machine, copy->machine) != 0)
        abort();
    config_profile_free(copy);
    config_profile_free(profile);
    return 0;
}
