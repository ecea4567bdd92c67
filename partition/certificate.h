/* The certificate of what an admission state has, for the independent checker (partition/check/check.h): a
 * plan in which every unit is judged anew with its streams, each GPU at its period.
 *
 * It stands for itself: input and plan are what the checker asks for, and share nothing with the sums that
 * admission decides by. Takes as long as a plan of all streams does. Pure; any thread. */
#ifndef MILLRACE_PARTITION_CERTIFICATE_H
#define MILLRACE_PARTITION_CERTIFICATE_H

#include "partition/admission/admission.h"

struct partition_certificate {
    struct core_stream_spec *specs;    /* of the input */
    struct partition_plan_input input; /* its streams are those of admission_stream_at, in that order */
    struct partition_plan *plan;       /* not accepted: some unit does not hold; plan->reason says which */
};

/* lost: ADMISSION_NONE, or the GPU whose failure scenario is meant: the other units with their streams, and
 * with the guaranteed ones of that GPU at the contracts of their backups. Its standard ones are in no plan.
 * The state must outlive the certificate. CORE_NO_MEMORY. */
CORE_CHECKED core_status partition_certify(const struct admission *admission, uint32_t lost,
                                           struct partition_certificate *certificate,
                                           struct core_error *error);
void partition_certificate_free(struct partition_certificate *certificate);

#endif
