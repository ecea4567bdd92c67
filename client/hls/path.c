#include "client/hls/path.h"

#include "client/hls/tags.h"
#include "core/value.h"

#include <stdio.h>
#include <string.h>

static int hex_digit(char digit)
{
    uint8_t value;
    size_t count;
    char two[2] = {'0', digit};
    return core_hex_parse(two, 2, &value, 1, &count) ? value : -1;
}

/* Without %XX; false: too long, or broken. */
static bool decode(struct hls_text uri, char *path, size_t room)
{
    size_t length = 0;
    for (size_t i = 0; i < uri.bytes && uri.at[i] != '?' && uri.at[i] != '#'; i++) {
        char byte = uri.at[i];
        if (byte == '%') {
            int high = i + 2 < uri.bytes ? hex_digit(uri.at[i + 1]) : -1;
            int low = high >= 0 ? hex_digit(uri.at[i + 2]) : -1;
            if (low < 0)
                return false;
            byte = (char)(high << 4 | low);
            i += 2;
        }
        if (length + 1 >= room || (byte >= 0 && byte < ' ') || byte == 127)
            return false;
        path[length++] = byte;
    }
    path[length] = '\0';
    return length > 0;
}

/* Puts a name behind the path, or takes the last one off it. */
static bool step(char *path, struct hls_text name)
{
    size_t length = strlen(path);
    if (hls_text_is(name, "."))
        return true;
    if (hls_text_is(name, "..")) {
        char *slash = strrchr(path, '/');
        *(slash != NULL ? slash : path) = '\0';
        return length > 0;
    }
    if (name.bytes == 0 || name.at[0] == '.' || length + name.bytes + 2 > HLS_PATH_BYTES)
        return false;
    if (length > 0)
        path[length++] = '/';
    memcpy(path + length, name.at, name.bytes);
    path[length + name.bytes] = '\0';
    return true;
}

core_status hls_path_resolve(const char *base, const char *uri, size_t uri_bytes, char path[HLS_PATH_BYTES])
{
    char decoded[HLS_PATH_BYTES];
    const char *slash = strrchr(base, '/');
    const char *scheme = memchr(uri, ':', uri_bytes), *first = memchr(uri, '/', uri_bytes);
    if ((scheme != NULL && (first == NULL || scheme < first)) ||
        !decode((struct hls_text){uri, uri_bytes}, decoded, sizeof decoded))
        return CORE_INVALID;
    snprintf(path, HLS_PATH_BYTES, "%.*s", slash == NULL ? 0 : (int)(slash - base), base);
    for (const char *at = decoded;;) {
        size_t bytes = strcspn(at, "/");
        if (!step(path, (struct hls_text){at, bytes}))
            return CORE_INVALID;
        if (at[bytes] == '\0')
            return path[0] != '\0' ? CORE_OK : CORE_INVALID;
        at += bytes + 1;
    }
}

bool hls_path_is_playlist(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot != NULL && (strcmp(dot, ".m3u8") == 0 || strcmp(dot, ".m3u") == 0);
}
