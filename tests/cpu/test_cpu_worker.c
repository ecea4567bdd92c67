/* Workers as threads: several producers, order in every stream, full rings, slow collectors, the end with
 * work queued. Run under ThreadSanitizer too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <openssl/evp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cpu/worker.h"

#define PRODUCERS    3
#define STREAMS      40 /* of each producer */
#define PACKET_BYTES 96

#define BURST_BOUND_NS CORE_NS_PER_MS

struct producer {
    struct cpu_worker *worker;
    uint32_t number;
    int descriptor; /* eventfd: the worker's notification */
    uint32_t packets, collect_at_once;
    uint32_t serves; /* two times in three it does the work of a worker that sleeps: 1, or not: 0 */
    struct cpu_stream *streams[STREAMS];
    struct cpu_packet *packet;
    uint8_t *data;
    uint32_t collected;
    uint32_t errors; /* asserts belong to the main thread */
};

static int descriptors[PRODUCERS];

static void notify(void *argument, uint32_t producer)
{
    static const uint64_t one = 1;
    const int *all = argument;
    (void)!write(all[producer], &one, sizeof one);
}

static atomic_int hold, held; /* the next notification keeps the worker until it is let go; it does so */

static void notify_slowly(void *argument, uint32_t producer)
{
    notify(argument, producer);
    atomic_store(&held, atomic_load(&hold));
    while (atomic_load(&hold) != 0)
        usleep(1000);
}

static struct cpu_worker *worker_start(const struct cpu_engine_ops *ops, uint32_t ring_packets)
{
    struct cpu_worker *worker;
    struct core_error error, not_permitted;
    struct cpu_worker_options options = {.thread = {.name = "test-worker", .cpu = -1},
                                         .scheduler = {.ops = ops,
                                                       .burst_pieces = 16,
                                                       .far_capacity = PRODUCERS * STREAMS,
                                                       .burst_bound_ns = BURST_BOUND_NS},
                                         .producers = PRODUCERS,
                                         .ring_packets = ring_packets,
                                         .notify = notify_slowly,
                                         .notify_argument = descriptors};
    for (int i = 0; i < PRODUCERS; i++) {
        descriptors[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        assert_true(descriptors[i] >= 0);
    }
    assert_int_equal(cpu_worker_start(&worker, &options, &not_permitted, &error), CORE_OK);
    return worker;
}

static void worker_stop(struct cpu_worker *worker)
{
    cpu_worker_stop(worker);
    for (int i = 0; i < PRODUCERS; i++)
        close(descriptors[i]);
}

static uint8_t plain_byte(uint32_t packet)
{
    return (uint8_t)(packet * 7 + 1);
}

static void producer_open(struct producer *producer, struct cpu_worker *worker, uint32_t number,
                          const struct cpu_engine_ops *ops, uint32_t packets, uint32_t collect_at_once)
{
    static const uint8_t iv[CORE_BLOCK_BYTES];
    struct cpu_engine *engine;
    memset(producer, 0, sizeof *producer);
    producer->worker = worker;
    producer->number = number;
    producer->descriptor = descriptors[number];
    producer->packets = packets;
    producer->collect_at_once = collect_at_once;
    producer->packet = calloc(packets, sizeof *producer->packet);
    producer->data = malloc((size_t)packets * PACKET_BYTES);
    assert_int_equal(ops->open(&engine, NULL), CORE_OK);
    for (uint32_t i = 0; i < STREAMS; i++) {
        uint8_t key[32] = {(uint8_t)number, (uint8_t)i};
        producer->streams[i] = aligned_alloc(64, cpu_stream_bytes(ops, 1));
        const struct cpu_stream_options options = {.cipher = CORE_CIPHER_AES_128_CBC,
                                                   .piece_bytes = i % 2 == 0 ? 32 : 4096,
                                                   .piece_deadline_ns = (1 + i % 5) * CORE_NS_PER_MS};
        assert_int_equal(cpu_stream_init(producer->streams[i], ops, engine, &options, key, iv), CORE_OK);
    }
    ops->close(engine);
    for (uint32_t i = 0; i < packets; i++) {
        uint8_t *data = producer->data + (size_t)i * PACKET_BYTES;
        memset(data, plain_byte(i), PACKET_BYTES);
        producer->packet[i] = (struct cpu_packet){.stream = producer->streams[i % STREAMS],
                                                  .data = data,
                                                  .bytes = PACKET_BYTES,
                                                  .release_ns = core_time_now_ns()};
    }
}

/* Every stream's packets, decrypted as one message, are what went in: nothing lost, doubled or out of order.
 */
static void producer_check(struct producer *producer)
{
    uint8_t plain[PACKET_BYTES + CORE_BLOCK_BYTES];
    for (uint32_t s = 0; s < STREAMS; s++) {
        uint8_t key[32] = {(uint8_t)producer->number, (uint8_t)s}, iv[CORE_BLOCK_BYTES] = {0};
        EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
        assert_int_equal(EVP_DecryptInit_ex(context, EVP_aes_128_cbc(), NULL, key, iv), 1);
        assert_int_equal(EVP_CIPHER_CTX_set_padding(context, 0), 1);
        for (uint32_t i = s; i < producer->packets; i += STREAMS) {
            int bytes = 0;
            const uint8_t *data = producer->data + (size_t)i * PACKET_BYTES;
            assert_int_equal(EVP_DecryptUpdate(context, plain, &bytes, data, PACKET_BYTES), 1);
            assert_int_equal(bytes, PACKET_BYTES);
            for (uint32_t byte = 0; byte < PACKET_BYTES; byte++)
                assert_int_equal(plain[byte], plain_byte(i));
        }
        EVP_CIPHER_CTX_free(context);
    }
}

static void producer_close(struct producer *producer, const struct cpu_engine_ops *ops)
{
    for (uint32_t i = 0; i < STREAMS; i++) {
        cpu_stream_wipe(producer->streams[i], ops);
        free(producer->streams[i]);
    }
    free(producer->packet);
    free(producer->data);
}

static void producer_note(struct producer *producer, struct cpu_packet *const *packets, uint32_t count)
{
    static const uint32_t none = UINT32_MAX;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t number = (uint32_t)(packets[i] - producer->packet);
        producer->errors += number >= producer->packets || packets[i]->status != CORE_OK ||
                            packets[i]->done_bytes != PACKET_BYTES ||
                            packets[i]->producer != producer->number;
        /* order in the stream: its predecessor must have come back already */
        uint32_t before = number >= STREAMS ? number - STREAMS : none;
        producer->errors += before != none && producer->packet[before].bytes != 0;
        packets[i]->bytes = 0;
    }
    producer->collected += count;
}

