#include "tests/support/hls_rig.h"

#include "client/hls/path.h"
#include "client/hls/playlist.h"
#include "core/secret.h"
#include "tests/support/require.h"

#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATIENCE_TURNS 5000

static char said[8192];

static void say(const char *format, ...)
{
    va_list arguments;
    size_t length = strlen(said);
    va_start(arguments, format);
    vsnprintf(said + length, sizeof said - length, format, arguments);
    va_end(arguments);
}

const char *hls_rig_said(void)
{
    static char told[sizeof said];
    memcpy(told, said, sizeof said);
    said[0] = '\0';
    return told;
}

static const char *in_folder(const struct hls_rig *rig, const char *name)
{
    static char path[4][HLS_PATH_BYTES];
    static unsigned next;
    char *made = path[next++ % 4];
    snprintf(made, sizeof path[0], "%s/%s", rig->folder, name);
    return made;
}

static void begin(struct hls_rig *rig, bool with_input)
{
    static char keys[HLS_PATH_BYTES];
    struct core_error error;
    snprintf(keys, sizeof keys, "%s", in_folder(rig, "keys"));
    rig->address = (struct core_options_server){.address = rig->server.fake.address, .timeout_ms = 10000};
    rig->hls = (struct hls){.input = -1,
                            .memory_max = 1 << 20,
                            .keys = {.folder = keys, .uri_template = "{id}", .rotate = 2},
                            .link = {.server = &rig->address},
                            .say = say};
    TEST_REQUIRE(hls_folder_open(in_folder(rig, "out"), &rig->hls.output, &error) == CORE_OK);
    if (with_input)
        rig->hls.input = open(in_folder(rig, "in"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    hls_start(&rig->hls);
}

static void end(struct hls_rig *rig)
{
    hls_close(&rig->hls);
    close(rig->hls.output);
    if (rig->hls.input >= 0)
        close(rig->hls.input);
}

void hls_rig_start(struct hls_rig *rig, const struct hls_server *server, bool with_input)
{
    struct core_error error;
    bool locked;
    *rig = (struct hls_rig){.folder = "/tmp/test-client-hls-XXXXXX"};
    TEST_REQUIRE(core_secret_init(1 << 20, &locked, &error) == CORE_OK);
    TEST_REQUIRE(mkdtemp(rig->folder) != NULL);
    TEST_REQUIRE(mkdir(in_folder(rig, "in"), 0777) == 0 && mkdir(in_folder(rig, "out"), 0777) == 0 &&
                 mkdir(in_folder(rig, "keys"), 0777) == 0);
    if (server != NULL)
        rig->server = *server;
    hls_server_start(&rig->server);
    begin(rig, with_input);
    said[0] = '\0';
}

void hls_rig_again(struct hls_rig *rig)
{
    bool with_input = rig->hls.input >= 0;
    end(rig);
    begin(rig, with_input);
}

void hls_rig_stop(struct hls_rig *rig)
{
    char line[128];
    end(rig);
    hls_server_stop(&rig->server);
    snprintf(line, sizeof line, "rm -rf %s", rig->folder);
    TEST_REQUIRE(system(line) == 0); /* NOLINT(cert-env33-c): a name of ours */
}

void hls_rig_put(struct hls_rig *rig, const char *path, const char *text)
{
    struct core_error error = {""};
    uint8_t *content = (uint8_t *)strdup(text);
    TEST_REQUIRE(content != NULL);
    core_status status = hls_put(&rig->hls, path, content, strlen(text), &error);
    if (status)
        fprintf(stderr, "%s\n", error.text);
    TEST_REQUIRE(status == CORE_OK);
}

void hls_rig_write(const struct hls_rig *rig, const char *path, const char *text)
{
    FILE *file = fopen(in_folder(rig, path), "we");
    TEST_REQUIRE(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* ---- turns ---- */

void hls_rig_turn(struct hls_rig *rig, unsigned count)
{
    while (count-- > 0) {
        hls_turn(&rig->hls, core_time_now_ns());
        struct pollfd ready = {.fd = hls_link_descriptor(&rig->hls.link),
                               .events = hls_link_events(&rig->hls.link)};
        poll(&ready, 1, 1);
    }
}

static uint8_t *read_output(const struct hls_rig *rig, const char *path, size_t *bytes)
{
    uint8_t *content;
    struct stat about;
    if (hls_folder_read(rig->hls.output, path, 1 << 20, &content, bytes, &about, NULL) != CORE_OK)
        return NULL;
    content[*bytes] = '\0';
    return content;
}

bool hls_rig_has(const struct hls_rig *rig, const char *path, const char *words)
{
    size_t bytes;
    uint8_t *content = read_output(rig, path, &bytes);
    bool has = content != NULL && strstr((const char *)content, words) != NULL;
    free(content);
    return has;
}

bool hls_rig_await(struct hls_rig *rig, const char *path, const char *words)
{
    bool has = hls_rig_has(rig, path, words);
    for (unsigned i = 0; i < PATIENCE_TURNS && !has; i++) {
        hls_rig_turn(rig, 1);
        has = hls_rig_has(rig, path, words);
    }
    return has;
}

/* ---- what has come of it ---- */

/* The first byte of the key that the playlist has for the file; -1: none. */
static int key_of(const struct hls_rig *rig, const char *playlist, const char *path)
{
    struct hls_playlist read;
    size_t bytes;
    char name[64], resolved[HLS_PATH_BYTES];
    uint8_t *text = read_output(rig, playlist, &bytes), key[16];
    int first = -1;
    if (text == NULL || hls_playlist_parse((const char *)text, bytes, &read, NULL) != CORE_OK)
        return -1;
    for (size_t i = 0; i < read.item_count; i++) {
        const struct hls_item *item = &read.items[i];
        snprintf(name, sizeof name, "keys/%.40s.key", item->cover.key_uri);
        FILE *file = hls_path_resolve(playlist, item->uri, item->uri_bytes, resolved) == CORE_OK &&
                             strcmp(resolved, path) == 0
                         ? fopen(in_folder(rig, name), "re")
                         : NULL;
        if (file != NULL && fread(key, 1, sizeof key, file) == sizeof key)
            first = key[0];
        if (file != NULL)
            fclose(file);
    }
    hls_playlist_free(&read);
    free(text);
    return first;
}

bool hls_rig_is_cipher(const struct hls_rig *rig, const char *playlist, const char *path, const char *text)
{
    size_t bytes;
    uint8_t *content = read_output(rig, path, &bytes);
    int key = key_of(rig, playlist, path);
    bool right = content != NULL && key >= 0 &&
                 hls_server_is_cipher(content, bytes, (const uint8_t *)text, strlen(text), (uint8_t)key);
    free(content);
    return right;
}
