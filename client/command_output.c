/* What the subcommands say, for people or, with --json, for programs: one object on standard output, also of
 * what went wrong. */
#include "client/command.h"

#include "client/contract.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static bool wants_json;

void command_want_json(void)
{
    wants_json = true;
}

bool command_wants_json(void)
{
    return wants_json;
}

int command_print_json(json_t *object)
{
    const size_t flags = JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12);
    const bool failed = object == NULL || json_dumpf(object, stdout, flags) != 0 || puts("") < 0;
    json_decref(object);
    if (!failed && fflush(stdout) == 0)
        return COMMAND_OK;
    fputs("millrace: standard output can not be written\n", stderr);
    return COMMAND_FAILED;
}

/* Bytes that are no UTF-8, as in names of files, become question marks. */
static json_t *string_of(char *text)
{
    json_t *string = json_string(text);
    if (string != NULL)
        return string;
    for (char *at = text; *at != '\0'; at++)
        *at = (unsigned char)*at < 0x80 ? *at : '?';
    return json_string(text);
}

json_t *command_pack_error(const char *text)
{
    char copy[1024];
    snprintf(copy, sizeof copy, "%s", text);
    return json_pack("{s:o}", "message", string_of(copy));
}

int command_fail(enum command_exit exit, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (wants_json)
        (void)command_print_json(json_pack("{s:o}", "error", command_pack_error(text)));
    else
        fprintf(stderr, "millrace: %s\n", text);
    return (int)exit;
}

/* ---- refusals ---- */

static json_t *offer_or_null(double value)
{
    return value > 0 ? json_real(value) : json_null();
}

int command_pack_refused(json_t *object, const struct millrace_open *open,
                         const struct millrace_refused *refused)
{
    struct core_stream_spec offer = client_contract_spec(open);
    offer.interval_ns = refused->offer_interval_ns;
    double rate = offer.interval_ns > 0 ? core_stream_rate_bits_per_s(&offer) : 0;
    return json_object_update_new(
        object,
        json_pack("{s:s, s:s, s:{s:o, s:o, s:o}}", "code", millrace_refusal_name(refused->code), "constraint",
                  millrace_limit_name(refused->constraint), "offer", "interval_us",
                  offer_or_null((double)refused->offer_interval_ns / 1e3), "rate_bits_per_s",
                  offer_or_null(rate), "latency_us", offer_or_null((double)refused->offer_latency_ns / 1e3)));
}

static void print_refused_json(const struct millrace_open *open, const struct millrace_refused *refused)
{
    json_t *error = command_pack_error(refused->text);
    (void)command_pack_refused(error, open, refused);
    (void)command_print_json(json_pack("{s:o}", "error", error));
}

int command_print_refused(const struct millrace_open *open, const struct millrace_refused *refused)
{
    char first[CORE_TEXT_BYTES], second[CORE_TEXT_BYTES];
    const struct core_stream_spec asked = client_contract_spec(open);
    struct core_stream_spec offer = asked;
    if (wants_json) {
        print_refused_json(open, refused);
        return COMMAND_REFUSED;
    }
    command_fail(COMMAND_REFUSED, "refused (%s): %s", millrace_refusal_name(refused->code), refused->text);
    offer.interval_ns = refused->offer_interval_ns;
    if (offer.interval_ns > 0)
        fprintf(stderr, "  with a latency of %s the server would now admit up to %s\n",
                core_duration_format(offer.latency_ns, first),
                core_rate_format(core_stream_rate_bits_per_s(&offer), second));
    if (refused->offer_latency_ns > 0)
        fprintf(stderr, "  with a rate of %s it would now admit a latency of %s or longer\n",
                core_rate_format(core_stream_rate_bits_per_s(&asked), first),
                core_duration_format(refused->offer_latency_ns, second));
    return COMMAND_REFUSED;
}
