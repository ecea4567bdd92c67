/* A good hardware profile as lines, one of which a test replaces. */
#ifndef MILLRACE_TESTS_SUPPORT_PROFILE_TEXT_H
#define MILLRACE_TESTS_SUPPORT_PROFILE_TEXT_H

#include "config/profile.h"

struct profile_text {
    const char *const *lines; /* of a file that is called p.yaml */
    size_t count;
};

/* A line that takes the place of a good one, and how the error begins. */
struct profile_mistake {
    size_t line; /* from 1 */
    const char *text, *message;
};

struct config_profile *profile_text_parse(const struct profile_text *good);

/* Every mistake must be refused with its message. */
void profile_text_expect(const struct profile_text *good, const struct profile_mistake *mistakes,
                         size_t count);

#endif
