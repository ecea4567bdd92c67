#include "client/hls/keys.h"

#include "client/hls/folder.h"
#include "core/keyfile.h"
#include "core/secret.h"
#include "core/value.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define ID_BYTES       16
#define INFO_BYTES_MAX (HLS_URI_BYTES + HLS_PATH_BYTES + 64)

/* ---- one key ---- */

static struct hls_key *make(void)
{
    struct hls_key *key = calloc(1, sizeof *key);
    if (key == NULL)
        return NULL;
    key->references = 1;
    key->bytes = core_secret_alloc(HLS_KEY_BYTES);
    if (key->bytes != NULL)
        return key;
    free(key);
    return NULL;
}

struct hls_key *hls_key_take(struct hls_key *key)
{
    key->references++;
    return key;
}

void hls_key_drop(struct hls_key *key)
{
    if (key == NULL || --key->references > 0)
        return;
    core_secret_free(key->bytes, HLS_KEY_BYTES);
    free(key);
}

/* ---- drawn ---- */

bool hls_key_uri(const char *uri_template, const char *id, const char *rendition, char uri[HLS_URI_BYTES])
{
    static const char id_mark[] = "{id}", rendition_mark[] = "{rendition}";
    size_t length = 0;
    for (const char *at = uri_template; *at != '\0';) {
        const char *piece = at;
        size_t bytes = 1, taken = 1;
        if (strncmp(at, id_mark, sizeof id_mark - 1) == 0) {
            piece = id;
            bytes = strlen(id);
            taken = sizeof id_mark - 1;
        } else if (strncmp(at, rendition_mark, sizeof rendition_mark - 1) == 0) {
            piece = rendition;
            bytes = strlen(rendition);
            taken = sizeof rendition_mark - 1;
        }
        if (length + bytes >= HLS_URI_BYTES)
            return false;
        memcpy(uri + length, piece, bytes);
        length += bytes;
        at += taken;
    }
    uri[length] = '\0';
    return length > 0 && strpbrk(uri, "\"\r\n") == NULL;
}

/* Nobody is told a key's URI before the key itself is safe. */
static core_status write_key(const char *path, const uint8_t *bytes, struct core_error *error)
{
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0)
        return core_error_errno(error, "%s can not be made", path);
    core_status status = CORE_OK;
    if (write(file, bytes, HLS_KEY_BYTES) != HLS_KEY_BYTES || fsync(file) != 0)
        status = core_error_errno(error, "%s can not be written", path);
    if (close(file) != 0 && status == CORE_OK)
        status = core_error_errno(error, "%s can not be written", path);
    if (status)
        unlink(path);
    return status;
}

