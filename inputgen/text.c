#include "inputgen/text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#define INDENT 14 /* where the text of a row begins */

struct inputgen_text inputgen_text_count(uint64_t number)
{
    struct inputgen_text plain, out;
    int digits = snprintf(plain.text, sizeof plain.text, "%" PRIu64, number);
    char *to = out.text;
    for (int at = 0; at < digits; at++) {
        if (at > 0 && (digits - at) % 3 == 0)
            *to++ = ',';
        *to++ = plain.text[at];
    }
    *to = '\0';
    return out;
}

struct inputgen_text inputgen_text_duration(core_ns time_ns)
{
    struct inputgen_text out;
    (void)core_duration_format(time_ns, out.text);
    return out;
}

static void print_words(FILE *file, const char *text)
{
    size_t column = INDENT;
    while (*text) {
        size_t word = strcspn(text, " ");
        if (column > INDENT && column + 1 + word > INPUTGEN_TEXT_COLUMNS) {
            (void)fprintf(file, "\n%*s", INDENT, "");
            column = INDENT;
        }
        if (column > INDENT) {
            (void)fputc(' ', file);
            column++;
        }
        (void)fwrite(text, 1, word, file);
        column += word;
        text += word + strspn(text + word, " ");
    }
}

void inputgen_text_row(FILE *file, const char *label, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    (void)fprintf(file, "  %-*s", INDENT - 2, label);
    print_words(file, text);
    (void)fputc('\n', file);
}
