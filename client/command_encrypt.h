/* The two ends of `millrace encrypt`: packets from a file or pipe, ciphertext to one, both by number, so that
 * work can go on where it stopped. One thread. */
#ifndef MILLRACE_CLIENT_COMMAND_ENCRYPT_H
#define MILLRACE_CLIENT_COMMAND_ENCRYPT_H

#include "client/command.h"

/* ---- input: packets of packet_bytes, the last one shorter ---- */

struct encrypt_input {
    int descriptor;
    const char *name;
    uint32_t packet_bytes;
    bool pad_end;    /* the last packet gets PKCS#7 padding, or an extra packet is nothing else */
    uint8_t *packet; /* the one being collected */
    uint32_t bytes;  /* of it so far */
    bool complete;   /* ready to be sent */
    bool finished;   /* no packet comes after this one */
    uint64_t size;   /* of a regular file, else 0 */
};

/* path: NULL or "-" is standard input. Leaves out the first `skip` packets. */
CORE_CHECKED core_status encrypt_input_open(struct encrypt_input *input, const char *path,
                                            const struct command_contract *contract, uint64_t skip,
                                            struct core_error *error);
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
};

/* path: NULL or "-" is standard output. With skip > 0, a file must hold `skip` packets of padded_bytes, and
 * the last block of these is found in last_block. Neither makes nor changes the file yet. */
CORE_CHECKED core_status encrypt_output_open(struct encrypt_output *output, const char *path, uint64_t skip,
                                             uint32_t padded_bytes, struct core_error *error);
/* Cuts the file behind what is kept (all of it, with skip 0), to be written from there. */
CORE_CHECKED core_status encrypt_output_start(struct encrypt_output *output, struct core_error *error);
CORE_CHECKED core_status encrypt_output_write(struct encrypt_output *output, const uint8_t *ciphertext,
                                              uint32_t bytes, struct core_error *error);
CORE_CHECKED core_status encrypt_output_close(struct encrypt_output *output, struct core_error *error);

#endif
