#include "tests/support/history_machine.h"

#include "tests/support/units.h"

#include <string.h>

static core_ns within(double ns, core_ns low_ns, core_ns high_ns)
{
    return ns < (double)low_ns ? low_ns : ns > (double)high_ns ? high_ns : (core_ns)ns;
}

/* ---- contracts ---- */

/* Returns the bytes per ns that the whole pool asks for. */
static double draw_pool(struct history_machine *machine, struct test_random *random, bool crowd)
{
    int64_t blocks = test_random_log(random, 1, 128), burst = 1;
    int64_t eighths = test_random_log(
        random, 2, test_random_chance(random, 20) ? 8 : 192); /* latency bounds, in eighths of an interval */
    bool alike = crowd || test_random_chance(random, 40);
    double rate = 0;
    if (test_random_chance(random, 50))
        burst = test_random_log(random, 2, 12);
    machine->interval_ns = test_random_log(random, 4 * CORE_NS_PER_MS, 128 * CORE_NS_PER_MS);
    machine->pool_count = (size_t)(crowd ? test_random_in(random, 1, 4)
                                         : test_random_in(random, HISTORY_POOL / 3, HISTORY_POOL));
    for (size_t i = 0; i < machine->pool_count; i++) {
        struct core_stream_spec *spec = &machine->pool[i];
        core_ns low_ns = alike ? machine->interval_ns : machine->interval_ns / 2;
        *spec = (struct core_stream_spec){.cipher = CORE_CIPHER_AES_128_CBC, .padding = CORE_PADDING_NONE};
        spec->packet_bytes = 16 * (uint32_t)test_random_in(random, blocks, alike ? blocks : 4 * blocks);
        spec->burst_packets = (uint32_t)test_random_in(random, 1, burst);
        spec->interval_ns = test_random_in(random, low_ns, 2 * machine->interval_ns);
        spec->latency_ns = within((double)spec->interval_ns * (double)eighths / 8 *
                                      (double)test_random_log(random, 256, 1024) / 256,
                                  2 * CORE_NS_PER_MS, 20 * CORE_NS_PER_S);
        if (crowd) /* whoever sends twice within the bound of another matters */
            spec->latency_ns =
                within((double)spec->interval_ns * (double)test_random_in(random, 10, 100) / 100,
                       CORE_NS_PER_MS, spec->interval_ns);
        if (!alike)
            spec->cipher = (enum core_cipher)test_random_in(random, 1, CORE_CIPHER_COUNT);
        rate += spec->packet_bytes / (double)spec->interval_ns;
    }
    struct test_random units = test_units_beside(random);
    if (test_random_chance(&units, 20))
        for (size_t i = 0; i < machine->pool_count; i++)
            test_units_message(&machine->pool[i], &units);
    return rate;
}

/* ---- machines ---- */

static void draw_cpu(struct history_machine *machine, struct test_random *random, double bytes_per_ns)
{
    struct config_profile_cpu *cpu = &machine->profile.cpu;
    cpu->lanes = test_random_chance(random, 70) ? 1 : 4;
    cpu->burst_pieces = cpu->lanes * (uint32_t)test_random_in(random, 1, 2);
    cpu->piece_bytes = 16 * (uint32_t)test_random_log(random, 8, 512);
    cpu->decrypt_more_percent = 15;
    cpu->queue_granularity_ns = 4096; /* the workers' own */
    double ns = machine->workers / bytes_per_ns;
    cpu->per_piece_ns = within(ns * (double)test_random_in(random, 0, 100), 0, CORE_NS_PER_MS);
    for (int i = 0; i < CORE_CIPHER_COUNT; i++) {
        cpu->per_byte_fs[i] = within(ns * 1e6 * (10 + i) / 10, 1, INT64_C(1000000000));
        cpu->lane_ns[i] = within(ns * (double)test_random_in(random, 0, 256), 0, CORE_NS_PER_MS);
    }
}

static void draw_copies(struct test_gpu *card, struct test_random *random, core_ns interval_ns,
                        double bytes_per_ns)
{
    core_ns start_ns = test_random_in(random, interval_ns / 2000, interval_ns / 100);
    double up = bytes_per_ns * (double)test_random_in(random, 9, 60) / 10;
    double down = bytes_per_ns * (double)test_random_in(random, 9, 60) / 10;
    int64_t busy = test_random_in(random, 10, 20);
    for (int row = 0; row < 3; row++) {
        uint64_t bytes = UINT64_C(1024) << (8 * row);
        core_ns up_ns = start_ns + (core_ns)((double)bytes / up);
        core_ns down_ns = start_ns + (core_ns)((double)bytes / down);
        card->copies[row] =
            (struct config_profile_copy){bytes, up_ns, down_ns, up_ns * busy / 10, down_ns * busy / 10};
    }
    card->gpu.copy_count = 3;
    card->gpu.copies = card->copies;
}

