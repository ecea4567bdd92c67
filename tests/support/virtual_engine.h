/* The CPU engine of virtual time: it encrypts nothing, and adds up what the profile says its calls may take.
 *
 * The engine's table has no argument to carry the sums, hence one burst at a time in the process. Test
 * thread. */
#ifndef MILLRACE_TESTS_SUPPORT_VIRTUAL_ENGINE_H
#define MILLRACE_TESTS_SUPPORT_VIRTUAL_ENGINE_H

#include "config/profile.h"
#include "cpu/engine.h"

extern const struct cpu_engine_ops virtual_engine;

/* Calls cost what this profile says from now on; it must outlive them. Forgets the calls before. */
void virtual_engine_use(const struct config_profile *profile);

/* The most that the calls since the last of these two functions take, with the profile's margin. */
core_ns virtual_engine_took_ns(void);

#endif
