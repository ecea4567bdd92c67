/* The child process of one GPU, millrace-gpu, from the inside.
 *
 * Four threads: the loop takes commands, drives the pipeline and puts completions; the watch (the process's
 * first thread) sees the end and the silence of the server, asks the loop to stop, and ends the process
 * where the loop does not; the third one asks how the card is, and may wait for a driver that does not answer;
 * the resizer maps memory and has it pinned, which takes long. */
#ifndef MILLRACE_GPU_CHILD_H
#define MILLRACE_GPU_CHILD_H

#include "core/user.h"
#include "gpu/channel.h"
#include "gpu/pipeline.h"
#include "gpu/resizer.h"

#include <pthread.h>

/* The descriptors that the server hands over, by number. Everything above is closed. */
enum {
    GPU_CHILD_SOCKET = 3, /* a byte: commands wait; end of file: the server is gone */
    GPU_CHILD_REGION,     /* the arenas */
    GPU_CHILD_CHANNEL,
    GPU_CHILD_DESCRIPTORS
};

/* Exit codes of millrace-gpu. */
enum {
    GPU_EXIT_STOPPED = 0,
    GPU_EXIT_USAGE = 2,
    GPU_EXIT_START = 3,  /* no such device, or it can not be used */
    GPU_EXIT_DEVICE = 4, /* the device, or a command, failed */
    GPU_EXIT_SERVER = 5, /* the server ended or fell silent */
    GPU_EXIT_STUCK = 6   /* told to stop, the loop did not */
};

struct gpu_child {
    const struct gpu_device_ops *ops; /* set before start */
    uint32_t index;                   /* of the card; set before start */
    const char *uuid;                 /* which the card must be; NULL: any; set before start */
    const struct core_user *user;     /* to become; NULL: none; set before start */
    struct gpu_channel channel;       /* the loop's; the watch reads the server's beats */
    struct gpu_region region;         /* its room: the resizer's thread's */
    struct gpu_device *device;        /* the loop's */
    struct gpu_room room;             /* the loop's: of batches; */
    struct gpu_room next_room;        /* and what was asked for */
    bool resizing;                    /* the loop's */
    struct gpu_resizer *resizer;
    int resized;                  /* eventfd: the resizer's */
    struct gpu_pipeline pipeline; /* the loop's */
    pthread_t health;             /* the watch's; there where has_health says so */
    bool has_health;
    int stop;     /* eventfd: the watch asks the loop to stop */
    int finished; /* eventfd: the loop has ended */
    int status;   /* exit code; the loop's until it has finished */
};

/* Attaches to the descriptors, protects the process, starts the loop and watches. Returns the exit code. */
int gpu_child_serve(struct gpu_child *child);

/* On the resizer's thread: maps the room and has the device pin it, or the other way round. */
core_status gpu_child_resize(void *child, const struct gpu_room *room, struct core_error *error);

/* The loop: opens the device, serves until STOP or an error, closes the device. child_loop.c */
void *gpu_child_loop(void *child);

/* Starts the thread that asks how the card is; none without a UUID. child_health.c */
CORE_CHECKED core_status gpu_child_health_start(struct gpu_child *child, struct core_error *error);
/* After the loop's end. False: it does not end, being stuck in the driver. */
bool gpu_child_health_end(const struct gpu_child *child);

/* The end with the server's, however that ends, and signals. CORE_CLOSED: the server is gone.
 * child_protect.c */
CORE_CHECKED core_status gpu_child_begin(struct core_error *error);

/* The user, core dumps off, new privileges, inherited descriptors and their limit. After the channel, which
 * has the priority, and before there is a second thread; with another user this thread has the loop's
 * priority afterwards. CORE_CLOSED: the server is gone. child_protect.c */
CORE_CHECKED core_status gpu_child_protect(const struct gpu_child *child, struct core_error *error);

/* The cards of a backend, one line each (gpu/listing.h); what copies of so many bytes reach on one
 * (gpu/copy_limits.h). Return the exit code. child_list.c */
int gpu_child_list(const struct gpu_device_ops *ops);
int gpu_child_copies(const struct gpu_device_ops *ops, uint32_t index, uint64_t bytes);

#endif