static void producer_collect(struct producer *producer,
                             uint32_t (*take)(struct cpu_worker *, uint32_t, struct cpu_packet **, uint32_t))
{
    struct cpu_packet *batch[16];
    uint32_t got;
    do {
        got = take(producer->worker, producer->number, batch, producer->collect_at_once);
        producer_note(producer, batch, got);
    } while (got == producer->collect_at_once);
}

/* Hands over the next few packets; returns how many the ring has taken. *served: what it had taken is done. */
static uint32_t producer_submit(struct producer *producer, uint32_t submitted, uint32_t count, bool *served)
{
    struct cpu_packet *batch[16];
    for (uint32_t at = 0; at < count; at++)
        batch[at] = &producer->packet[submitted + at];
    *served = false;
    if (producer->serves == 0)
        return cpu_worker_submit(producer->worker, producer->number, batch, count);
    uint32_t taken = cpu_worker_put(producer->worker, producer->number, batch, count);
    *served = submitted % 3 != 0 && cpu_worker_serve(producer->worker, producer->number);
    if (*served)
        producer_collect(producer, cpu_worker_poll);
    else
        cpu_worker_nudge(producer->worker);
    return taken;
}

/* What an I/O thread does: submits what the ring takes, sleeps until notified, collects. A missing
 * notification shows as a time-out. */
