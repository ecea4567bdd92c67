/* The one symbol that libmillraced exports. */
#ifndef MILLRACE_SERVER_EMBEDDED_H
#define MILLRACE_SERVER_EMBEDDED_H

#include "core/embedded.h"

extern const struct core_embedded millraced_embedded;

#endif
