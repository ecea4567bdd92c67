/* What one GPU on a fast link carries, by admission: 12,000 streams opened one after another, with the margins
 * that calibration would write. Of an assumed profile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "tests/support/admission.h"

#define STREAMS      12000
#define IO_THREADS   48 /* a packet of 8 KiB takes 5.6 us of one, as is assumed */
#define PACKET_BYTES 8192

static struct config_profile *profile;
static struct admission *admission;

static void begin(uint32_t copies_ppm)
{
    struct core_error error = {""};
    if (config_profile_load(MILLRACE_SOURCE_DIR "/config/profiles/h200-assumed.yaml", &profile, &error) !=
        CORE_OK)
        fail_msg("%s", error.text);
    profile->margins.copies_ppm = copies_ppm;
    profile->cpu.per_piece_ns = CORE_NS_PER_S; /* a worker takes no stream */
    admission = test_admission_of(profile, 1, IO_THREADS);
    const struct partition_gpu_arenas arenas = {.count = 10,
                                                .slots = 2 * STREAMS,
                                                .segments = 10 * STREAMS,
                                                .bytes = UINT64_C(1) << 30,
                                                .lead_ns = CORE_NS_PER_MS,
                                                .hang_ns = CORE_NS_NEVER};
    assert_int_equal(admission_set_arenas(admission, &arenas), CORE_OK);
}

static void end(void)
{
    admission_destroy(admission);
    config_profile_free(profile);
}

/* Opens the streams at a rate of so much of what the largest copies move each way; how many are taken. */
static uint32_t opened(double share)
{
    const struct config_profile_gpu *kind = &profile->gpus[0];
    const struct config_profile_copy *largest = &kind->copies[kind->copy_count - 1];
    const double limit_per_ns = (double)largest->bytes / (double)largest->down_busy_ns;
    struct core_stream_spec spec = test_admission_spec(0, 40 * CORE_NS_PER_MS);
    struct core_error error = {""};
    spec.packet_bytes = PACKET_BYTES;
    spec.interval_ns = (core_ns)floor(STREAMS * (double)PACKET_BYTES / (share * limit_per_ns));
    for (uint32_t i = 0; i < STREAMS; i++) {
        struct admission_placement placement;
        assert_int_equal(admission_admit(admission, &spec, i % IO_THREADS, i, &placement, &error), CORE_OK);
        if (!placement.accepted) {
            print_message("%u streams: %s\n", i, placement.reason);
            return i;
        }
        assert_int_equal(placement.unit, 1);
    }
    return STREAMS;
}

/* With one margin of 10 % for all, 1 / 1.1 was the most. */
static void a_card_is_given_its_link_but_for_the_margin(void **state)
{
    (void)state;
    static const struct {
        uint32_t copies_ppm;
        double share;
        bool fits;
    } cases[] = {{30000, 0.95, true}, {30000, 0.975, false}, {100000, 0.95, false}, {100000, 0.90, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(cases[i].copies_ppm);
        const uint32_t count = opened(cases[i].share);
        print_message("margin %u ppm, %.3f of the limit: %u streams\n", cases[i].copies_ppm, cases[i].share,
                      count);
        assert_int_equal(count == STREAMS, cases[i].fits);
        test_admission_holds(admission);
        end();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_card_is_given_its_link_but_for_the_margin)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
