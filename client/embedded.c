#include "client/embedded.h"

#include "core/embedded.h"

#include <dlfcn.h>
#include <string.h>

/* It stays: threads of the caller may have come by what ends with them. */
static const struct core_embedded *load(struct core_error *error)
{
    void *library = dlopen(CORE_EMBEDDED_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    const struct core_embedded *found = library == NULL ? NULL : dlsym(library, CORE_EMBEDDED_SYMBOL);
    if (found == NULL) {
        core_error_set(
            error, CORE_UNSUPPORTED,
            "a server inside the process needs libmillraced %s, which does not load: %s; install it, "
            "or say where it is (LD_LIBRARY_PATH)",
            MILLRACE_VERSION, dlerror());
        return NULL;
    }
    if (strcmp(found->version, MILLRACE_VERSION) == 0)
        return found;
    core_error_set(error, CORE_UNSUPPORTED,
                   "%s is of version %.32s, and libmillrace of %s: install both of one version",
                   CORE_EMBEDDED_LIBRARY, found->version, MILLRACE_VERSION);
    return NULL;
}

core_status client_embedded_connect(const char *path, int *descriptor, void (**release)(void),
                                    struct core_error *error)
{
    const struct core_embedded *embedded = load(error);
    if (embedded == NULL)
        return CORE_UNSUPPORTED;
    const core_status status = embedded->connect(path, descriptor, error);
    if (status == CORE_OK)
        *release = embedded->release;
    return status;
}
