/* Attacks on the machine under the server: cards that die, threads that stop, cores that are not there. */
#include "bench/siege/siege.h"

#include "client/contract.h"
#include "core/realtime.h"
#include "inputgen/churn_watch.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NOTICE_GOAL_NS (20 * CORE_NS_PER_MS)
#define NOTICE_MAX_NS  (3 * CORE_NS_PER_S) /* then it was not noticed at all */
#define STOP_NS        CORE_NS_PER_S
#define ANSWER_MS      20000

/* ---- cards ---- */

/* Looks at everything that /proc has of a process, as ps, top and exporters do, as long as it is told to. */
struct reader {
    _Atomic pid_t process; /* atomic: written by who kills, read by the reader; -1: end */
};

static void *read_all_day(void *argument)
{
    static const char *const names[] = {"status", "stat", "cmdline", "statm", "io", "maps"};
    struct reader *reader = argument;
    pid_t process;
    char path[64], bytes[4096];
    while ((process = atomic_load(&reader->process)) >= 0) {
        for (size_t at = 0; process > 0 && at < sizeof names / sizeof *names; at++) {
            (void)snprintf(path, sizeof path, "/proc/%d/%s", (int)process, names[at]);
            const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
            if (descriptor < 0)
                continue;
            while (read(descriptor, bytes, sizeof bytes) > 0)
                ;
            (void)close(descriptor);
        }
        if (process == 0)
            core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    }
    return NULL;
}

static off_t log_bytes(const struct bench_daemon *daemon)
{
    char path[128];
    struct stat file;
    bench_daemon_log(daemon, path, sizeof path);
    return stat(path, &file) == 0 ? file.st_size : 0;
}

/* When the first line about a lost card that the log has behind `from` was taken down, by the calendar, which
 * is when the thread that logs it knew; not when it was written, which an ordinary thread does. 0: there is
 * none. */
static core_ns fault_told_ns(const struct bench_daemon *daemon, off_t from)
{
    char path[128], line[512];
    struct tm day = {0};
    core_ns told_ns = 0;
    bench_daemon_log(daemon, path, sizeof path);
    FILE *file = fopen(path, "re");
    if (file)
        (void)fseeko(file, from, SEEK_SET);
    while (file && told_ns == 0 && fgets(line, sizeof line, file)) {
        const char *fraction =
            strstr(line, " gpu.fault ") ? strptime(line, "%Y-%m-%dT%H:%M:%S.", &day) : NULL;
        if (fraction)
            told_ns = (core_ns)timegm(&day) * CORE_NS_PER_S + strtol(fraction, NULL, 10) * CORE_NS_PER_US;
    }
    if (file)
        (void)fclose(file);
    return told_ns;
}

static core_ns calendar_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (core_ns)now.tv_sec * CORE_NS_PER_S + now.tv_nsec;
}

/* Kills a card's process: how long it took the server to know; -1: it had ended before. */
static core_ns kill_card(const struct bench_daemon *daemon, pid_t process)
{
    const off_t before = log_bytes(daemon);
    const core_ns start_ns = calendar_ns(), end_ns = core_time_now_ns() + NOTICE_MAX_NS;
    core_ns told_ns = 0;
    if (kill(process, SIGKILL) != 0)
        return -1;
    while (told_ns == 0 && core_time_now_ns() < end_ns) {
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
        if (log_bytes(daemon) > before)
            told_ns = fault_told_ns(daemon, before);
    }
    return told_ns == 0 ? NOTICE_MAX_NS : told_ns - start_ns;
}

/* The card that is next, if all are in service; 0: none is. */
static pid_t card_to_kill(const struct inputgen_watch *watch, uint64_t kills)
{
    for (size_t at = 0; at < watch->gpu_count; at++)
        if (!watch->gpus[at].up)
            return 0;
    return watch->gpu_count == 0 ? 0 : watch->gpus[kills % watch->gpu_count].process;
}

