/* Random cards and streams for the backlog rule (perfmodel/flow.h), and what their batches take. */
#ifndef MILLRACE_TESTS_FLOW_CROWD_H
#define MILLRACE_TESTS_FLOW_CROWD_H

#include "perfmodel/flow.h"
#include "tests/support/gpu.h"

#define FLOW_CROWD_STREAMS 24

/* It points into itself: not to be copied. */
struct flow_crowd {
    struct config_profile profile;
    struct test_gpu gpu;
    struct core_stream_spec specs[FLOW_CROWD_STREAMS];
    size_t count;
    struct perfmodel_flow_load load;
    struct perfmodel_flow_gpu *card;
    bool busy;
};

/* 1 .. FLOW_CROWD_STREAMS streams, of a latency bound that never matters. */
void flow_crowd_random(struct flow_crowd *crowd, struct test_random *random);
void flow_crowd_free(struct flow_crowd *crowd);

/* The jobs of so many bytes of a stream, all of them in whole packets. */
struct perfmodel_jobs flow_crowd_jobs(const struct core_stream_spec *spec, uint64_t bytes);

/* What a batch of these jobs takes; they are sorted. */
struct perfmodel_stages flow_crowd_stages(const struct flow_crowd *crowd, struct perfmodel_jobs *jobs,
                                          size_t count);

/* The bytes that a stream sends in [open_ns, close_ns) if it sends all it may, at the police's earliest
 * times; *tat_ns is its own, at first 0. */
uint64_t flow_crowd_send(const struct core_stream_spec *spec, core_ns *tat_ns, core_ns open_ns,
                         core_ns close_ns);

#endif