static void *producer_run(void *argument)
{
    struct producer *producer = argument;
    uint32_t submitted = 0;
    while (producer->collected < producer->packets && producer->errors == 0) {
        uint32_t left = producer->packets - submitted, count = left < 16 ? left : 16;
        bool served;
        uint32_t taken = producer_submit(producer, submitted, count, &served);
        submitted += taken;
        if (served || (taken == count && submitted < producer->packets))
            continue;
        struct pollfd poll_descriptor = {.fd = producer->descriptor, .events = POLLIN};
        if (poll(&poll_descriptor, 1, 60000) != 1) {
            producer->errors++;
            break;
        }
        uint64_t notifications;
        (void)!read(producer->descriptor, &notifications, sizeof notifications);
        producer_collect(producer, cpu_worker_collect);
    }
    return NULL;
}

static void run_producers(const struct cpu_engine_ops *ops, uint32_t ring_packets, uint32_t packets,
                          uint32_t collect_at_once, uint32_t serve)
{
    struct cpu_worker *worker = worker_start(ops, ring_packets);
    static struct producer producers[PRODUCERS];
    pthread_t threads[PRODUCERS];
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        producer_open(&producers[i], worker, i, ops, packets, collect_at_once);
        producers[i].serves = i < serve;
        assert_int_equal(pthread_create(&threads[i], NULL, producer_run, &producers[i]), 0);
    }
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(producers[i].errors, 0);
        assert_int_equal(producers[i].collected, packets);
    }
    const struct cpu_scheduler_counters *counters = cpu_worker_counters(worker);
    assert_int_equal(atomic_load(&counters->packets), PRODUCERS * packets);
    assert_int_equal(atomic_load(&counters->bytes), (uint64_t)PRODUCERS * packets * PACKET_BYTES);
    assert_true(cpu_worker_cpu_time_ns(worker) > 0);
    worker_stop(worker);
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        producer_check(&producers[i]);
        producer_close(&producers[i], ops);
    }
}

static void test_many_producers(void **state)
{
    (void)state;
    run_producers(&cpu_engine_ipsec_mb, 1024, 4000, 16, 0);
    run_producers(&cpu_engine_openssl, 1024, 4000, 16, 0);
}

/* One producer, two, or all do the worker's work themselves when they find it asleep. */
static void test_producers_that_serve(void **state)
{
    (void)state;
    for (uint32_t serve = 1; serve <= PRODUCERS; serve++) {
        run_producers(&cpu_engine_ipsec_mb, 1024, 4000, 16, serve);
        run_producers(&cpu_engine_openssl, 2, 1500, 1, serve);
    }
}

/* Rings of two packets: everything is always full, and collecting one at a time makes the worker hold
 * packets. */
static void test_full_rings(void **state)
{
    (void)state;
    run_producers(&cpu_engine_ipsec_mb, 2, 1500, 1, 0);
}

/* A producer that never collects harms no other: the worker keeps its packets and goes on, sleeps, and ends.
 * Everything is there to collect afterwards, in order. */
static void test_held_packets(void **state)
{
    (void)state;
    const struct cpu_engine_ops *ops = &cpu_engine_ipsec_mb;
    enum { RING = 8, PACKETS = 200 };
    struct cpu_worker *worker = worker_start(ops, RING);
    static struct producer lazy, brisk;
    producer_open(&lazy, worker, 0, ops, PACKETS, 16);
    producer_open(&brisk, worker, 1, ops, PACKETS, 16);
    for (uint32_t submitted = 0; submitted < PACKETS;) {
        struct cpu_packet *packet = &lazy.packet[submitted];
        submitted += cpu_worker_submit(worker, 0, &packet, 1);
    }
    producer_run(&brisk);
    assert_int_equal(brisk.errors, 0);
    assert_int_equal(brisk.collected, PACKETS);

    cpu_worker_finish(worker);
    cpu_worker_finish(worker); /* as often as one likes */
    struct cpu_packet *packets[7];
    uint32_t count;
    while ((count = cpu_worker_collect(worker, 0, packets, 7)) > 0)
        producer_note(&lazy, packets, count);
    assert_int_equal(lazy.errors, 0);
    assert_int_equal(lazy.collected, PACKETS);
    worker_stop(worker);
    producer_check(&lazy);
    producer_check(&brisk);
    producer_close(&lazy, ops);
    producer_close(&brisk, ops);
}