core_status hls_keys_draw(struct hls_keys *keys, const char *rendition, struct hls_key **key,
                          struct core_error *error)
{
    uint8_t id[ID_BYTES];
    char id_text[2 * ID_BYTES + 1], path[HLS_PATH_BYTES + sizeof id_text];
    struct hls_key *drawn = make();
    if (drawn == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a key");
    core_status status = CORE_OK;
    if (getrandom(drawn->bytes, HLS_KEY_BYTES, 0) != HLS_KEY_BYTES || getrandom(id, ID_BYTES, 0) != ID_BYTES)
        status = core_error_errno(error, "no random bytes for a key");
    core_hex_format(id, ID_BYTES, id_text);
    if (status == CORE_OK && !hls_key_uri(keys->uri_template, id_text, rendition, drawn->uri))
        status =
            core_error_set(error, CORE_INVALID, "the URI of a key of %s is too long, or no URI", rendition);
    if (snprintf(path, sizeof path, "%s/%s.key", keys->folder, id_text) >= (int)sizeof path)
        status = core_error_set(error, CORE_INVALID, "the name of the folder of keys is too long");
    if (status == CORE_OK)
        status = write_key(path, drawn->bytes, error);
    if (status) {
        hls_key_drop(drawn);
        return status;
    }
    keys->made++;
    *key = drawn;
    return CORE_OK;
}

/* ---- given by an info file ---- */

/* Takes a line off the text; it is empty where there is none. */
static size_t take_line(const char **text, const char **line)
{
    size_t bytes = strcspn(*text, "\r\n");
    *line = *text;
    *text += bytes;
    *text += **text == '\r';
    *text += **text == '\n';
    return bytes;
}

core_status hls_key_info_parse(const char *text, struct hls_key_info *info, struct core_error *error)
{
    const char *line;
    size_t count;
    *info = (struct hls_key_info){0};
    size_t bytes = take_line(&text, &line);
    if (bytes == 0 || bytes >= sizeof info->uri || memchr(line, '"', bytes) != NULL)
        return core_error_set(error, CORE_INVALID, "its first line is no URI of a key");
    memcpy(info->uri, line, bytes);
    bytes = take_line(&text, &line);
    if (bytes == 0 || bytes >= sizeof info->path)
        return core_error_set(error, CORE_INVALID, "its second line is no path of a key");
    memcpy(info->path, line, bytes);
    bytes = take_line(&text, &line);
    info->has_iv = bytes > 0;
    if (info->has_iv &&
        (!core_hex_parse(line, bytes, info->iv, sizeof info->iv, &count) || count != sizeof info->iv))
        return core_error_set(error, CORE_INVALID, "its third line is no IV of 32 hexadecimal digits");
    return CORE_OK;
}

static core_status read_info(const char *path, struct hls_key_info *info, struct core_error *error)
{
    char text[INFO_BYTES_MAX + 1];
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return core_error_errno(error, "%s can not be read", path);
    size_t bytes = fread(text, 1, INFO_BYTES_MAX, file);
    fclose(file);
    text[bytes] = '\0';
    core_status status = hls_key_info_parse(text, info, error);
    return status ? core_error_prefix(error, status, "%s", path) : CORE_OK;
}

static core_status read_given(const char *info_file, struct hls_key **key, struct core_error *error)
{
    struct hls_key_info info;
    char *content;
    size_t bytes;
    core_status status = read_info(info_file, &info, error);
    if (status || (status = core_keyfile_read(info.path, HLS_KEY_BYTES + 1, &content, &bytes, error)))
        return status;
    struct hls_key *given = bytes == HLS_KEY_BYTES ? make() : NULL;
    if (given != NULL) {
        memcpy(given->bytes, content, HLS_KEY_BYTES);
        memcpy(given->uri, info.uri, sizeof given->uri);
        given->has_iv = info.has_iv;
        memcpy(given->iv, info.iv, sizeof given->iv);
    }
    core_secret_free(content, HLS_KEY_BYTES + 2);
    *key = given;
    if (given != NULL)
        return CORE_OK;
    return bytes == HLS_KEY_BYTES
               ? core_error_set(error, CORE_NO_MEMORY, "no memory for a key")
               : core_error_set(error, CORE_INVALID, "%s has %zu bytes, must have 16", info.path, bytes);
}

core_status hls_keys_given(struct hls_keys *keys, struct hls_key **key, struct core_error *error)
{
    struct stat now = {0};
    struct hls_key *given;
    core_status status = CORE_OK;
    if (stat(keys->info_file, &now) != 0)
        status = core_error_errno(error, "%s", keys->info_file);
    else if (keys->given == NULL || !hls_stat_is_same(&now, &keys->given_by))
        status = read_given(keys->info_file, &given, error);
    else
        given = keys->given;
    if (status == CORE_OK && given != keys->given) {
        hls_key_drop(keys->given);
        keys->given = given;
        keys->given_by = now;
        keys->made++;
    }
    *key = keys->given == NULL ? NULL : hls_key_take(keys->given);
    return status;
}

void hls_keys_close(struct hls_keys *keys)
{
    hls_key_drop(keys->given);
    keys->given = NULL;
}
