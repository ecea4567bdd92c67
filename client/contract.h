/* A contract in the words of core, which the programs of this tree have from their options and workloads, and
 * in those of the public interface. Pure; any thread. */
#ifndef MILLRACE_CLIENT_CONTRACT_H
#define MILLRACE_CLIENT_CONTRACT_H

#include "client/millrace.h"
#include "core/stream.h"

/* Without a key and an IV. */
struct millrace_open client_contract_open(const struct core_stream_spec *spec);

/* And back, whatever its size says. */
struct core_stream_spec client_contract_spec(const struct millrace_open *open);

#endif
