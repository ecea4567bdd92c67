/* CBC over bursts of short pieces, 8 streams side by side with 128-bit AES, round keys straight from each
 * stream's state: no set-up for a piece at all, which is half the cost of one of 64 bytes in wider engines.
 * Private to this folder. */
#ifndef MILLRACE_CPU_SHORT_PIECES_H
#define MILLRACE_CPU_SHORT_PIECES_H

#include "cpu/engine.h"

/* Longest piece for which this is the faster way. */
#define SHORT_PIECE_BYTES 128

/* Encrypts the pieces and moves their chains on. Key states hold the encryption round keys, one after the
 * other, 16-byte aligned. Needs AES and AVX2. `rounds`: 10, 12 or 14. */
void short_pieces_encrypt(const struct cpu_piece *pieces, uint32_t count, int rounds);

#endif
