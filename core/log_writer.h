/* Where entries become lines on the descriptor: by the writer thread where it runs (core_log_start), else on
 * the caller's thread. Private to core. */
#ifndef MILLRACE_CORE_LOG_WRITER_H
#define MILLRACE_CORE_LOG_WRITER_H

#include "core/log_line.h"

/* An entry to be filled and ended soon by the same thread, but for lost_before; NULL: there is no room, the
 * line is counted as lost. Never waits while the writer runs. */
struct core_log_entry *core_log_writer_begin(void);
void core_log_writer_end(struct core_log_entry *entry);

#endif
