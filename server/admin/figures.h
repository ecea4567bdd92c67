/* The figures that are numbers, each with its name in /status, its metric, and what it says: what /status,
 * /metrics and the check of the documentation go by. A figure of another kind (a histogram, a text, a list by
 * cause) is written where its page is (status_json.c, prometheus.c). */
#ifndef MILLRACE_SERVER_ADMIN_FIGURES_H
#define MILLRACE_SERVER_ADMIN_FIGURES_H

#include <stddef.h>

enum server_figure_kind {                        /* the member; in /status; in /metrics: */
                          SERVER_FIGURE_COUNT,   /* uint64_t */
                          SERVER_FIGURE_SHARE,   /* parts per billion, int64_t; a share of 1 in both */
                          SERVER_FIGURE_SECONDS, /* core_ns; seconds in both */
                          SERVER_FIGURE_TIME     /* core_ns; microseconds; seconds */
};

struct server_figure {
    const char *status;      /* its name in /status; NULL: it is not there */
    const char *metric;      /* without "millrace_"; NULL: it is not there */
    const char *type, *help; /* of the metric: "gauge" or "counter", and a sentence */
    enum server_figure_kind kind;
    size_t offset; /* in the struct of the snapshot that its list is of */
};

/* Figures of one struct, up to one without help. */
extern const struct server_figure server_figures_totals[]; /* struct server_counts; no metrics, see io */
extern const struct server_figure server_figures_io[];     /* struct server_snapshot_io */
extern const struct server_figure server_figures_worker[]; /* struct server_snapshot_worker */
extern const struct server_figure server_figures_gpu[];    /* struct server_snapshot_gpu */
extern const struct server_figure server_figures_unit[];   /* struct server_snapshot_unit */
extern const struct server_figure server_figures_moves[];  /* struct server_snapshot, as the next */
extern const struct server_figure server_figures_plans[];

/* The stages of a GPU's batches, which /status has as an object each: also of struct server_snapshot_gpu. */
#define SERVER_FIGURES_STAGES 5
struct server_figure_stage {
    const char *status;
    const struct server_figure *figures;
};
extern const struct server_figure_stage server_figures_stages[SERVER_FIGURES_STAGES];

#endif
