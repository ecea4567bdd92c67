/* The HTTP side of millrace hls: what each request is answered, what it leaves behind, and where it listens. */
#include "client/hls/http.h"
#include "tests/support/http.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])
#define MEMORY_BYTES    4096

struct rig {
    char folder[64];
    struct hls hls;
    struct hls_http http;
    pthread_t thread; /* owns hls and http until it ends */
    atomic_bool stopping;
};

static unsigned told_full; /* owned by the thread that owns hls */

static void say(const char *format, ...)
{
    told_full += strstr(format, "does not fit into --memory") != NULL;
}

static void *serve(void *argument)
{
    struct rig *rig = argument;
    while (!atomic_load(&rig->stopping)) {
        struct pollfd ready = {.fd = hls_http_descriptor(&rig->http), .events = POLLIN};
        poll(&ready, 1, hls_http_wait_ms(&rig->http, 10));
        hls_http_turn(&rig->http);
    }
    return NULL;
}

static void go_on(struct rig *rig)
{
    atomic_store(&rig->stopping, false);
    assert_int_equal(pthread_create(&rig->thread, NULL, serve, rig), 0);
}

static int start(void **state)
{
    static struct rig rig;
    struct core_error error;
    char address[128];
    rig = (struct rig){.folder = "/tmp/test-client-hls-XXXXXX"};
    assert_non_null(mkdtemp(rig.folder));
    rig.hls.input = -1;
    rig.hls.output = open(rig.folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    rig.hls.memory_max = MEMORY_BYTES;
    rig.hls.say = say;
    hls_start(&rig.hls);
    snprintf(address, sizeof address, "unix:%s/socket", rig.folder);
    assert_int_equal(hls_http_start(&rig.http, &rig.hls, address, &error), CORE_OK);
    go_on(&rig);
    *state = &rig;
    return 0;
}

/* Of a rig that has stopped, hls and http may be looked at. */
static void stop(struct rig *rig)
{
    atomic_store(&rig->stopping, true);
    pthread_join(rig->thread, NULL);
}

static int clean_up(void **state)
{
    struct rig *rig = *state;
    stop(rig);
    hls_http_stop(&rig->http);
    hls_close(&rig->hls);
    close(rig->hls.output);
    return rmdir(rig->folder);
}

static struct http_answer ask(const struct rig *rig, const char *method, const char *path, const char *body)
{
    char head[512];
    int bytes =
        snprintf(head, sizeof head,
                 "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n",
                 method, path, strlen(body));
    int descriptor = http_dial(&rig->http.bound);
    http_send(descriptor, head, (size_t)bytes);
    http_send(descriptor, body, strlen(body));
    return http_read(descriptor);
}

static void expect(const struct rig *rig, const char *method, const char *path, const char *body, int code)
{
    struct http_answer answer = ask(rig, method, path, body);
    if (answer.code != code)
        fail_msg("%s %s: %d, not %d: %s", method, path, answer.code, code, answer.body);
    http_free(&answer);
}

static void answers(void **state)
{
    static const struct {
        const char *method, *path, *body;
        int code;
    } requests[] = {
        {"PUT", "/a.ts", "clear", 201},
        {"POST", "/live/b.ts", "clear", 201},
        {"PUT", "/empty.ts", "", 201},
        {"GET", "/a.ts", "", 404}, /* not encrypted */
        {"PUT", "/x.m3u8", "#EXTM3U\n#EXTINF:4,\n7.ts\n", 201},
        {"PUT", "/x.m3u8", "no playlist", 422},
        {"PUT", "/x.m3u8", "#EXTM3U\n#EXT-X-KEY:METHOD=AES-128,URI=\"k\"\n#EXTINF:4,\n7.ts\n", 422},
        {"PUT", "/../a.ts", "clear", 400},
        {"PUT", "/%2e%2e/a.ts", "clear", 400},
        {"PUT", "/.a.ts", "clear", 400},
        {"PUT", "/a//b.ts", "clear", 400},
        {"GET", "/", "", 400},
        {"PATCH", "/a.ts", "clear", 405},
        {"GET", "/nothing", "", 404},
        {"DELETE", "/nothing", "", 204},
    };
    const struct rig *rig = *state;
    for (size_t i = 0; i < COUNT_OF(requests); i++)
        expect(rig, requests[i].method, requests[i].path, requests[i].body, requests[i].code);
}

static void serves_the_output(void **state)
{
    const struct rig *rig = *state;
    struct core_error error;
    assert_int_equal(hls_folder_publish(rig->hls.output, "a.ts", "cipher", 6, &error), CORE_OK);
    struct http_answer answer = ask(rig, "GET", "/a.ts", "");
    assert_int_equal(answer.code, 200);
    assert_string_equal(answer.body, "cipher");
    assert_non_null(strstr(answer.bytes, "Content-Type: video/mp2t\r\n"));
    http_free(&answer);
    answer = ask(rig, "HEAD", "/a.ts", "");
    assert_int_equal(answer.code, 200);
    assert_string_equal(answer.body, "");
    http_free(&answer);
    expect(rig, "DELETE", "/a.ts", "", 204);
    expect(rig, "GET", "/a.ts", "", 404);
    answer = ask(rig, "GET", "/metrics", "");
    assert_non_null(strstr(answer.body, "\nmillrace_hls_connected 0\n"));
    http_free(&answer);
}

static void keeps_to_its_memory(void **state)
{
    struct rig *rig = *state;
    told_full = 0; /* nobody asks yet */
    char body[MEMORY_BYTES + 2];
    memset(body, 'x', sizeof body);
    body[MEMORY_BYTES + 1] = '\0';
    expect(rig, "PUT", "/a.ts", body, 503);
    body[MEMORY_BYTES] = '\0';
    expect(rig, "PUT", "/a.ts", body, 201);
    expect(rig, "PUT", "/b.ts", "x", 503);
    expect(rig, "PUT", "/b.ts", "x", 503);
    expect(rig, "DELETE", "/a.ts", "", 204);
    expect(rig, "PUT", "/b.ts", "x", 201);
    stop(rig);
    assert_int_equal(told_full, 2); /* once each time */
    assert_int_equal(rig->hls.clear_bytes, 1);
    assert_int_equal(rig->http.uploading_bytes, 0);
    go_on(rig);
}

/* PUT and DELETE until PUT is answered so, some seconds at most. */
static void await_answer(const struct rig *rig, const char *body, int code)
{
    int got = 0;
    for (int i = 0; i < 10000 && got != code; i++) {
        struct http_answer answer = ask(rig, "PUT", "/b.ts", body);
        got = answer.code;
        http_free(&answer);
        expect(rig, "DELETE", "/b.ts", "", 204);
    }
    assert_int_equal(got, code);
}

/* A file that is being received takes memory; one that is cut off is none, and takes none. */
static void forgets_what_is_cut_off(void **state)
{
    static const char begun[] = "PUT /a.ts HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nclear";
    struct rig *rig = *state;
    char body[MEMORY_BYTES];
    memset(body, 'x', sizeof body);
    body[MEMORY_BYTES - 1] = '\0';
    int descriptor = http_dial(&rig->http.bound);
    http_send(descriptor, begun, sizeof begun - 1);
    await_answer(rig, body, 503);
    close(descriptor);
    await_answer(rig, body, 201);
    stop(rig);
    assert_int_equal(rig->hls.clear_bytes, 0);
    go_on(rig);
}

/* Nothing but files is served, whatever their names. */
static void serves_files_alone(void **state)
{
    const struct rig *rig = *state;
    struct core_error error;
    assert_int_equal(hls_folder_publish(rig->hls.output, "a/plain", "1", 1, &error), CORE_OK);
    assert_int_equal(hls_folder_publish(rig->hls.output, "a/x.unknown", "2", 1, &error), CORE_OK);
    assert_int_equal(hls_folder_publish(rig->hls.output, "a/x.m3u8", "3", 1, &error), CORE_OK);
    expect(rig, "GET", "/a", "", 404);
    struct http_answer answer = ask(rig, "GET", "/a/plain", "");
    assert_non_null(strstr(answer.bytes, "Content-Type: application/octet-stream\r\n"));
    http_free(&answer);
    answer = ask(rig, "GET", "/a/x.unknown", "");
    assert_non_null(strstr(answer.bytes, "Content-Type: application/octet-stream\r\n"));
    http_free(&answer);
    answer = ask(rig, "GET", "/a/x.m3u8", "");
    assert_non_null(strstr(answer.bytes, "Cache-Control: no-cache\r\n"));
    http_free(&answer);
    expect(rig, "DELETE", "/a/plain", "", 204);
    expect(rig, "DELETE", "/a/x.unknown", "", 204);
    expect(rig, "DELETE", "/a/x.m3u8", "", 204);
    assert_int_equal(unlinkat(rig->hls.output, "a", AT_REMOVEDIR), 0);
}

/* A body that comes in pieces, and outgrows the room that was made for it at first. */
static void takes_large_files(void **state)
{
    struct rig *rig = *state;
    const size_t bytes = (size_t)600 << 10;
    char *body = malloc(bytes + 1);
    assert_non_null(body);
    memset(body, 'x', bytes);
    body[bytes] = '\0';
    stop(rig);
    rig->hls.memory_max = bytes;
    go_on(rig);
    expect(rig, "PUT", "/a.ts", body, 201);
    expect(rig, "PUT", "/b.ts", body, 503);
    stop(rig);
    assert_int_equal(rig->hls.clear_bytes, bytes);
    go_on(rig);
    expect(rig, "PUT", "/a.ts", "", 201);
    free(body);
}

/* What is no request is answered, or is not, and harms nobody. */
static void outlives_what_is_no_request(void **state)
{
    static const char *const broken[] = {
        "",
        "GARBAGE\r\n\r\n",
        "PUT /a.ts HTTP/1.1\r\nContent-Length: -7\r\n\r\n",
        "PUT /a.ts HTTP/1.1\r\nHost: l\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "GET a.ts HTTP/1.1\r\nHost: l\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: l\r\nConnection: close\r\n\r\n"};
    const struct rig *rig = *state;
    for (size_t i = 0; i < COUNT_OF(broken); i++) {
        int descriptor = http_dial(&rig->http.bound);
        http_send(descriptor, broken[i], strlen(broken[i]));
        shutdown(descriptor, SHUT_WR);
        struct http_answer answer = http_read(descriptor);
        if (answer.code >= 200 && answer.code < 300)
            fail_msg("%s: %d", broken[i], answer.code);
        http_free(&answer);
    }
    expect(rig, "PUT", "/a.ts", "clear", 201);
}

static void listens_on_this_machine(void **state)
{
    static const char *const here[] = {"tcp:127.0.0.1:0", "tcp:[::1]:0", "tcp:localhost:0"};
    struct hls hls = {.say = say};
    struct core_error error;
    (void)state;
    for (size_t i = 0; i < COUNT_OF(here); i++) {
        struct hls_http http = {0};
        if (hls_http_start(&http, &hls, here[i], &error) == CORE_OK) {
            assert_true(hls_http_descriptor(&http) >= 0);
            char text[300];
            struct hls_http second = {0}; /* which finds it taken */
            core_address_format(&http.bound, text, sizeof text);
            assert_int_equal(hls_http_start(&second, &hls, text, &error), CORE_IN_USE);
            hls_http_stop(&http);
            hls_http_stop(&http); /* it has stopped already */
        } else if (i != 1) {      /* there may be no IPv6 */
            fail_msg("%s", error.text);
        }
    }
}

static void listens_on_this_machine_alone(void **state)
{
    static const char *const elsewhere[] = {"tcp:0.0.0.0:0", "tcp:[::]:0", "tcp:192.0.2.1:80",
                                            "tls:127.0.0.1:0", "nonsense"};
    struct hls_http http = {0};
    struct core_error error;
    (void)state;
    for (size_t i = 0; i < COUNT_OF(elsewhere); i++)
        if (hls_http_start(&http, NULL, elsewhere[i], &error) == CORE_OK)
            fail_msg("listens on %s", elsewhere[i]);
    assert_null(http.daemon);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(answers, start, clean_up),
        cmocka_unit_test_setup_teardown(serves_the_output, start, clean_up),
        cmocka_unit_test_setup_teardown(keeps_to_its_memory, start, clean_up),
        cmocka_unit_test_setup_teardown(forgets_what_is_cut_off, start, clean_up),
        cmocka_unit_test_setup_teardown(serves_files_alone, start, clean_up),
        cmocka_unit_test_setup_teardown(takes_large_files, start, clean_up),
        cmocka_unit_test_setup_teardown(outlives_what_is_no_request, start, clean_up),
        cmocka_unit_test(listens_on_this_machine),
        cmocka_unit_test(listens_on_this_machine_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
