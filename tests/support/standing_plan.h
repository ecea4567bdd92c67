/* The certificate of what an admission plan has, for the independent checker. */
#ifndef MILLRACE_TESTS_STANDING_PLAN_H
#define MILLRACE_TESTS_STANDING_PLAN_H

#include "partition/admission/admission.h"

/* Every unit judged anew, each GPU at its period; its streams are those of admission_stream_at, in
 * that order (partition/check/check.h). To be destroyed. */
struct partition_plan *test_admission_plan(const struct admission *admission);

/* In the failure scenario of GPU `lost`: the other units with their streams, and with the guaranteed ones of
 * that GPU at the contracts of their backups (tests/support/check_failover.h). Its standard ones are in no
 * plan. */
struct partition_plan *test_admission_plan_after(const struct admission *admission, uint32_t lost);

#endif
