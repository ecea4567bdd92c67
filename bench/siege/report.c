#include "bench/siege/report.h"

#include "core/realtime.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OWN_LATE     0.25 /* of the shortest bound: with more of its own the generator is no witness */
#define LINES_ENOUGH 500  /* bad clients; the lines of fewer may find room without a reader */

static const char *const verdicts[] = {"PASS", "FAIL", "unsure"};

/* ---- the verdict ---- */

static bool missed_as_late(const struct siege_row *row)
{
    const struct siege_figures *figures = &row->figures;
    return figures->missed >= figures->late &&
           figures->missed <= figures->late + row->done * siege_honest_within_bound(row->attack);
}

/* What the row did not reach, of what does not depend on how fast this machine is; NULL: nothing. */
static const char *broken(const struct siege_row *row)
{
    if (row->failed)
        return row->note;
    if (row->figures.untrue > 0)
        return "packets that the server calls met took longer than their bound";
    if (row->figures.spoilt > 0)
        return "packets were lost, wrong or rejected";
    if (row->attack->streams > 0 && row->figures.packets == 0)
        return "no honest packet came back";
    if ((row->attack->goals & SIEGE_OPENS) && row->figures.opens_failed > 0)
        return row->figures.open_error;
    if (row->attack->log_full && row->log_lost == 0 && row->done >= LINES_ENOUGH)
        return "no line of the log was lost, though nobody read it";
    return NULL;
}

static const char *tardy(const struct siege_row *row)
{
    const unsigned goals = row->attack->goals;
    if ((goals & SIEGE_MET) && row->figures.missed > 0)
        return "packets were missed";
    if ((goals & SIEGE_ON_TIME) && row->figures.late > 0)
        return "packets were late at the client";
    if ((goals & SIEGE_OPENS) && row->figures.open_ns > SIEGE_OPEN_MS * CORE_NS_PER_MS)
        return "an OPEN beside it took more than 20 ms";
    if ((goals & SIEGE_COUNTED) && !missed_as_late(row))
        return "the server's count of missed packets is not the client's of late ones";
    return NULL;
}

/* Can it be the generator's own lateness? Not where even without that a packet took longer than its bound. */
static bool own_fault(const struct siege_row *row)
{
    const struct siege_figures *figures = &row->figures;
    return (double)figures->own_ns > OWN_LATE * (double)row->attack->latency_min_ns &&
           figures->worst_ns - figures->own_ns <= row->attack->latency_min_ns;
}

void siege_judge(struct siege_row *row)
{
    const char *why = broken(row);
    row->verdict = SIEGE_FAIL;
    if (why == NULL) {
        why = tardy(row);
        row->verdict = why == NULL ? SIEGE_PASS : own_fault(row) ? SIEGE_UNSURE : SIEGE_FAIL;
    }
    (void)snprintf(row->why, sizeof row->why, "%.199s", why ? why : "");
}

/* ---- the report ---- */

static double ms(core_ns time_ns)
{
    return (double)time_ns / 1e6;
}

void siege_head_print(void)
{
    double load = 0;
    if (getloadavg(&load, 1) == 1)
        printf("load of the machine before: %.1f, on %u cores\n\n", load, core_cpu_count());
    printf("%-6s %-18s %9s %8s %6s %6s %6s %9s %8s %9s %6s %6s\n", "", "attack", "done", "packets", "late",
           "missed", "untrue", "worst ms", "own ms", "OPEN ms", "lost", "turned");
}

void siege_row_print(const struct siege_row *row)
{
    const struct siege_figures *figures = &row->figures;
    printf("%-6s %-18s %9" PRIu64 " %8" PRIu64 " %6" PRIu64 " %6" PRIu64 " %6" PRIu64
           " %9.2f %8.2f %9.2f %6" PRIu64 " %6" PRIu64 "\n",
           verdicts[row->verdict], row->attack->name, row->done, figures->packets, figures->late,
           figures->missed, figures->untrue, ms(figures->worst_ns), ms(figures->own_ns), ms(figures->open_ns),
           row->log_lost, row->turned);
    if (figures->gpu > 0)
        printf("%25s streams that began on cards, in all rounds: %" PRIu64 "\n", "", figures->gpu);
    if (row->note[0])
        printf("%25s %s\n", "", row->note);
    if (row->why[0] && strcmp(row->why, row->note) != 0)
        printf("%25s %s\n", "", row->why);
    (void)fflush(stdout);
}

void siege_legend_print(void)
{
    puts("\nhonest packets: received; late at the client; missed by the server's word; untrue: met by its "
         "word, and\nlonger than the bound for certain. worst: due to received; own: of that the generator's "
         "own at most.\nOPEN: the slowest of a client beside. lost: lines of the log; turned: connections "
         "that the server ended.");
}

json_t *siege_row_json(const struct siege_row *row)
{
    const struct siege_figures *figures = &row->figures;
    const struct {
        const char *name;
        uint64_t value;
    } counts[] = {
        {"done", row->done},
        {"packets", figures->packets},
        {"late", figures->late},
        {"missed", figures->missed},
        {"untrue", figures->untrue},
        {"spoilt", figures->spoilt},
        {"streams_refused", figures->refused},
        {"streams_on_gpus", figures->gpu},
        {"opens", figures->opens},
        {"opens_failed", figures->opens_failed},
        {"log_lost", row->log_lost},
        {"connections_turned", row->turned},
    };
    json_t *object = json_pack("{s:s,s:s,s:s,s:s,s:s,s:f,s:f,s:f,s:f,s:f}", "attack", row->attack->name,
                               "what", row->attack->what, "verdict", verdicts[row->verdict], "why", row->why,
                               "note", row->note, "worst_ms", ms(figures->worst_ns), "own_ms",
                               ms(figures->own_ns), "open_worst_ms", ms(figures->open_ns), "untrue_by_ms",
                               ms(figures->untrue_ns), "shortest_bound_ms", ms(row->attack->latency_min_ns));
    for (size_t at = 0; object && at < sizeof counts / sizeof *counts; at++)
        (void)json_object_set_new(object, counts[at].name, json_integer((json_int_t)counts[at].value));
    return object;
}
