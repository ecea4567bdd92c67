/* Admission states in tests: made, queried, and checked for the invariants that must always hold. */
#ifndef MILLRACE_TESTS_ADMISSION_H
#define MILLRACE_TESTS_ADMISSION_H

#include "partition/admission/admission.h"
#include "tests/support/random.h"

/* Each fails the test if it does not succeed. All streams are on I/O thread 0. */
struct admission *test_admission_of(const struct config_profile *profile, uint32_t workers, uint32_t io);
struct admission_placement test_admission_query(const struct admission *admission,
                                                const struct core_stream_spec *spec, bool with_offer);
struct admission_placement test_admission_admit(struct admission *admission,
                                                const struct core_stream_spec *spec, uint64_t handle);

/* Makes the migrations of an accepted proposal one by one, releasing the old reservation after each, and
 * checks all invariants at every step. Then admits the new stream, and returns its number. */
uint32_t test_admission_make_room(struct admission *admission, const struct admission_proposal *proposal,
                                  const struct core_stream_spec *request, uint64_t handle);

/* Releases a random stream, if there is one. */
void test_admission_release_one(struct admission *admission, struct test_random *random);

/* Checks that the independent checker accepts the certificate, and that no account contains a released
 * stream. */
void test_admission_holds(const struct admission *admission);

/* The shipped profile emulated-small, and a stream of packets of 1400 bytes. */
struct config_profile *test_admission_profile(void);
struct core_stream_spec test_admission_spec(core_ns interval_ns, core_ns latency_ns);

#endif
