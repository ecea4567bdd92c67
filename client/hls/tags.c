#include "client/hls/tags.h"

#include "core/value.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool hls_tag_is(const struct hls_line *line, const char *name, struct hls_text *value)
{
    size_t bytes = strlen(name);
    if (line->bytes < bytes || memcmp(line->text, name, bytes) != 0)
        return false;
    if (line->bytes > bytes && line->text[bytes] != ':')
        return false;
    size_t skipped = line->bytes > bytes ? bytes + 1 : bytes;
    *value = (struct hls_text){line->text + skipped, line->bytes - skipped};
    return true;
}

/* Takes NAME=value or NAME="value" off the front of a list. */
static bool take_attribute(struct hls_text *list, struct hls_text *name, struct hls_text *value)
{
    const char *end = list->at + list->bytes;
    const char *equals = memchr(list->at, '=', list->bytes);
    if (equals == NULL)
        return false;
    while (list->at < equals && (*list->at == ' ' || *list->at == ','))
        list->at++;
    *name = (struct hls_text){list->at, (size_t)(equals - list->at)};
    const char *at = equals + 1;
    bool quoted = at < end && *at == '"';
    at += quoted;
    const char *stop = memchr(at, quoted ? '"' : ',', (size_t)(end - at));
    if (quoted && (stop == NULL || (stop + 1 < end && stop[1] != ',')))
        return false;
    if (stop == NULL)
        stop = end;
    *value = (struct hls_text){at, (size_t)(stop - at)};
    list->at = stop + quoted;
    list->bytes = (size_t)(end - list->at);
    return true;
}

bool hls_attributes_are_sound(struct hls_text list)
{
    struct hls_text name, value;
    while (list.bytes > 0)
        if (!take_attribute(&list, &name, &value))
            return false;
    return true;
}

bool hls_attribute_find(struct hls_text list, const char *wanted, struct hls_text *value)
{
    struct hls_text name;
    while (take_attribute(&list, &name, value))
        if (name.bytes == strlen(wanted) && memcmp(name.at, wanted, name.bytes) == 0)
            return true;
    return false;
}

bool hls_text_is(struct hls_text text, const char *wanted)
{
    return text.bytes == strlen(wanted) && memcmp(text.at, wanted, text.bytes) == 0;
}

double hls_text_number(struct hls_text text)
{
    char copy[32];
    snprintf(copy, sizeof copy, "%.*s", (int)(text.bytes < 31 ? text.bytes : 31), text.at);
    double number = strtod(copy, NULL);
    return number > 0 && number < 1e9 ? number : 0;
}

bool hls_text_count(struct hls_text text, uint64_t maximum, uint64_t *count)
{
    char copy[24];
    if (text.bytes == 0 || text.bytes >= sizeof copy)
        return false;
    memcpy(copy, text.at, text.bytes);
    copy[text.bytes] = '\0';
    return core_count_parse(copy, maximum, count);
}

bool hls_text_iv(struct hls_text text, uint8_t iv[CORE_BLOCK_BYTES])
{
    char digits[2 * CORE_BLOCK_BYTES];
    size_t count;
    if (text.bytes < 3 || text.bytes > 2 + sizeof digits || text.at[0] != '0' || (text.at[1] | 32) != 'x')
        return false;
    memset(digits, '0', sizeof digits);
    memcpy(digits + sizeof digits - (text.bytes - 2), text.at + 2, text.bytes - 2);
    return core_hex_parse(digits, sizeof digits, iv, CORE_BLOCK_BYTES, &count);
}
