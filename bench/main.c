/* millrace-bench: measures. */
#include "bench/bench.h"
#include "core/options.h"
#include "core/standard.h"
#include "core/tls.h"

#include <stdio.h>

static const struct core_options_command commands[] = {
    {"calibrate", bench_calibrate, "measures this machine and writes its hardware profile"},
    {"crypto", bench_crypto, "a worker against IPsec-MB called bare and against OpenSSL"},
    {"sockets", bench_sockets, "a bare echo over sockets, and what the server carries of it"},
    {"lanes", bench_lanes, "what a packet costs through lanes and sockets, and without a server"},
    {"ts", bench_ts, "transport streams through millrace ts, every packet compared"},
    {"admission", bench_admission, "how fast a server answers who may join it"},
    {"memory", bench_memory, "what an idle stream costs, and if anything of closed ones stays"},
    {"siege", bench_siege, "attacks on a server, and what honest streams beside them notice"},
    {"forgery", bench_forgery, "whether the time of an answer tells a forged message"},
    {"hls", bench_hls, "how many renditions `millrace hls` carries without one late part"},
    {"estimate", bench_estimate, "what a machine would carry of a workload, by method"},
    {"plan", bench_plan, "how long planning takes"},
    {"kernel", bench_kernel, "one GPU by itself: against OpenSSL, and beside its copies"},
    {"pipeline", bench_pipeline, "streams through CPU workers and GPUs, stages against the model"},
    {"figures", bench_figures, "the figures of SYSTOR 2012, computed anew"},
    {"fleet", bench_fleet, "many servers behind HAProxy in virtual time: refusals, losses"},
    {"papers", bench_papers, "the figures of four papers on tasks that share GPUs, computed anew"},
};

int main(int argc, char **argv)
{
    const struct core_options_program program = {.name = "millrace-bench",
                                                 .summary = "Measures machines, servers and plans.",
                                                 .commands = commands,
                                                 .command_count = sizeof commands / sizeof commands[0]};

    struct core_error error;

    if (!core_standard_open())
        return 2;
    if (core_tls_ready(&error) != CORE_OK) {
        fprintf(stderr, "millrace-bench: %s\n", error.text);
        return 3;
    }
    return core_options_run(&program, argc, argv);
}
