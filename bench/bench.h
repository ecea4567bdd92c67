/* The subcommands of millrace-bench: one row in main.c's table and one file each. */
#ifndef MILLRACE_BENCH_BENCH_H
#define MILLRACE_BENCH_BENCH_H

/* Runs a subcommand; argv[0] is its name ("millrace-bench crypto"). Returns the exit status: 0 when it
 * measured and what it checks held, 1 when a check failed or it could not run, 2 for wrong arguments. */
typedef int bench_run(int argc, char **argv);

bench_run bench_admission;
bench_run bench_calibrate;
bench_run bench_crypto;
bench_run bench_forgery;
bench_run bench_estimate;
bench_run bench_figures;
bench_run bench_fleet;
bench_run bench_hls;
bench_run bench_kernel;
bench_run bench_lanes;
bench_run bench_memory;
bench_run bench_papers;
bench_run bench_pipeline;
bench_run bench_plan;
bench_run bench_siege;
bench_run bench_sockets;
bench_run bench_ts;

#endif
