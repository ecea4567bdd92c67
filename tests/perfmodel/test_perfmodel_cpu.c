/* From a stream's contract to a task: costs, shaping, and the number of pieces in a window. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "perfmodel/cpu.h"
#include "tests/support/random.h"

#define US CORE_NS_PER_US
#define MS CORE_NS_PER_MS

__extension__ typedef __int128 wide;

static const struct config_profile profile = {
    .cpu = {.lanes = 8,
            .burst_pieces = 32,
            .piece_bytes = 4096,
            .per_piece_ns = 100,
            .per_byte_fs = {200000, 250000, 300000},
            .lane_ns = {4000, 5000, 6000},
            .queue_granularity_ns = 4096},
    .io = {.per_packet_ns = 1000,
           .per_byte_fs = 500000,
           .pattern_per_byte_fs = 500000,
           .mac_per_byte_fs = 2000000,
           .limit_percent = 85},
    .margins = {.in_ns = 300 * US, .out_ns = 200 * US, .percent = 10},
};

static struct core_stream_spec spec_of(uint32_t packet_bytes, uint32_t burst, core_ns interval_ns,
                                       core_ns latency_ns)
{
    return (struct core_stream_spec){.packet_bytes = packet_bytes,
                                     .burst_packets = burst,
                                     .interval_ns = interval_ns,
                                     .latency_ns = latency_ns,
                                     .cipher = CORE_CIPHER_AES_128_CBC,
                                     .padding = CORE_PADDING_NONE};
}

/* 1.1 (100 + c1 x), rounded up. */
static void test_piece_cost(void **state)
{
    (void)state;
    static const struct {
        enum core_cipher cipher;
        uint32_t bytes;
        core_ns cost_ns;
    } rows[] = {
        {CORE_CIPHER_AES_128_CBC, 16, 114},    /* 113.52 */
        {CORE_CIPHER_AES_128_CBC, 1408, 420},  /* 419.76 */
        {CORE_CIPHER_AES_128_CBC, 4096, 1012}, /* 1011.12 */
        {CORE_CIPHER_AES_192_CBC, 4096, 1237}, /* 1236.40 */
        {CORE_CIPHER_AES_256_CBC, 4096, 1462}, /* 1461.68 */
        {CORE_CIPHER_AES_256_CBC, 16, 116},    /* 115.28 */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(
            perfmodel_cpu_piece_cost_ns(&profile, rows[i].cipher, CORE_DIRECTION_ENCRYPT, rows[i].bytes),
            rows[i].cost_ns);
    struct config_profile costless = profile;
    costless.cpu.per_piece_ns = costless.cpu.per_byte_fs[0] = 0;
    assert_int_equal(
        perfmodel_cpu_piece_cost_ns(&costless, CORE_CIPHER_AES_128_CBC, CORE_DIRECTION_ENCRYPT, 16), 1);
    struct config_profile slower = profile;
    slower.cpu.decrypt_more_percent = 7;
    assert_int_equal(
        perfmodel_cpu_piece_cost_ns(&slower, CORE_CIPHER_AES_128_CBC, CORE_DIRECTION_ENCRYPT, 1408), 420);
    assert_int_equal(
        perfmodel_cpu_piece_cost_ns(&slower, CORE_CIPHER_AES_128_CBC, CORE_DIRECTION_DECRYPT, 1408),
        450); /* 449.14 */
}

static void test_company(void **state)
{
    (void)state;
    struct perfmodel_cpu_mix mix = {0};
    struct perfmodel_cpu_task small = {.cost_ns = 420, .cipher = CORE_CIPHER_AES_128_CBC};
    struct perfmodel_cpu_task large = {.cost_ns = 1462, .cipher = CORE_CIPHER_AES_256_CBC};
    assert_int_equal(perfmodel_cpu_surcharge_ns(&profile, mix.ciphers), 0);
    assert_int_equal(perfmodel_cpu_blocking_ns(&profile, &mix), 0);
    perfmodel_cpu_mix_add(&mix, 32, &small);
    assert_int_equal(mix.ciphers, 1);
    assert_int_equal(perfmodel_cpu_surcharge_ns(&profile, mix.ciphers), 138); /* 1.1 * 4000 / 32 */
    assert_int_equal(perfmodel_cpu_blocking_ns(&profile, &mix), 4820);        /* 420 + 1.1 * 4000 */
    perfmodel_cpu_mix_add(&mix, 32, &large);
    assert_int_equal(mix.ciphers, 5);
    assert_int_equal(perfmodel_cpu_surcharge_ns(&profile, mix.ciphers), 344); /* 1.1 * 10000 / 32 */
    assert_int_equal(perfmodel_cpu_blocking_ns(&profile, &mix), 12882);       /* 420 + 1462 + 1.1 * 10000 */
    perfmodel_cpu_mix_add(&mix, 32, &small);
    assert_int_equal(mix.ciphers, 5);
    assert_int_equal(mix.pieces_ns, 2 * 420 + 1462);
    assert_int_equal(mix.piece_ns[0], 1462);
    for (int i = 0; i < 40; i++)
        perfmodel_cpu_mix_add(&mix, 32, &large);
    assert_int_equal(mix.count, 32);
    assert_int_equal(perfmodel_cpu_blocking_ns(&profile, &mix), 57784); /* 32 * 1462 + 1.1 * 10000 */
}

/* 32 * 1462 + 1.1 * 15000. */
static void test_burst_bound(void **state)
{
    (void)state;
    assert_int_equal(perfmodel_cpu_burst_ns(&profile), 63284);
    struct config_profile bare = profile;
    bare.margins.percent = 0;
    bare.cpu.burst_pieces = 1;
    assert_int_equal(perfmodel_cpu_burst_ns(&bare), 16329); /* 1328.8 + 15000 */
}

/* What the profile allows a burst is never more than its pieces are charged if it is full, and never more
 * than its mix's q. */
static void test_charges_cover_bursts(void **state)
{
    (void)state;
    struct test_random random = {1};
    for (int round = 0; round < 4000; round++) {
        struct perfmodel_cpu_mix mix = {0};
        wide took_fs = 0, own_ns = 0;
        uint32_t pieces = round % 2 ? 32 : (uint32_t)test_random_in(&random, 1, 31);
        int ciphers = (int)test_random_in(&random, 1, 3);
        for (uint32_t i = 0; i < pieces; i++) {
            struct perfmodel_cpu_task task = {.cipher =
                                                  (enum core_cipher)test_random_in(&random, 1, ciphers)};
            uint32_t bytes = 16 * (uint32_t)test_random_in(&random, 1, 256);
            task.cost_ns = perfmodel_cpu_piece_cost_ns(&profile, task.cipher, CORE_DIRECTION_ENCRYPT, bytes);
            perfmodel_cpu_mix_add(&mix, 32, &task);
            took_fs += 100 * 1000000 + profile.cpu.per_byte_fs[task.cipher - 1] * (wide)bytes;
            own_ns += task.cost_ns;
        }
        for (int i = 0; i < 3; i++)
            took_fs += mix.ciphers >> i & 1 ? profile.cpu.lane_ns[i] * (wide)1000000 : 0;
        wide charged_ns = own_ns + pieces * (wide)perfmodel_cpu_surcharge_ns(&profile, mix.ciphers);
        assert_true(pieces < 32 || charged_ns * 1000000 * 100 >= took_fs * 110);
        wide blocking_ns = perfmodel_cpu_blocking_ns(&profile, &mix);
        assert_true(blocking_ns * 1000000 * 100 >= took_fs * 110);
        assert_true(blocking_ns <= perfmodel_cpu_burst_ns(&profile));
    }
}

static void test_task(void **state)
{
    (void)state;
    static const struct {
        struct core_stream_spec spec;
        struct perfmodel_cpu_task task;
    } rows[] = {
        /* d' = 9.5 ms leaves more than t: spaced by t less the margins */
        {{1408, 1, 5 * MS, 10 * MS, 1, 0, .guaranteed = false},
         {420, 4500 * US, 4500 * US - 4096, 4500 * US, 5 * MS, 1, 1, 1408, 1, 0}},
        /* the margins are more than an eighth of t: spaced by the other seven */
        {{1408, 1, 1 * MS, 10 * MS, 1, 0, .guaranteed = false},
         {420, 875 * US, 875 * US - 4096, 875 * US, MS, 1, 1, 1408, 1, 0}},
        /* d' below t */
        {{1408, 1, 50 * MS, 10 * MS, 1, 0, .guaranteed = false},
         {420, 9500 * US, 9500 * US - 4096, 9500 * US, 50 * MS, 1, 1, 1408, 1, 0}},
        /* k t > d': spaced by d' / 4 */
        {{1408, 4, 5 * MS, 10 * MS, 1, 0, .guaranteed = false},
         {420, 2375 * US, 2375 * US - 4096, 2375 * US, 5 * MS, 1, 4, 1408, 1, 0}},
        /* PKCS#7 adds a block; 3 pieces of 9008 bytes: ceil(9008/3) = 3003 -> 3008 */
        {{8992, 1, 30 * MS, 10 * MS, 1, 1, .guaranteed = false},
         {772, 3166666, 3166666 - 4096, 9500 * US, 30 * MS, 3, 1, 3008, 1, 0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct perfmodel_cpu_task task;
        memset(&task, 0, sizeof task);
        assert_int_equal(perfmodel_cpu_task_from(&rows[i].spec, &profile, &task, NULL), CORE_OK);
        assert_int_equal(task.cost_ns, rows[i].task.cost_ns);
        assert_int_equal(task.deadline_ns, rows[i].task.deadline_ns);
        assert_int_equal(task.urgency_ns, rows[i].task.urgency_ns);
        assert_int_equal(task.spacing_ns, rows[i].task.spacing_ns);
        assert_int_equal(task.interval_ns, rows[i].task.interval_ns);
        assert_int_equal(task.pieces, rows[i].task.pieces);
        assert_int_equal(task.burst_packets, rows[i].task.burst_packets);
        assert_int_equal(task.piece_bytes, rows[i].task.piece_bytes);
        assert_int_equal(task.cipher, rows[i].task.cipher);
    }
}

static void test_rest_of_the_io_thread(void **state)
{
    (void)state;
    struct config_profile resting = profile;
    struct perfmodel_cpu_task task;
    resting.io.rest_max_ns = 500 * US;
    assert_int_equal(perfmodel_io_rest_ns(3700 * US, &resting), 200 * US); /* of 3.2 ms beside the margins */
    assert_int_equal(perfmodel_io_rest_ns(16500 * US - 16, &resting), MS - 1);
    assert_int_equal(perfmodel_io_rest_ns(16500 * US, &resting), MS);
    assert_int_equal(perfmodel_io_rest_ns(CORE_LATENCY_NS_MAX, &resting), MS);
    assert_int_equal(perfmodel_io_rest_ns(500 * US - 16, &resting), 0);
    assert_int_equal(perfmodel_io_rest_ns(3700 * US, &profile), 0);

    /* d' = 3.7 - 0.5 (margins) - 0.2 (rests) ms, of which one interval is used */
    struct core_stream_spec spec = spec_of(1408, 1, 50 * MS, 3700 * US);
    assert_int_equal(perfmodel_cpu_task_from(&spec, &resting, &task, NULL), CORE_OK);
    assert_int_equal(task.spacing_ns, 3 * MS);

    /* the least latency bound is exact, whatever share of it is rest */
    for (uint32_t burst = 1; burst <= 4096; burst = burst * 2 + 1) {
        spec = spec_of(12288, burst, 50 * MS, MS);
        spec.latency_ns = perfmodel_cpu_latency_floor_ns(&spec, &resting);
        assert_int_equal(perfmodel_cpu_task_from(&spec, &resting, &task, NULL), CORE_OK);
        spec.latency_ns--;
        assert_int_equal(perfmodel_cpu_task_from(&spec, &resting, &task, NULL), CORE_REFUSED);
    }
}

static void test_no_time_left(void **state)
{
    (void)state;
    struct perfmodel_cpu_task task;
    struct core_error error;
    /* 3 pieces x 4 packets x (4096 + 1000) ns, and the margins */
    struct core_stream_spec spec = spec_of(12288, 4, MS, 561152);
    assert_int_equal(perfmodel_cpu_latency_floor_ns(&spec, &profile), 561152);
    assert_int_equal(perfmodel_cpu_task_from(&spec, &profile, &task, NULL), CORE_OK);
    assert_int_equal(task.urgency_ns, US);
    spec.latency_ns--;
    assert_int_equal(perfmodel_cpu_task_from(&spec, &profile, &task, &error), CORE_REFUSED);
    assert_non_null(strstr(error.text, "0.561 ms"));
    spec.latency_ns = CORE_LATENCY_NS_MIN; /* less than the margins alone */
    assert_int_equal(perfmodel_cpu_task_from(&spec, &profile, &task, &error), CORE_REFUSED);

    /* no latency bound helps where the interval is too short for the pieces of a packet */
    spec = spec_of(12288, 1, 17471, CORE_LATENCY_NS_MAX); /* seven eighths are three pieces of 5096 ns */
    assert_int_equal(perfmodel_cpu_task_from(&spec, &profile, &task, NULL), CORE_OK);
    spec.interval_ns--;
    assert_int_equal(perfmodel_cpu_latency_floor_ns(&spec, &profile), CORE_NS_NEVER);
    assert_int_equal(perfmodel_cpu_task_from(&spec, &profile, &task, &error), CORE_REFUSED);
    assert_non_null(strstr(error.text, "17.471 us"));
}

/* Packets as early as policing allows, each handed over as late as is promised: how many are inside at once?
 */
static void test_backlog(void **state)
{
    (void)state;
    struct test_random random = {7};
    struct config_profile varied = profile;
    for (int round = 0; round < 3000; round++) {
        struct perfmodel_cpu_task task;
        struct core_stream_spec spec = spec_of(1408, (uint32_t)test_random_in(&random, 1, 12),
                                               test_random_in(&random, 100, 20000) * US, 0);
        spec.latency_ns = test_random_in(&random, 1, 100) * MS;
        varied.margins.in_ns = test_random_in(&random, 0, 2000) * US;
        varied.io.rest_max_ns = test_random_in(&random, 0, 500) * US;
        if (perfmodel_cpu_task_from(&spec, &varied, &task, NULL) != CORE_OK)
            continue;
        /* it is eligible when it has been read: of the rests it has met the first one */
        core_ns out_ns = varied.margins.out_ns + perfmodel_io_rest_ns(spec.latency_ns, &varied) / 2;
        core_ns release_ns = INT64_MIN, eligible_ns[64], leaves_ns[64];
        uint32_t worst = 0;
        for (uint32_t n = 0; n < 64; n++) {
            eligible_ns[n] = n < spec.burst_packets ? 0 : (n + 1 - spec.burst_packets) * spec.interval_ns;
            core_ns ready_ns = eligible_ns[n] + varied.margins.in_ns;
            release_ns =
                n > 0 && release_ns + task.spacing_ns > ready_ns ? release_ns + task.spacing_ns : ready_ns;
            leaves_ns[n] = release_ns + task.spacing_ns + out_ns;
            assert_true(leaves_ns[n] <= eligible_ns[n] + spec.latency_ns);
            uint32_t inside = 0;
            for (uint32_t earlier = 0; earlier <= n; earlier++)
                inside += leaves_ns[earlier] > eligible_ns[n];
            worst = inside > worst ? inside : worst;
        }
        assert_true(worst <= perfmodel_cpu_backlog_packets(&spec, &varied));
    }
    struct core_stream_spec spec = spec_of(1408, 3, 4 * MS, 50 * MS); /* t = 8 M: the burst is all */
    assert_int_equal(perfmodel_cpu_backlog_packets(&spec, &profile), 3);
    spec = spec_of(1408, 1, 100 * US, 50 * MS); /* 500 us of margins and 87.5 us of work: six intervals */
    assert_int_equal(perfmodel_cpu_backlog_packets(&spec, &profile), 6);
}

static void test_utilisation(void **state)
{
    (void)state;
    struct core_stream_spec spec = spec_of(1408, 1, 5 * MS, 10 * MS);
    struct perfmodel_cpu_task task;
    assert_int_equal(perfmodel_cpu_task_from(&spec, &profile, &task, NULL), CORE_OK);
    assert_int_equal(perfmodel_cpu_utilisation_ppb(&task), 84000); /* 420 / 5e6 */
    task.interval_ns = 5 * MS + 1;
    assert_int_equal(perfmodel_cpu_utilisation_ppb(&task), 84000); /* 83999.98 */
    task = (struct perfmodel_cpu_task){.cost_ns = CORE_LATENCY_NS_MAX, .interval_ns = US, .pieces = 65537};
    assert_int_equal(perfmodel_cpu_utilisation_ppb(&task), 1000 * CORE_NS_PER_S);

    /* 1.1 (1000 + 0.5 * 1408) = 1874.4 -> 1875 ns of every 5 ms */
    assert_int_equal(perfmodel_io_utilisation_ppb(&spec, &profile), 375000);
    /* 1.1 (1000 + 0.5 * 2 * 1408) = 2648.8 -> 2649 ns: sorted and put back */
    struct core_stream_spec pattern = spec;
    pattern.unit = CORE_UNIT_MESSAGE;
    pattern.crypt_blocks = 1;
    pattern.skip_blocks = 9;
    assert_int_equal(perfmodel_io_utilisation_ppb(&pattern, &profile), 529800);
    /* 1.1 (1000 + 0.5 * 1408) = 1874.4 -> 1875 ns: sorting costs what it costs, whatever sockets do */
    struct config_profile quick = profile;
    quick.io.per_byte_fs = 0;
    assert_int_equal(perfmodel_io_utilisation_ppb(&pattern, &quick), 375000);
    /* 1.1 (1000 + 0.5 * 1424 + 2 * (1424 + 256)) = 5579.2 -> 5580 ns: a code behind each message */
    struct core_stream_spec mac = spec;
    mac.unit = CORE_UNIT_MESSAGE;
    mac.iv = CORE_IV_EXPLICIT;
    mac.mac = CORE_MAC_HMAC_SHA_256_128;
    assert_int_equal(perfmodel_io_utilisation_ppb(&mac, &profile), 1116000);
    /* 16 bytes less where the code comes with the packet: 1.1 (1000 + 0.5 * 1408 + 2 * 1664) = 5535.2 -> 5536 */
    mac.direction = CORE_DIRECTION_DECRYPT;
    assert_int_equal(perfmodel_io_utilisation_ppb(&mac, &profile), 1107200);
    /* by a lane 1.1 (400 + 0.25 * 1408 + 2 * 1664) = 4488 */
    struct config_profile shared = profile;
    shared.io.by_lane_per_packet_ns = 400;
    shared.io.by_lane_per_byte_fs = 250000;
    assert_int_equal(perfmodel_io_utilisation_ppb(&mac, &shared), 1107200);
    mac.by_lane = true;
    assert_int_equal(perfmodel_io_utilisation_ppb(&mac, &shared), 897600);
    /* and 1.1 / 4 (2 * 300 + 2 * 1408) = 939.4 -> 2814 ns together */
    struct config_profile audits = profile;
    audits.cpu.piece_bytes = 1024;
    audits.io.audit_per_piece_ns[spec.cipher - 1] = 300;
    audits.io.audit_per_byte_fs[spec.cipher - 1] = 2000000;
    spec.audit_one_in = 4;
    assert_int_equal(perfmodel_io_utilisation_ppb(&spec, &audits), 562800);
    assert_int_equal(perfmodel_io_limit_ppb(&profile), 850000000);
}

/* Small tasks in abstract ticks, for comparison with explicit releases. */
static struct perfmodel_cpu_task small_task(struct test_random *random)
{
    struct perfmodel_cpu_task task = {.cost_ns = test_random_in(random, 1, 5)};
    task.pieces = (uint32_t)test_random_in(random, 1, 4);
    task.burst_packets = (uint32_t)test_random_in(random, 1, 5);
    task.spacing_ns = test_random_in(random, task.pieces, 20);
    task.deadline_ns = task.spacing_ns / task.pieces;
    task.urgency_ns = test_random_in(random, 1, task.deadline_ns);
    task.interval_ns = task.spacing_ns + (test_random_chance(random, 30) ? 0 : test_random_in(random, 0, 60));
    return task;
}

#define PACKETS 40

struct releases {
    size_t count;
    core_ns at_ns[PACKETS * 4];
};

/* Polices and shapes packets as the server does. gap(n) = 0 everywhere is the hostile sender that waits and
 * then sends as fast as it may. Also checks that shaping costs no packet more than it was given. */
static void release(const struct perfmodel_cpu_task *task, struct test_random *random, int pause_percent,
                    struct releases *releases)
{
    core_ns arrival_ns = 0, tat_ns = 0, release_ns = -task->spacing_ns;
    releases->count = 0;
    for (int n = 0; n < PACKETS; n++) {
        if (n > 0 && test_random_chance(random, pause_percent))
            arrival_ns += test_random_in(random, 0, 3 * task->interval_ns);
        core_ns eligible_ns = tat_ns - (task->burst_packets - 1) * task->interval_ns;
        eligible_ns = core_time_max(arrival_ns, eligible_ns);
        tat_ns = core_time_max(arrival_ns, tat_ns) + task->interval_ns;
        release_ns += task->spacing_ns;
        release_ns = core_time_max(eligible_ns, release_ns);
        assert_true(release_ns + task->spacing_ns <= eligible_ns + task->burst_packets * task->spacing_ns);
        for (uint32_t piece = 0; piece < task->pieces; piece++)
            releases->at_ns[releases->count++] = release_ns + piece * task->deadline_ns;
    }
}

static size_t released_in(const struct releases *releases, size_t from, core_ns x_ns)
{
    size_t end = from;
    while (end < releases->count && releases->at_ns[end] <= releases->at_ns[from] + x_ns)
        end++;
    return end - from;
}

/* No window of any conforming stream holds more than count(x), and the greedy stream attains it. */
static void test_count_against_releases(void **state)
{
    (void)state;
    struct test_random random = {2};
    for (int round = 0; round < 1500; round++) {
        struct perfmodel_cpu_task task = small_task(&random);
        struct releases releases;
        release(&task, &random, 0, &releases);
        for (core_ns x_ns = 0; releases.at_ns[0] + x_ns < releases.at_ns[releases.count - task.pieces];
             x_ns++)
            assert_int_equal(perfmodel_cpu_count(&task, x_ns), released_in(&releases, 0, x_ns));
        release(&task, &random, (int)test_random_in(&random, 1, 60), &releases);
        for (size_t from = 0; from < releases.count; from++)
            for (core_ns x_ns = 0; x_ns < 100; x_ns++)
                assert_true(perfmodel_cpu_count(&task, x_ns) >= (int64_t)released_in(&releases, from, x_ns));
    }
}

static void test_count_by_hand(void **state)
{
    (void)state;
    /* 2 pieces a packet, 3 packets at once: spaced 10, then every 40 */
    struct perfmodel_cpu_task task = {.cost_ns = 7,
                                      .deadline_ns = 5,
                                      .urgency_ns = 4,
                                      .spacing_ns = 10,
                                      .interval_ns = 40,
                                      .pieces = 2,
                                      .burst_packets = 3};
    /* packets at 0, 10, 20 (+5 each), then 40, 80 */
    static const struct {
        core_ns x_ns;
        int64_t pieces;
    } rows[] = {{0, 1},  {4, 1},  {5, 2},  {9, 2},  {10, 3}, {15, 4}, {20, 5},
                {25, 6}, {39, 6}, {40, 7}, {44, 7}, {45, 8}, {79, 8}, {80, 9}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(perfmodel_cpu_count(&task, rows[i].x_ns), rows[i].pieces);
}

static wide count_wide(const struct perfmodel_cpu_task *task, wide x)
{
    wide spaced = x / task->spacing_ns + 1, policed = x / task->interval_ns + task->burst_packets;
    wide packets = spaced < policed ? spaced : policed;
    wide last = (packets - 1) * task->spacing_ns;
    wide last_policed = (packets - task->burst_packets) * task->interval_ns;
    last = last > last_policed ? last : last_policed;
    wide begun = (x - last) / task->deadline_ns + 1;
    return (packets - 1) * task->pieces + (begun < task->pieces ? begun : task->pieces);
}

/* The corners of every range, against the same sums in 128 bits. */
static void test_ranges(void **state)
{
    (void)state;
    static const uint32_t packets[] = {16, 4096, CORE_PACKET_BYTES_MAX};
    static const uint32_t bursts[] = {1, 2, CORE_BURST_MAX};
    static const core_ns times_ns[] = {10 * US, 500 * US, 700 * MS, CORE_LATENCY_NS_MAX};
    static const core_ns windows_ns[] = {
        0, 1, 5 * US, INT64_C(1) << 42, CORE_LATENCY_NS_MAX, INT64_C(1) << 61, INT64_C(1) << 62};
    struct config_profile extreme = profile;
    extreme.cpu.piece_bytes = 16;
    extreme.margins.in_ns = extreme.margins.out_ns = 0;
    int tasks = 0;
    for (size_t i = 0; i < 3 * 3 * 4 * 4; i++) {
        struct core_stream_spec spec =
            spec_of(packets[i % 3], bursts[i / 3 % 3], times_ns[i / 9 % 4], times_ns[i / 36]);
        struct perfmodel_cpu_task task;
        if (perfmodel_cpu_task_from(&spec, i % 2 ? &extreme : &profile, &task, NULL) != CORE_OK)
            continue;
        tasks++;
        assert_true((wide)task.pieces * task.burst_packets <= 3600000000);
        for (size_t w = 0; w < sizeof windows_ns / sizeof *windows_ns; w++) {
            wide count = count_wide(&task, windows_ns[w]);
            assert_true(perfmodel_cpu_count(&task, windows_ns[w]) == count);
        }
    }
    assert_in_range(tasks, 40, 144);
}

static void test_saturation(void **state)
{
    (void)state;
    struct config_profile huge = profile;
    huge.cpu.per_piece_ns = INT64_MAX;
    huge.cpu.per_byte_fs[0] = INT64_MAX;
    assert_int_equal(
        perfmodel_cpu_piece_cost_ns(&huge, CORE_CIPHER_AES_128_CBC, CORE_DIRECTION_ENCRYPT, 65520),
        CORE_LATENCY_NS_MAX);
    assert_int_equal(perfmodel_cpu_burst_ns(&huge), CORE_LATENCY_NS_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_piece_cost),    cmocka_unit_test(test_burst_bound),
        cmocka_unit_test(test_company),       cmocka_unit_test(test_charges_cover_bursts),
        cmocka_unit_test(test_task),          cmocka_unit_test(test_rest_of_the_io_thread),
        cmocka_unit_test(test_no_time_left),  cmocka_unit_test(test_backlog),
        cmocka_unit_test(test_utilisation),   cmocka_unit_test(test_count_against_releases),
        cmocka_unit_test(test_count_by_hand), cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_saturation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
