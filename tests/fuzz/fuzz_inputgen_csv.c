/* Any text as a list of streams: an answer without harm; what is accepted, written again and read again, is
 * the same file. */
#include "inputgen/streams.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *written(const struct inputgen_streams *list, size_t *bytes)
{
    char *text = NULL;
    FILE *file = open_memstream(&text, bytes);

    if (!file || inputgen_streams_write(list, file, NULL) != CORE_OK || fclose(file) != 0)
        abort();
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct inputgen_streams *list = NULL, *again = NULL;
    struct core_error error = {""};
    size_t bytes, bytes_again;

    if (inputgen_streams_parse((const char *)data, size, "fuzz.csv", &list, &error) != CORE_OK) {
        if (list || !error.text[0])
            abort();
        return 0;
    }
    char *text = written(list, &bytes);
    if (inputgen_streams_parse(text, bytes, "again.csv", &again, &error) != CORE_OK)
        abort();
    char *text_again = written(again, &bytes_again);
    if (bytes != bytes_again || memcmp(text, text_again, bytes) != 0)
        abort();
    free(text);
    free(text_again);
    inputgen_streams_free(list);
    inputgen_streams_free(again);
    return 0;
}