/* A collector that comes late finds the worker asleep with held packets, and wakes it. */
static void test_late_collector(void **state)
{
    (void)state;
    const struct cpu_engine_ops *ops = &cpu_engine_openssl;
    enum { RING = 4, PACKETS = 100 };
    struct cpu_worker *worker = worker_start(ops, RING);
    static struct producer producer;
    producer_open(&producer, worker, 0, ops, PACKETS, 16);
    for (uint32_t submitted = 0; submitted < PACKETS;) {
        struct cpu_packet *packet = &producer.packet[submitted];
        submitted += cpu_worker_submit(worker, 0, &packet, 1);
    }
    while (atomic_load(&cpu_worker_counters(worker)->packets) < PACKETS)
        usleep(1000);
    usleep(2000); /* most likely asleep by now; the test holds either way */
    struct pollfd descriptor = {.fd = descriptors[0], .events = POLLIN};
    while (producer.collected < PACKETS) {
        struct cpu_packet *packets[3];
        assert_int_equal(poll(&descriptor, 1, 60000), 1);
        uint64_t notifications;
        assert_int_equal(read(descriptors[0], &notifications, sizeof notifications), sizeof notifications);
        uint32_t count;
        do {
            count = cpu_worker_collect(worker, 0, packets, 3);
            producer_note(&producer, packets, count);
        } while (count == 3);
    }
    assert_int_equal(producer.errors, 0);
    worker_stop(worker);
    producer_check(&producer);
    producer_close(&producer, ops);
}

/* Stop at once: what was submitted is encrypted though nobody collects. */
static void test_stop_with_work_queued(void **state)
{
    (void)state;
    const struct cpu_engine_ops *ops = &cpu_engine_ipsec_mb;
    enum { PACKETS = 2000 };
    struct cpu_worker *worker = worker_start(ops, 2048);
    static struct producer producer;
    producer_open(&producer, worker, 2, ops, PACKETS, 16);
    static struct cpu_packet *all[PACKETS];
    for (uint32_t i = 0; i < PACKETS; i++)
        all[i] = &producer.packet[i];
    assert_int_equal(cpu_worker_submit(worker, 2, all, PACKETS), PACKETS);
    worker_stop(worker);
    for (uint32_t i = 0; i < PACKETS; i++)
        assert_int_equal(producer.packet[i].done_bytes, PACKET_BYTES);
    producer_check(&producer);
    producer_close(&producer, ops);
}

static void submit_and_await(struct cpu_worker *worker, struct cpu_packet *packet, uint64_t packets)
{
    assert_int_equal(cpu_worker_submit(worker, 0, &packet, 1), 1);
    while (atomic_load(&cpu_worker_counters(worker)->packets) < packets)
        usleep(100);
}

/* A worker that is kept between two bursts while a packet waits in its ring has lost that time, and says when
 * and why: no burst was long. */
static void test_a_wait_between_bursts_is_lost(void **state)
{
    (void)state;
    const struct cpu_engine_ops *ops = &cpu_engine_openssl;
    struct cpu_worker *worker = worker_start(ops, 8);
    static struct producer producer;
    struct core_stall stalls[CORE_STALLS];
    uint32_t count, covering = 0;
    producer_open(&producer, worker, 0, ops, 3, 16);

    atomic_store(&hold, 1);
    submit_and_await(worker, &producer.packet[0], 1);
    while (atomic_load(&held) == 0)
        usleep(100);
    core_ns waits_ns = core_time_now_ns();
    struct cpu_packet *second = &producer.packet[1];
    assert_int_equal(cpu_worker_submit(worker, 0, &second, 1), 1);
    usleep(45000);
    core_ns let_go_ns = core_time_now_ns();
    atomic_store(&hold, 0);
    submit_and_await(worker, &producer.packet[2], 3);
    cpu_worker_finish(worker);

    assert_true(atomic_load(&cpu_worker_counters(worker)->lost_ns) >= let_go_ns - waits_ns - BURST_BOUND_NS);
    count = core_stalls_read(cpu_worker_stalls(worker), waits_ns, stalls);
    for (uint32_t i = 0; i < count; i++) {
        bool covers = stalls[i].from_ns <= waits_ns && stalls[i].to_ns >= let_go_ns;
        covering += covers ? 1 : 0;
        assert_true(!covers || stalls[i].why == CORE_STALL_OFF_CORE);
        assert_true(stalls[i].settled_ns >= stalls[i].to_ns && stalls[i].settled_ns < CORE_NS_NEVER);
    }
    assert_int_equal(covering, 1);
    worker_stop(worker);
    producer_close(&producer, ops);
}

