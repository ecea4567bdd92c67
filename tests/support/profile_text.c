#include "tests/support/profile_text.h"

#include "tests/support/require.h"

#include <stdio.h>
#include <string.h>

static core_status parse_with(const struct profile_text *good, size_t number, const char *line,
                              struct config_profile **profile, struct core_error *error)
{
    char text[4096] = "";
    size_t length = 0;
    for (size_t i = 0; i < good->count && length < sizeof text; i++)
        length += (size_t)snprintf(text + length, sizeof text - length, "%s\n",
                                   i + 1 == number ? line : good->lines[i]);
    TEST_REQUIRE(length < sizeof text);
    return config_profile_parse(text, length, "p.yaml", profile, error);
}

struct config_profile *profile_text_parse(const struct profile_text *good)
{
    struct config_profile *profile = NULL;
    struct core_error error = {""};
    if (parse_with(good, 0, NULL, &profile, &error) != CORE_OK)
        fprintf(stderr, "refused: %s\n", error.text);
    TEST_REQUIRE(profile != NULL);
    return profile;
}

void profile_text_expect(const struct profile_text *good, const struct profile_mistake *mistakes,
                         size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct config_profile *profile = NULL;
        struct core_error error = {""};
        core_status status = parse_with(good, mistakes[i].line, mistakes[i].text, &profile, &error);
        bool told = strncmp(error.text, mistakes[i].message, strlen(mistakes[i].message)) == 0;
        if (status != CORE_INVALID || !told)
            fprintf(stderr, "case %zu: status %d, \"%s\", expected \"%s\"\n", i, (int)status, error.text,
                    mistakes[i].message);
        TEST_REQUIRE(status == CORE_INVALID && told && profile == NULL);
    }
}
