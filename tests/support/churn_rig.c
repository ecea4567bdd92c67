#include "tests/support/churn_rig.h"

#include "inputgen/shipped.h"
#include "tests/support/gpu_server.h"
#include "tests/support/require.h"

#include <stdio.h>
#include <string.h>

static struct inputgen_streams *streams_of(const char *workload, uint32_t count, uint64_t seed)
{
    struct config_workload *opened;
    struct inputgen_streams *list;
    struct core_error error;
    char path[256];
    snprintf(path, sizeof path, "%s/config/workloads/%s.yaml", MILLRACE_SOURCE_DIR, workload);
    TEST_REQUIRE(inputgen_workload_open(path, &opened, &error) == CORE_OK);
    TEST_REQUIRE(inputgen_streams_make(opened, count, 2 * CORE_NS_PER_S, seed, &list, &error) == CORE_OK);
    config_workload_free(opened);
    return list;
}

void churn_rig_start(struct churn_rig *rig, const char *yaml)
{
    struct config_profile *profile = test_gpu_profile(25);
    char text[512];
    *rig = (struct churn_rig){0};
    (void)snprintf(text, sizeof text, "admin: unix:admin\n%s", yaml);
    test_gpu_server_start(&rig->server, "", text, profile);
    config_profile_free(profile);
    core_address_format(test_server_unix(&rig->server), rig->address, sizeof rig->address);
    (void)snprintf(rig->admin, sizeof rig->admin, "unix:%s/admin", rig->server.folder);
    rig->standing = streams_of("mixed", CHURN_RIG_STANDING, 1);
    rig->opened = streams_of("churn", 500, 2);
    rig->options = (struct inputgen_churn_options){
        .run = {.address = rig->address,
                .name = "test",
                .seed = 1,
                .connections = 4,
                .threads = 2,
                .duration_ns = 1500 * CORE_NS_PER_MS,
                .drain_ns = 60 * CORE_NS_PER_S,
                .timeout_ms = 60000,
                .ordinary_priority = true},
        .opened = rig->opened,
        .operations_per_s = 300,
        .weights = {1, 1, 1},
        .open_max = 60,
        .probe_max = 1000,
        .probe_bits_per_s = 6e6,
        .admin = rig->admin,
    };
}

void churn_rig_stop(struct churn_rig *rig)
{
    inputgen_streams_free(rig->standing);
    inputgen_streams_free(rig->opened);
    TEST_REQUIRE(test_server_stop(&rig->server) == 0);
}

struct inputgen_churn_report *churn_rig_run(const struct churn_rig *rig)
{
    struct inputgen_churn_report *report;
    struct core_error error;
    if (inputgen_churn_run(&rig->options, rig->standing, &report, &error) != CORE_OK) {
        fprintf(stderr, "%s\n", error.text);
        abort();
    }
    return report;
}

int churn_rig_judge(const struct inputgen_churn_report *report,
                    const struct inputgen_churn_judgement *judgement, const char *words)
{
    char sentence[1024];
    int status = inputgen_churn_judge(report, judgement, sentence, sizeof sentence);
    if (!strstr(sentence, words)) {
        fprintf(stderr, "\"%s\" does not say \"%s\"\n", sentence, words);
        abort();
    }
    return status;
}