/* Time that a worker slept with nothing to do is not lost, however long. */
static void test_sleep_is_not_lost(void **state)
{
    (void)state;
    const struct cpu_engine_ops *ops = &cpu_engine_openssl;
    struct cpu_worker *worker = worker_start(ops, 8);
    static struct producer producer;
    producer_open(&producer, worker, 0, ops, 2, 16);
    submit_and_await(worker, &producer.packet[0], 1);
    core_ns slept_ns = core_time_now_ns();
    usleep(200000);
    core_ns woken_ns = core_time_now_ns();
    submit_and_await(worker, &producer.packet[1], 2);
    struct core_stall stalls[CORE_STALLS];
    cpu_worker_finish(worker);
    uint32_t count = core_stalls_read(cpu_worker_stalls(worker), slept_ns, stalls);
    for (uint32_t i = 0; i < count; i++) /* a late wake-up on a loaded machine may be one */
        assert_true(stalls[i].to_ns <= woken_ns || stalls[i].from_ns >= woken_ns);
    worker_stop(worker);
    producer_close(&producer, ops);
}

static void serve_when_asleep(struct cpu_worker *worker, uint32_t producer)
{
    while (!cpu_worker_serve(worker, producer))
        usleep(100);
}

/* What a producer serves is there when the call returns, and nobody was notified; what comes after that is
 * notified as ever. */
static void test_served_at_once(void **state)
{
    (void)state;
    const struct cpu_engine_ops *ops = &cpu_engine_openssl;
    struct cpu_worker *worker = worker_start(ops, 8);
    static struct producer producer;
    struct cpu_packet *packets[3], *got;
    struct pollfd descriptor = {.fd = descriptors[0], .events = POLLIN};
    producer_open(&producer, worker, 0, ops, 3, 1);
    for (uint32_t i = 0; i < 3; i++) {
        packets[i] = &producer.packet[i];
        producer.streams[i]->piece_bytes = PACKET_BYTES;
    }
    serve_when_asleep(worker, 0); /* there is nothing: it only sleeps from here on */

    assert_int_equal(cpu_worker_put(worker, 0, packets, 2), 2);
    usleep(20000);
    assert_int_equal(atomic_load(&cpu_worker_counters(worker)->packets), 0); /* it sleeps on */
    assert_true(cpu_worker_serve(worker, 0));
    assert_int_equal(packets[0]->done_bytes, PACKET_BYTES);
    assert_int_equal(packets[1]->done_bytes, PACKET_BYTES);
    assert_int_equal(poll(&descriptor, 1, 0), 0);
    producer_collect(&producer, cpu_worker_poll);
    assert_int_equal(producer.collected, 2);

    assert_int_equal(cpu_worker_submit(worker, 0, &packets[2], 1), 1);
    assert_int_equal(poll(&descriptor, 1, 60000), 1);
    assert_int_equal(cpu_worker_collect(worker, 0, &got, 1), 1);
    assert_ptr_equal(got, packets[2]);
    worker_stop(worker);
    producer_close(&producer, ops);
}

static void ignore(int signal)
{
    (void)signal;
}

static struct {
    struct cpu_worker *worker;
    struct producer *late;
    pthread_t server;
    bool put;
    _Atomic uint64_t pauses; /* when the late packet's burst began */
} meanwhile;