static core_status kill_cards(struct siege *siege, struct reader *reader, struct core_error *error)
{
    struct inputgen_watch watch = {.admin = siege->daemon->admin};
    while (siege_goes_on(siege)) {
        core_status status = inputgen_watch_now(&watch, error);
        if (status != CORE_OK)
            return status;
        const pid_t card = card_to_kill(&watch, siege->done);
        atomic_store(&reader->process, card);
        core_time_sleep_until(core_time_now_ns() + 20 * CORE_NS_PER_MS);
        if (card == 0)
            continue;
        const core_ns took_ns = kill_card(siege->daemon, card);
        if (took_ns < 0)
            continue;
        siege->noticed_late += took_ns > NOTICE_GOAL_NS;
        siege->notice_ns = core_time_max(took_ns, siege->notice_ns);
        siege->done++;
    }
    siege->failed = siege->noticed_late > 0 || siege->done == 0;
    (void)snprintf(siege->note, sizeof siege->note,
                   "noticed in %.1f ms at worst, by the log; %llu took more than 20 ms",
                   (double)siege->notice_ns / 1e6, (unsigned long long)siege->noticed_late);
    return CORE_OK;
}

core_status siege_cards(struct siege *siege, struct core_error *error)
{
    static const struct core_thread_options options = {.name = "reader", .cpu = -1};
    struct reader reader = {0};
    pthread_t thread;
    core_status status = core_thread_start(&thread, &options, read_all_day, &reader, NULL, error);
    if (status != CORE_OK)
        return status;
    status = kill_cards(siege, &reader, error);
    atomic_store(&reader.process, -1);
    (void)pthread_join(thread, NULL);
    return status;
}

/* ---- a stop ---- */

core_status siege_stop(struct siege *siege, struct core_error *error)
{
    do {
        if (kill(siege->daemon->process, SIGSTOP) != 0)
            return core_error_errno(error, "the server can not be stopped");
        core_time_sleep_until(core_time_now_ns() + STOP_NS);
        (void)kill(siege->daemon->process, SIGCONT);
        siege->done++;
        core_time_sleep_until(core_time_now_ns() + STOP_NS);
    } while (siege_goes_on(siege));
    return CORE_OK;
}

/* ---- threads ---- */

/* What a server grants of 100 Mbit/s streams, in Gbit/s, before it refuses. */
static core_status promised(const char *address, double *gbit_per_s, struct core_error *error)
{
    static const uint8_t key[16];
    const struct millrace_open open = {.size = sizeof open,
                                       .packet_bytes = 12500,
                                       .burst_packets = 1,
                                       .interval_ns = CORE_NS_PER_MS,
                                       .latency_ns = 50 * CORE_NS_PER_MS,
                                       .cipher = MILLRACE_CIPHER_AES_128_CBC,
                                       .padding = MILLRACE_PADDING_PKCS7,
                                       .key_kind = MILLRACE_KEY_INLINE,
                                       .key = key,
                                       .key_bytes = sizeof key};
    const struct core_stream_spec spec = client_contract_spec(&open);
    struct millrace *connection;
    struct millrace_opened opened = {.size = sizeof opened};
    core_status status = (core_status)millrace_connect(address, NULL, ANSWER_MS, &connection, error->text);
    if (status != CORE_OK)
        return status;
    *gbit_per_s = 0;
    while ((status = (core_status)millrace_open_stream(connection, &open, ANSWER_MS, &opened, NULL,
                                                       error->text)) == CORE_OK)
        *gbit_per_s += core_stream_rate_bits_per_s(&spec) / 1e9;
    millrace_disconnect(connection);
    return status == CORE_REFUSED ? CORE_OK : status;
}

/* The row's own server has 64 of each; another one chooses for itself. */
core_status siege_threads(struct siege *siege, struct core_error *error)
{
    struct bench_daemon own;
    double many = 0, chosen = 0;
    core_status status = promised(siege->daemon->address, &many, error);
    if (status == CORE_OK)
        status = bench_daemon_start(&own, siege->server, error);
    if (status != CORE_OK)
        return status;
    status = promised(own.address, &chosen, error);
    const core_status stopped = bench_daemon_stop(&own, status == CORE_OK ? error : NULL);
    siege->done = 1;
    siege->failed = many > chosen * core_cpu_count();
    (void)snprintf(siege->note, sizeof siege->note,
                   "64 workers, 64 I/O threads on %u cores promise %.1f Gbit/s; as chosen %.1f",
                   core_cpu_count(), many, chosen);
    return status == CORE_OK ? stopped : status;
}
