/* Admission states in tests: made, queried, and checked for the invariants that must always hold. */
#ifndef MILLRACE_TESTS_STANDING_H
#define MILLRACE_TESTS_STANDING_H

#include "partition/admission/admission.h"
#include "tests/support/random.h"

/* Each fails the test if it does not succeed. All streams are on I/O thread 0. */
struct partition_standing *test_standing_of(const struct config_profile *profile, uint32_t workers,
                                            uint32_t io);
struct partition_standing_placement test_standing_query(const struct partition_standing *standing,
                                                        const struct core_stream_spec *spec, bool with_offer);
struct partition_standing_placement test_standing_admit(struct partition_standing *standing,
                                                        const struct core_stream_spec *spec, uint64_t handle);

/* Makes the migrations of an accepted proposal one by one, releasing the old reservation after each, and
 * checks all invariants at every step. Then admits the new stream, and returns its number. */
uint32_t test_standing_make_room(struct partition_standing *standing,
                                 const struct partition_standing_proposal *proposal,
                                 const struct core_stream_spec *newcomer, uint64_t handle);

/* Releases a random stream, if there is one. */
void test_standing_release_one(struct partition_standing *standing, struct test_random *random);

/* Checks that the independent checker accepts the certificate, and that no account contains a released
 * stream. */
void test_standing_holds(const struct partition_standing *standing);

/* The shipped profile emulated-small, and a stream of packets of 1400 bytes. */
struct config_profile *test_standing_profile(void);
struct core_stream_spec test_standing_spec(core_ns interval_ns, core_ns latency_ns);

#endif
