/* A program that uses a pool (client/pool.h) in a world where everything fails (pool_world.h), and what it must be
 * told, by client/millrace.h alone.
 *
 * A sequence is a string of bytes, each run of which is an operation of the program (open, query, packets, close,
 * modify, rekey, ping), of a node or of the way to it, or time that passes. Every string is a sequence.
 *
 * Checked are: each request has one answer; OPEN and QUERY have it within the pool's patience, and no more nodes were
 * asked than may be; results come in order, each once, with the bytes that one server would have made, whatever
 * nodes did; a stream ends for a reason that there is, and with the account of what came; one that could have gone on
 * at another node has; flags and times of packets that crossed a gap are true; the pool itself never dies, and never
 * turns without end. In the end all nodes are well again: then everything is answered, closes, and leaves no stream
 * at any node. */
#ifndef MILLRACE_TESTS_POOL_MODEL_H
#define MILLRACE_TESTS_POOL_MODEL_H

#include <stddef.h>
#include <stdint.h>

/* How a deviation is told on stderr, before the program aborts: what repeats the sequence. Borrowed. */
void test_pool_model_name(const char *name);
void test_pool_model_run(const uint8_t *bytes, size_t count);

#endif
