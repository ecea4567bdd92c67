/* Standing plans in tests: made, asked, and held against what must be true of them at any time. */
#ifndef MILLRACE_TESTS_STANDING_H
#define MILLRACE_TESTS_STANDING_H

#include "partition/admission/admission.h"
#include "tests/support/random.h"

/* Without success the test fails. I/O thread 0. */
struct partition_standing *test_standing_of(const struct config_profile *profile, uint32_t workers,
                                            uint32_t io);
struct partition_standing_placement test_standing_query(const struct partition_standing *standing,
                                                        const struct core_stream_spec *spec, bool with_offer);
struct partition_standing_placement test_standing_admit(struct partition_standing *standing,
                                                        const struct core_stream_spec *spec, uint64_t handle);

/* The moves of an accepted proposal, one after the other, the old room given back after each: at every step
 * all is proven. Then the newcomer is admitted. Returns its number. */
uint32_t test_standing_make_room(struct partition_standing *standing,
                                 const struct partition_standing_proposal *proposal,
                                 const struct core_stream_spec *newcomer, uint64_t handle);

/* Any of its streams, if there is one. */
void test_standing_release_one(struct partition_standing *standing, struct test_random *random);

/* The independent checker accepts the certificate, and no account has a trace of who left. */
void test_standing_holds(const struct partition_standing *standing);

/* The shipped profile emulated-small, and a stream of packets of 1400 bytes. */
struct config_profile *test_standing_profile(void);
struct core_stream_spec test_standing_spec(core_ns interval_ns, core_ns latency_ns);

#endif
