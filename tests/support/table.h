/* A CSV file of tests/data, read line by line; cells by the names of the first line. */
#ifndef MILLRACE_TESTS_TABLE_H
#define MILLRACE_TESTS_TABLE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define TEST_TABLE_COLUMNS 24

struct test_table {
    FILE *file;
    char head[1024], line[8192];
    char *names[TEST_TABLE_COLUMNS], *cells[TEST_TABLE_COLUMNS];
    size_t columns;
};

/* The file must be there. Ends at the first line of values, which test_table_next reads. */
struct test_table test_table_open(const char *name);

/* false: at the end, and closed. */
bool test_table_next(struct test_table *table);

/* The cell of this column; the column must be there. */
const char *test_table_text(const struct test_table *table, const char *column);
double test_table_real(const struct test_table *table, const char *column);

/* INT64_MAX where the cell says INF, -1 where it is empty. */
int64_t test_table_int(const struct test_table *table, const char *column);

/* Reads the next number of a list with spaces, INT64_MAX for INF; moves *list behind it. */
int64_t test_table_list_next(const char **list);

#endif
