/* Keys of a GPU's streams: into the child, and out of it again. */
#include "server/gpu/internal.h"

static struct server_gpu_key *key_of(struct server_message *message)
{
    return (struct server_gpu_key *)message;
}

static void answer(struct server_gpu_key *key, uint32_t generation)
{
    key->generation = generation;
    key->message.run = key->answered;
    server_mailbox_post(key->reply, &key->message);
}

static void take_key(void *owner, struct server_message *message)
{
    struct server_gpu *gpu = owner;
    message->next = NULL;
    if (gpu->keys == NULL)
        gpu->keys = message;
    else
        gpu->keys_tail->next = message;
    gpu->keys_tail = message;
}

void server_gpu_send_key(struct server_gpu *gpu, struct server_gpu_key *key)
{
    key->message.run = take_key;
    server_mailbox_post(&gpu->mailbox, &key->message);
}

/* What the child has to do with this one of the keys. A stream's chaining value goes on with a new key. */
static bool hand_over_one(const struct server_gpu *gpu, const struct server_gpu_key *key, uint32_t which)
{
    const uint32_t key_slot = gpu_key_slot(key->slot, which);
    core_status status = CORE_OK;

    if ((key->clear >> which & 1) != 0)
        status = gpu_engine_key_clear(gpu->engine, key_slot);
    if ((key->set >> which & 1) != 0)
        status = gpu_engine_key_set(gpu->engine, key_slot, key->keys + (size_t)SERVER_KEY_BYTES * which,
                                    key->key_bytes, key->child == 0 ? key->chain : NULL);
    return status == CORE_OK;
}

/* Made for a child that is gone, it is answered as it is. */
static bool hand_over(struct server_gpu *gpu, struct server_gpu_key *key)
{
    if (key->child != 0 && key->child != gpu->generation)
        return true;
    if (key->slot == SERVER_GPU_NO_SLOT && gpu_slots_allocate(gpu->slots, &key->slot) != CORE_OK)
        return false; /* until one that was left is overwritten */
    for (uint32_t which = 0; which < GPU_SLOT_KEYS; which++)
        if (!hand_over_one(gpu, key, which))
            return false; /* no room now, or a fault that is about to be told */
    if (key->child == 0)
        (void)!gpu_arena_restart_chain(gpu->arenas, key->slot, key->chain);
    return true;
}

static void hand_over_all(struct server_gpu *gpu)
{
    struct server_message *message;
    while ((message = gpu->keys) != NULL && hand_over(gpu, key_of(message))) {
        gpu->keys = message->next;
        message->next = gpu->ready;
        gpu->ready = message;
    }
}

/* Whoever waits for an answer is not to wait for memory that there is not, or to get a promise without. */
static bool is_lacking(const struct server_gpu *gpu, const struct server_gpu_key *key)
{
    return key->until_ns != CORE_NS_NEVER && server_gpu_room_lacks(gpu, key->plan);
}

static bool may_answer(const struct server_gpu *gpu, struct server_gpu_key *key, core_ns now_ns)
{
    bool in_force = key->plan <= gpu->plan_in_force;
    key->lacking = !in_force && server_gpu_room_refused(gpu, now_ns) && is_lacking(gpu, key);
    key->overdue = !in_force && (key->lacking || now_ns >= key->until_ns);
    return in_force || key->overdue;
}

/* Returns when the next one's patience is over. */
static core_ns answer_ready(struct server_gpu *gpu, core_ns now_ns)
{
    struct server_message *message = gpu->ready;
    core_ns wake_ns = CORE_NS_NEVER;

    gpu->ready = NULL;
    while (message != NULL) {
        struct server_message *next = message->next;
        struct server_gpu_key *key = key_of(message);
        if (may_answer(gpu, key, now_ns))
            answer(key, key->child == 0 || key->child == gpu->generation ? gpu->generation : 0);
        else {
            wake_ns = core_time_min(key->until_ns, wake_ns);
            message->next = gpu->ready;
            gpu->ready = message;
        }
        message = next;
    }
    return wake_ns;
}

static void clear_slots(struct server_gpu *gpu)
{
    for (;;) {
        if (gpu->clearing == SERVER_GPU_NO_SLOT &&
            gpu_slots_clearable(gpu->slots, gpu->submitted, &gpu->clearing, 1) == 0)
            return;
        for (uint32_t which = 0; which < GPU_SLOT_KEYS; which++)
            if (gpu_engine_key_clear(gpu->engine, gpu_key_slot(gpu->clearing, which)) != CORE_OK)
                return; /* no room now */
        (void)!gpu_slots_cleared(gpu->slots, gpu->clearing);
        gpu->clearing = SERVER_GPU_NO_SLOT;
    }
}

static void leave_slot(void *owner, struct server_message *message)
{
    const struct server_gpu *gpu = owner;
    struct server_gpu_leave *leave = (struct server_gpu_leave *)message;

    if (leave->slot != SERVER_GPU_NO_SLOT)
        (void)!gpu_slots_leave(gpu->slots, leave->slot, leave->batch);
    leave->message.run = leave->left;
    server_mailbox_post(leave->reply, &leave->message);
}

void server_gpu_leave_slot(struct server_gpu *gpu, struct server_gpu_leave *leave)
{
    leave->message.run = leave_slot;
    server_mailbox_post(&gpu->mailbox, &leave->message);
}

/* There is no child to give them to; what was given is forgotten. */
static void answer_all(const struct server_gpu *gpu, struct server_message *message)
{
    while (message != NULL) {
        struct server_message *next = message->next;
        key_of(message)->overdue = key_of(message)->lacking = is_lacking(gpu, key_of(message));
        answer(key_of(message), 0);
        message = next;
    }
}

void server_gpu_keys_lost(struct server_gpu *gpu)
{
    answer_all(gpu, gpu->keys);
    answer_all(gpu, gpu->ready);
    gpu->keys = gpu->ready = NULL;
}

bool server_gpu_keys_run(struct server_gpu *gpu, core_ns now_ns, core_ns *wake_ns)
{
    *wake_ns = CORE_NS_NEVER;
    if (!gpu->up) {
        server_gpu_keys_lost(gpu);
        return true;
    }
    clear_slots(gpu);
    hand_over_all(gpu);
    *wake_ns = answer_ready(gpu, now_ns);
    return gpu->keys == NULL && gpu->clearing == SERVER_GPU_NO_SLOT;
}
