/* The certificate of what an admission state has (partition/certificate.h); a test without memory
 * for it fails. */
#ifndef MILLRACE_TESTS_STANDING_PLAN_H
#define MILLRACE_TESTS_STANDING_PLAN_H

#include "partition/certificate.h"
#include "tests/support/require.h"

#include <stdlib.h>

/* In the failure scenario of GPU `lost`, below the number of GPUs, or ADMISSION_NONE. To be destroyed. */
static inline struct partition_plan *test_admission_plan_after(const struct admission *admission,
                                                               uint32_t lost)
{
    struct partition_certificate certificate;
    TEST_REQUIRE(partition_certify(admission, lost, &certificate, NULL) == CORE_OK);
    free(certificate.specs); /* the test has its own */
    return certificate.plan;
}

static inline struct partition_plan *test_admission_plan(const struct admission *admission)
{
    return test_admission_plan_after(admission, ADMISSION_NONE);
}

#endif
