/* `millrace encrypt` in three files: options and opening; its two ends, packets from a file or pipe and
 * ciphertext to one, both by number, so that work can go on where it stopped; and the run between them. */
#ifndef MILLRACE_CLIENT_COMMAND_ENCRYPT_H
#define MILLRACE_CLIENT_COMMAND_ENCRYPT_H

#include "client/command.h"

#include "core/histogram.h"

#include <stdio.h>

/* ---- input: packets of packet_bytes, the last one shorter, and what they are of messages ---- */

struct encrypt_input {
    int descriptor;
    const char *name;
    uint32_t packet_bytes;
    bool pad_end; /* the last packet gets PKCS#7 padding, or an extra packet is nothing else */
    bool has_messages;
    bool
        ends_empty; /* a message may end with a packet of nothing: the server pads it, or there is no need to */
    bool looks_ahead;         /* whether a packet is the last one must be known before it is sent */
    uint64_t message_packets; /* 0: all is one message */
    uint64_t number;          /* of the packet at hand */
    unsigned flags;           /* of it, once it is complete: MILLRACE_DATA_FIRST, MILLRACE_DATA_LAST */
    uint8_t *packet;          /* the one being collected, and room for a byte of the next one */
    uint32_t bytes;           /* of it so far */
    bool has_ahead;           /* behind a complete one there is that byte */
    bool complete;            /* ready to be sent */
    bool finished;            /* no packet comes after this one */
    uint64_t size;            /* of a regular file, else 0 */
};

/* path: NULL or "-" is standard input. Leaves out the first `skip` packets. */
CORE_CHECKED core_status encrypt_input_open(struct encrypt_input *input, const char *path,
                                            const struct command_contract *contract, uint64_t message_packets,
                                            uint64_t skip, struct core_error *error);
/* Reads once, what is there. */
CORE_CHECKED core_status encrypt_input_read(struct encrypt_input *input, struct core_error *error);
void encrypt_input_next(struct encrypt_input *input); /* the packet was taken */
void encrypt_input_close(struct encrypt_input *input);

/* ---- output ---- */

struct encrypt_output {
    FILE *file;
    const char *name;
    uint64_t kept_bytes;                  /* of what the file holds */
    uint8_t last_block[CORE_BLOCK_BYTES]; /* of what was written: the IV to go on with */
    bool strips; /* PKCS#7 is taken off at the end: the last block is held back until then */
    bool held;   /* last_block is not written yet */
};

/* path: NULL or "-" is standard output. With skip > 0, a file must hold `skip` packets of padded_bytes, and
 * the last block of these is found in last_block. Neither makes nor changes the file yet. */
CORE_CHECKED core_status encrypt_output_open(struct encrypt_output *output, const char *path, uint64_t skip,
                                             uint32_t padded_bytes, struct core_error *error);

/* Not the file that the input is read from. */
CORE_CHECKED core_status encrypt_output_check(const struct encrypt_output *output,
                                              const struct encrypt_input *input, struct core_error *error);

/* Cuts the file behind what is kept (all of it, with skip 0), to be written from there. */
CORE_CHECKED core_status encrypt_output_start(struct encrypt_output *output, struct core_error *error);
CORE_CHECKED core_status encrypt_output_write(struct encrypt_output *output, const uint8_t *ciphertext,
                                              uint32_t bytes, struct core_error *error);
/* complete: nothing follows. CORE_INVALID: the padding to be taken off is none. */
CORE_CHECKED core_status encrypt_output_close(struct encrypt_output *output, bool complete,
                                              struct core_error *error);

/* ---- the run ---- */

struct encrypt_options {
    struct core_options_server server;
    struct command_contract contract;
    const char *input, *output;
    uint64_t skip;
    uint64_t message_packets; /* 0: not given; all is one message */
    core_ns reconnect_ns;     /* how long to look for a server again; 0: not given */
    bool quiet;
};

/* A stream as one unit that is encrypted, whose last block is all that going on with it needs. */
bool command_encrypt_is_one_chain(const struct encrypt_options *options);

/* One run of the command from its input to its output. */
struct encrypt_run {
    const struct encrypt_options *options;
    struct millrace *connection;
    struct encrypt_input input;
    struct encrypt_output output;
    struct millrace_open open;
    struct millrace_opened opened;
    struct core_error error; /* of what went wrong inside a callback */
    core_status status;
    core_ns arrival_ns; /* the contract's theoretical arrival time of the next packet */
    uint64_t corrected; /* packets sent when it was last put right by the server's */
    core_ns started_ns, told_ns;
    bool terminal;
    uint8_t iv[CORE_BLOCK_BYTES]; /* that the first packet was chained to */
    unsigned gaps;                /* between two servers, */
    core_ns gap_ns;               /* the longest of them */
    uint64_t sent, received, received_bytes;
    uint64_t met, missed, reader_late, policed;
    struct core_histogram latency;
};

/* Sent and not yet back, at most; and that a pool keeps of a stream, for which that, with what it costs by the
 * packet, must have room. */
#define ENCRYPT_AHEAD_BYTES       (UINT64_C(3) << 20)
#define ENCRYPT_KEPT_BYTES        (UINT32_C(4) << 20)
#define ENCRYPT_PACKET_MORE_BYTES 32

/* From the open stream to its close, at the contract's pace, with progress and summary; what the process is
 * to exit with. Ends early and in good order at SIGINT and SIGTERM. */
int encrypt_stream(struct encrypt_run *run);

#endif
