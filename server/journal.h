/* The journal as the log's sink: an event is an entry with fields of its own, not a line to be taken apart.
 */
#ifndef MILLRACE_SERVER_JOURNAL_H
#define MILLRACE_SERVER_JOURNAL_H

#include "core/log.h"

/* NULL where standard error is not the journal's ($JOURNAL_STREAM names its device and inode): what somebody
 * has sent elsewhere stays there. */
core_log_sink *server_journal_sink(void);

#endif
