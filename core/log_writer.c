#include "core/log_writer.h"

#include "core/log_ring.h"
#include "core/realtime.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <semaphore.h>
#include <stdio.h>
#include <unistd.h>

static struct core_log_ring ring;
static sem_t wake;              /* posted for each entry that is published, and to end */
static pthread_t writer;        /* of who starts and stops */
static atomic_bool running;     /* written by who starts and stops, read by any thread */
static atomic_bool ending;      /* written by who stops, read by the writer */
static atomic_bool ended;       /* written by the writer, read by who stops */
static _Atomic uint64_t lost;   /* lines, since the start of the process */
static _Atomic uint64_t untold; /* of these, not yet told in the log */
static _Atomic uint64_t turns;  /* of the writer, read by any thread */
static atomic_bool writing;     /* the writer is at the descriptor or the journal, read by any thread */
static atomic_bool cut;         /* the last line could not be written to its end */
static struct core_log_entry directly;                   /* of who holds the lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* lines that are written directly */

/* ---- lines to the descriptor ---- */

static uint64_t count_lost(uint64_t lines)
{
    atomic_fetch_add_explicit(&lost, lines, memory_order_relaxed); /* a figure */
    return atomic_fetch_add_explicit(&untold, lines, memory_order_relaxed);
}

/* Goes on after short writes, signals, and where the descriptor is one that does not block. */
static bool write_all(int descriptor, const char *bytes, size_t count)
{
    struct pollfd room = {.fd = descriptor, .events = POLLOUT};
    size_t done = 0;
    while (done < count) {
        const ssize_t written = write(descriptor, bytes + done, count - done);
        if (written > 0)
            done += (size_t)written;
        else if (written < 0 && errno == EAGAIN)
            (void)poll(&room, 1, -1);
        else if (written == 0 || errno != EINTR)
            break;
    }
    if (done > 0)
        atomic_store_explicit(&cut, done < count, memory_order_relaxed); /* one thread writes at a time */
    return done == count;
}

static bool write_entry(const struct core_log_entry *entry)
{
    const struct core_log_options options = core_log_configured();
    struct core_log_line line;
    if (options.sink != NULL && options.sink(entry))
        return true;
    core_log_line_build(&line, entry, options.format);
    if (atomic_load_explicit(&cut, memory_order_relaxed) && !write_all(options.descriptor, "\n", 1))
        return false;
    return write_all(options.descriptor, line.text, line.bytes);
}

/* Where the line fails too, the next one tells. */
static void tell_lost(uint64_t lines)
{
    struct core_log_entry entry = {.level = CORE_LOG_WARNING, .cause = "log.lost"};
    if (lines == 0)
        return;
    clock_gettime(CLOCK_REALTIME, &entry.at);
    snprintf(entry.message, sizeof entry.message,
             "%" PRIu64 " line%s lost: the log was not read in time, or could not be written", lines,
             lines == 1 ? " was" : "s were");
    if (!write_entry(&entry))
        atomic_fetch_add_explicit(&untold, lines, memory_order_relaxed);
}

/* Any thread that writes. */
static void write_or_count(const struct core_log_entry *entry)
{
    tell_lost(entry->lost_before);
    if (!write_entry(entry))
        (void)count_lost(1);
}

static uint64_t take_untold(void)
{
    return atomic_exchange_explicit(&untold, 0, memory_order_relaxed);
}

/* ---- the writer ---- */

static void write_published(void)
{
    const struct core_log_entry *entry;
    while ((entry = core_log_ring_peek(&ring)) != NULL) {
        write_or_count(entry);
        core_log_ring_release(&ring);
    }
}

/* It may wait for the reader of the log for as long as that takes: nobody waits for it. */
static void *writer_run(void *unused)
{
    bool last;
    do {
        while (sem_wait(&wake) != 0)
            ;                        /* interrupted */
        last = atomic_load(&ending); /* what was published before that is there now */
        atomic_store(&writing, true);
        write_published();
        tell_lost(take_untold());
        atomic_store(&writing, false);
        atomic_fetch_add(&turns, 1);
    } while (!last);
    atomic_store(&ended, true);
    return unused;
}

core_status core_log_start(struct core_error *error)
{
    const struct core_thread_options options = {.name = "log", .cpu = -1};
    core_log_ring_init(&ring);
    sem_init(&wake, 0, 0);
    atomic_store(&ending, false);
    atomic_store(&ended, false);
    const core_status status = core_thread_start(&writer, &options, writer_run, NULL, NULL, error);
    atomic_store(&running, status == CORE_OK);
    return status;
}

/* What other threads published too late for the writer is written here. */
bool core_log_stop(core_ns timeout_ns)
{
    const core_ns until_ns = core_time_now_ns() + timeout_ns;
    if (!atomic_load(&running))
        return true;
    atomic_store(&ending, true);
    sem_post(&wake);
    while (!atomic_load(&ended)) {
        if (core_time_now_ns() > until_ns)
            return false;
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    }
    pthread_join(writer, NULL);
    atomic_store(&running, false);
    write_published();
    sem_destroy(&wake);
    return true;
}

void core_log_nudge(void)
{
    if (!core_log_waits())
        sem_post(&wake);
}

uint64_t core_log_turns(void)
{
    return atomic_load(&turns);
}

bool core_log_waits(void)
{
    return !atomic_load(&running) || atomic_load(&writing);
}

uint64_t core_log_lost(void)
{
    return atomic_load_explicit(&lost, memory_order_relaxed);
}

/* ---- any thread ---- */

struct core_log_entry *core_log_writer_begin(void)
{
    struct core_log_entry *entry = &directly;
    if (!atomic_load(&running))
        pthread_mutex_lock(&lock);
    else if ((entry = core_log_ring_claim(&ring)) == NULL && count_lost(1) == 0)
        sem_post(&wake); /* where the writer has just emptied the ring, nobody else would tell */
    if (entry != NULL)
        entry->lost_before = take_untold();
    return entry;
}

void core_log_writer_end(struct core_log_entry *entry)
{
    if (entry != &directly) {
        core_log_ring_publish(entry);
        sem_post(&wake);
        return;
    }
    write_or_count(entry);
    pthread_mutex_unlock(&lock);
}