static core_status encrypt_meanwhile(struct cpu_engine *engine, enum core_cipher cipher,
                                     struct cpu_piece *pieces, uint32_t count)
{
    struct cpu_packet *packet = meanwhile.late->packet;
    if (pthread_equal(pthread_self(), meanwhile.server) && !meanwhile.put) {
        meanwhile.put = true;
        assert_int_equal(cpu_worker_put(meanwhile.worker, meanwhile.late->number, &packet, 1), 1);
        assert_false(cpu_worker_serve(meanwhile.worker, meanwhile.late->number));
        cpu_worker_nudge(meanwhile.worker);
        assert_int_equal(tgkill(getpid(), cpu_worker_thread_id(meanwhile.worker), SIGUSR1), 0);
        usleep(20000);
        assert_int_equal(packet->done_bytes, 0); /* nobody else does the worker's work */
    } else if (meanwhile.put && meanwhile.pauses == 0)
        meanwhile.pauses = atomic_load(&cpu_worker_counters(meanwhile.worker)->pauses);
    return cpu_engine_openssl.encrypt(engine, cipher, pieces, count);
}

/* While one producer serves a worker, another one's packet comes, and a signal wakes the worker's thread: that neither
 * interferes nor leaves the packet behind. */
static void test_put_while_served(void **state)
{
    (void)state;
    const struct sigaction interrupts = {.sa_handler = ignore};
    struct cpu_engine_ops ops = cpu_engine_openssl;
    ops.encrypt = encrypt_meanwhile;
    assert_int_equal(sigaction(SIGUSR1, &interrupts, NULL), 0);
    struct cpu_worker *worker = worker_start(&ops, 8);
    static struct producer serving, late;
    struct cpu_packet *packet;
    struct pollfd descriptor = {.fd = descriptors[1], .events = POLLIN};
    producer_open(&serving, worker, 0, &ops, 1, 1);
    producer_open(&late, worker, 1, &ops, 1, 1);
    packet = serving.packet;
    serving.streams[0]->piece_bytes = PACKET_BYTES;
    late.packet->release_ns -= CORE_NS_PER_S; /* overdue: no grace period begins with it */
    meanwhile.worker = worker;
    meanwhile.late = &late;
    serve_when_asleep(worker, 0);
    meanwhile.server = pthread_self();

    assert_int_equal(cpu_worker_put(worker, 0, &packet, 1), 1);
    assert_true(cpu_worker_serve(worker, 0));
    producer_collect(&serving, cpu_worker_poll);
    assert_int_equal(serving.collected, 1);
    assert_int_equal(poll(&descriptor, 1, 60000), 1); /* by its own thread */
    producer_collect(&late, cpu_worker_collect);
    assert_int_equal(late.collected, 1);
    /* who came during a packet's burst has waited for it: its room is not free yet (cpu/scheduler.h) */
    assert_true(meanwhile.pauses > 0 && meanwhile.pauses <= serving.packet->pauses);
    assert_int_equal(serving.errors + late.errors, 0);
    worker_stop(worker);
    producer_check(&serving);
    producer_check(&late);
    producer_close(&serving, &ops);
    producer_close(&late, &ops);
}

static void test_bad_options(void **state)
{
    (void)state;
    struct cpu_worker *worker;
    struct core_error error;
    struct cpu_worker_options options = {.thread = {.cpu = -1},
                                         .scheduler = {.ops = &cpu_engine_openssl, .burst_pieces = 4},
                                         .producers = 1,
                                         .ring_packets = 24,
                                         .notify = notify};
    assert_int_equal(cpu_worker_start(&worker, &options, NULL, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "24"));
    options.ring_packets = 16;
    options.scheduler.burst_pieces = 0;
    assert_int_equal(cpu_worker_start(&worker, &options, NULL, &error), CORE_INVALID);
    cpu_worker_stop(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_wait_between_bursts_is_lost),
        cmocka_unit_test(test_sleep_is_not_lost),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_many_producers),
        cmocka_unit_test(test_producers_that_serve),
        cmocka_unit_test(test_served_at_once),
        cmocka_unit_test(test_put_while_served),
        cmocka_unit_test(test_full_rings),
        cmocka_unit_test(test_held_packets),
        cmocka_unit_test(test_late_collector),
        cmocka_unit_test(test_stop_with_work_queued),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
