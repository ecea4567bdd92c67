#include "tests/support/table.h"

#include "tests/support/require.h"

#include <stdlib.h>
#include <string.h>

static size_t split(char *line, char **cells)
{
    size_t count = 0;

    line[strcspn(line, "\r\n")] = '\0';
    for (char *rest = line; rest != NULL;) {
        TEST_REQUIRE(count < TEST_TABLE_COLUMNS);
        cells[count++] = strsep(&rest, ",");
    }
    return count;
}

struct test_table test_table_open(const char *name)
{
    struct test_table table = {.columns = 0};
    char path[512];

    snprintf(path, sizeof path, MILLRACE_SOURCE_DIR "/tests/data/%s", name);
    table.file = fopen(path, "r");
    TEST_REQUIRE(table.file != NULL);
    return table;
}

bool test_table_next(struct test_table *table)
{
    if (table->columns == 0) { /* here, not at the opening: the struct has moved since */
        TEST_REQUIRE(fgets(table->head, sizeof table->head, table->file) != NULL);
        table->columns = split(table->head, table->names);
    }
    if (fgets(table->line, sizeof table->line, table->file) == NULL) {
        fclose(table->file);
        return false;
    }
    TEST_REQUIRE(split(table->line, table->cells) == table->columns);
    return true;
}

const char *test_table_text(const struct test_table *table, const char *column)
{
    for (size_t i = 0; i < table->columns; i++)
        if (strcmp(table->names[i], column) == 0)
            return table->cells[i];
    test_require_failed(__FILE__, __LINE__, column);
}

double test_table_real(const struct test_table *table, const char *column)
{
    return strtod(test_table_text(table, column), NULL);
}

static int64_t number_of(const char *text, char **end)
{
    if (strncmp(text, "INF", 3) == 0) {
        *end = (char *)text + 3;
        return INT64_MAX;
    }
    return strtoll(text, end, 10);
}

int64_t test_table_int(const struct test_table *table, const char *column)
{
    const char *text = test_table_text(table, column);
    char *end;

    if (*text == '\0')
        return -1;
    const int64_t number = number_of(text, &end);
    TEST_REQUIRE(*end == '\0');
    return number;
}

int64_t test_table_list_next(const char **list)
{
    char *end;
    const int64_t number = number_of(*list, &end);

    TEST_REQUIRE(end != *list);
    *list = end + strspn(end, " ");
    return number;
}
