/* The figures of `millrace ts`, one table for all who are told: Prometheus, and the report at the end. */
#ifndef MILLRACE_CLIENT_TS_REPORT_H
#define MILLRACE_CLIENT_TS_REPORT_H

#include "client/ts/service.h"

#include <jansson.h>
#include <stdio.h>

struct ts_set { /* of services */
    struct ts_service *services;
    size_t count;
    struct ts_link link;
};

/* For Prometheus. */
void ts_report_metrics(const struct ts_set *set, FILE *page);

/* A line for each service, and one for all, with how long datagrams were on their way. */
void ts_report_text(const struct ts_set *set, FILE *page);

/* The same. NULL: no memory. */
json_t *ts_report_json(const struct ts_set *set);

struct ts_counts ts_report_sum(const struct ts_set *set);
uint64_t ts_report_dropped(const struct ts_counts *counts);

#endif
