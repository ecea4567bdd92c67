/* Between the public interface (client/millrace.h) and the words of core: the one place where both meet, so that
 * core can change and programs that use the library need not.
 *
 * client_read_...: what a caller has given, checked as client_struct_read does. client_show_...: what the
 * server has said, for a caller or a callback. Pure; any thread. */
#ifndef MILLRACE_CLIENT_TRANSLATE_H
#define MILLRACE_CLIENT_TRANSLATE_H

#include "client/millrace.h"
#include "core/protocol.h"

/* Room for an error's text is the struct that core fills. */
_Static_assert(sizeof(struct core_error) == MILLRACE_TEXT_BYTES, "an error's text is a core_error");
static inline struct core_error *client_error(char *text)
{
    return (struct core_error *)text;
}

CORE_CHECKED core_status client_read_tls(const struct millrace_tls *given, struct millrace_tls *tls,
                                         struct core_error *error);
CORE_CHECKED core_status client_read_pool(const struct millrace_pool *given, struct millrace_pool *pool,
                                          struct core_error *error);
CORE_CHECKED core_status client_read_callbacks(const struct millrace_callbacks *given,
                                               struct millrace_callbacks *callbacks,
                                               struct core_error *error);
CORE_CHECKED core_status client_read_open(const struct millrace_open *given, struct protocol_open *open,
                                          struct core_error *error);
CORE_CHECKED core_status client_read_modify(const struct millrace_modify *given,
                                            struct protocol_modify *modify, struct core_error *error);
CORE_CHECKED core_status client_read_rekey(const struct millrace_rekey *given, struct protocol_rekey *rekey,
                                           struct core_error *error);

struct millrace_welcome client_show_welcome(const struct protocol_welcome *welcome);
struct millrace_opened client_show_opened(const struct protocol_opened *opened);
struct millrace_modified client_show_modified(const struct protocol_modified *modified);
struct millrace_rekeyed client_show_rekeyed(const struct protocol_rekeyed *rekeyed);
struct millrace_refused client_show_refused(const struct protocol_refused *refused);
struct millrace_result client_show_result(const struct protocol_header *header,
                                          const struct protocol_result *result, const uint8_t *body);
struct millrace_closed client_show_closed(const struct protocol_closed *closed);
struct millrace_notice client_show_notice(const struct protocol_notice *notice);

#endif
