/* The server's notes of the packets in a batch, and the pages that hold them.
 *
 * A writer's packets are in a chain of pages that it takes from its arena as it fills them, so that an arena
 * has notes for as many packets as a batch may have, however many writers there are and whichever of them
 * has the packets: segments / GPU_RECORD_PAGE pages, and one for each writer that is not full. */
#ifndef MILLRACE_GPU_RECORD_H
#define MILLRACE_GPU_RECORD_H

#include "gpu/batch_layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPU_RECORD_PAGE 64u /* packets */

/* One packet of a closed batch: the server's own note of it. */
struct gpu_record {
    uint64_t cookie;
    uint32_t offset_bytes, bytes;
    uint32_t slot;
    uint8_t key;      /* of the stream's */
    bool begins_unit; /* its IV lies ahead of it in the input */
    bool alone;       /* and the packet is a job of its own */
    bool has_iv;
    uint8_t iv[GPU_BLOCK_BYTES];
};

/* In cache lines of its own: each page has one writer. */
struct gpu_record_page {
    alignas(64) struct gpu_record records[GPU_RECORD_PAGE];
    struct gpu_record_page *next; /* of the same writer; not set in its last */
};

/* The packets of one writer in a batch, in the order in which they were appended. */
struct gpu_record_list {
    const struct gpu_record_page *page;
    uint32_t at;   /* the next one's place in the page */
    uint32_t left; /* packets; 0: page may be NULL */
};

/* Takes the next packet off the list; NULL: there is none left. */
static inline const struct gpu_record *gpu_record_next(struct gpu_record_list *list)
{
    if (list->left == 0)
        return NULL;
    if (list->at == GPU_RECORD_PAGE) {
        list->page = list->page->next;
        list->at = 0;
    }
    list->left--;
    return &list->page->records[list->at++];
}

#endif