/* A card that a few streams keep busy: one job alone has a good share of an SM. */
static void draw_card(struct test_gpu *card, struct test_random *random, core_ns interval_ns,
                      double bytes_per_ns)
{
    memset(card, 0, sizeof *card);
    card->gpu.name = (char *)"history";
    card->gpu.sms = (uint32_t)test_random_in(random, 1, 4);
    card->gpu.copy_engines = (uint32_t)test_random_in(random, 1, 2);
    card->gpu.memory_bytes = UINT64_C(1) << 32;
    card->gpu.sm_bytes_per_s = 1 + (int64_t)(bytes_per_ns * 1e9 / card->gpu.sms);
    card->gpu.launch_ns = test_random_in(random, 0, interval_ns / 200);
    card->gpu.job_bytes = (uint32_t)test_random_in(random, 0, 64);
    card->utilisation[0].jobs = 1;
    card->utilisation[0].share_ppm = (uint32_t)test_random_in(random, 200000, 1000000);
    card->utilisation[1].jobs = 4;
    card->utilisation[1].share_ppm = CONFIG_PROFILE_SHARE_PPM;
    card->gpu.utilisation = card->utilisation;
    card->gpu.utilisation_count = 2;
    draw_copies(card, random, interval_ns, bytes_per_ns);
}

static void draw_cards(struct history_machine *machine, struct test_random *random, double bytes_per_ns)
{
    struct config_profile *profile = &machine->profile;
    profile->gpus = machine->gpus;
    profile->pinned_bytes = UINT64_C(1) << 36;
    for (uint32_t kind = 0; kind < profile->gpu_count; kind++) {
        uint32_t count = (uint32_t)test_random_in(random, 1, HISTORY_GPUS / HISTORY_KINDS);
        if (machine->guaranteed && test_random_chance(random, 60))
            count = HISTORY_GPUS / HISTORY_KINDS;
        double share = bytes_per_ns / profile->gpu_count / count;
        draw_card(&machine->cards[kind], random, machine->interval_ns, share);
        machine->gpus[kind] = machine->cards[kind].gpu; /* its tables stay beside the card */
        machine->gpus[kind].count = count;
        machine->gpu_count += count;
    }
}

/* What is held for a loss is room that nobody uses: up to three times as much is there. Returns
 * how many times. */
static double draw_guaranteed(struct history_machine *machine, struct test_random *random)
{
    int percent = (int)test_random_in(random, 20, 100);
    machine->guaranteed = true;
    machine->detection_ns = test_random_in(random, 0, machine->interval_ns / 8);
    for (size_t i = 0; i < machine->pool_count; i++)
        machine->pool[i].guaranteed = test_random_chance(random, percent);
    return (double)test_random_in(random, 10, 30) / 10;
}

void history_machine_random(struct history_machine *machine, struct test_random *random)
{
    memset(machine, 0, sizeof *machine);
    bool crowd = test_random_chance(random, 15);
    double rate = draw_pool(machine, random, crowd) / (double)machine->pool_count;
    double gpus = crowd ? 0 : (double)test_random_in(random, 50, 95) / 100;
    struct config_profile *profile = &machine->profile;
    core_ns margin_ns = machine->interval_ns / 20;
    machine->streams = (size_t)test_random_in(random, crowd ? 20 : 6, crowd ? 100 : 48);
    machine->workers = crowd ? 1 : (uint32_t)test_random_in(random, 1, HISTORY_WORKERS);
    profile->gpu_count = crowd ? 0 : (uint32_t)test_random_in(random, 1, HISTORY_KINDS);
    profile->io.limit_percent = 100;
    profile->io.per_packet_ns = 1; /* next to nothing, but it is charged */
    profile->io.rest_max_ns = test_random_chance(random, 50) ? 0 : margin_ns / 4;
    profile->margins.in_ns = test_random_in(random, 0, margin_ns);
    profile->margins.out_ns = test_random_in(random, 0, margin_ns);
    test_gpu_margins_random(&profile->margins, random);
    if (!crowd && test_random_chance(random, 50))
        rate *= draw_guaranteed(machine, random);
    draw_cpu(machine, random, rate * (double)machine->streams * (1 - gpus));
    draw_cards(machine, random, rate * (double)machine->streams * gpus);
}
