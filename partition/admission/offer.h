/* Private to partition: the least value that is accepted, for offers. */
#ifndef MILLRACE_PARTITION_ADMISSION_OFFER_H
#define MILLRACE_PARTITION_ADMISSION_OFFER_H

#include "core/time.h"

#include <stdbool.h>

typedef bool partition_search_ask(void *owner, core_ns value_ns);

/* Smallest accepted value in (refused_ns, limit_ns], where refused_ns >= 1 is refused; 0 if none. To the
 * nanosecond where acceptance is monotone: what is accepted stays so for greater values. The value has been
 * asked for and accepted in any case. */
core_ns partition_search_least(core_ns refused_ns, core_ns limit_ns, partition_search_ask *ask, void *owner);

#endif
