/* A GPU's process as an evil neighbour, seen from its server: the engine and the arenas of the server, driven
 * as a batcher drives them, and a child that writes anything anywhere into the memory they share, and does
 * what it likes with its end of their socket, at any moment: also in the middle of the server's calls.
 *
 * The input is a string of operations of both sides. The process itself, the keeper who starts it and the
 * clock are this file's (--wrap). Checked are: a batch comes back in its turn, as it was submitted, at a time
 * that can be; what is known of its packets is what was put there; a READY only of a child that was started;
 * one fault, of the right number of unfinished batches, when it ends; texts that can be printed; the server
 * writes nothing into the child's messages; whatever the child does, no batch and no start is waited for
 * longer than the options say, and no call waits for the child at all. */
#include "gpu/arena.h"
#include "gpu/engine.h"
#include "gpu/keeper.h"
#include "tests/support/require.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define ARENAS         4u
#define SLOTS          4u
#define SEGMENTS       8u
#define ARENA_BYTES    1024u
#define PACKETS_MAX    3u
#define PERIOD_NS      (2 * CORE_NS_PER_MS)
#define START_NS       (500 * CORE_NS_PER_MS)
#define SILENCE_NS     (100 * CORE_NS_PER_MS)
#define HANG_PERIODS   8u
#define KILL_NS        (20 * CORE_NS_PER_MS)
#define OPERATIONS_MAX 2000
#define FIRST_PID      ((pid_t)1 << 30)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A batch that the engine has, as it was submitted. */
struct flight {
    struct gpu_order order;
    core_ns submitted_ns;
    struct gpu_record packets[PACKETS_MAX];
    uint32_t count;
};

static struct world {
    const uint8_t *bytes;
    size_t left;
    core_ns now_ns, close_ns;
    uint64_t cookie; /* of the newest packet */
    struct gpu_arenas *arenas;
    struct gpu_engine *engine;
    struct flight flights[ARENAS]; /* the oldest first */
    uint32_t flying, abandoned;    /* abandoned: of a child that is not gone */

    const struct gpu_process_options *options; /* of the keeper: what the child inherits */
    bool asked, told;                          /* for a process; that it was started, or not */
    bool alive, stuck, loop_ended;             /* the process; no signal ends it; its serving thread */
    int process;                               /* its descriptor */
    int ends[2];                               /* of its socket; the second is the child's */
    struct gpu_process_end end;
    struct gpu_channel child; /* its mapping */
    bool interrupts;          /* it acts in the middle of the server's next call */
} world;

/* ---- the input ---- */

static uint8_t draw(void)
{
    if (world.left == 0)
        return 0;
    world.left--;
    return *world.bytes++;
}

static uint32_t draw32(void)
{
    uint32_t value = 0;
    for (int i = 0; i < 4; i++)
        value = value << 8 | draw();
    return value;
}

static void draw_into(void *memory, size_t bytes)
{
    const size_t count = bytes < world.left ? bytes : world.left;
    memcpy(memory, world.bytes, count);
    world.bytes += count;
    world.left -= count;
}

/* ---- the child ---- */

static core_ns a_time(void)
{
    const uint8_t kind = draw();
    if (kind < 192)
        return world.now_ns;
    return kind < 224 ? world.now_ns + (int8_t)draw() : (core_ns)((uint64_t)draw32() << 32 | draw32());
}

static void put(const struct gpu_completion *completion)
{
    if (gpu_channel_completion_put(&world.child, completion) == CORE_OK)
        (void)!send(world.ends[1], "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void put_ready(void)
{
    struct gpu_completion completion = {.kind = GPU_COMPLETION_READY, .thread = draw()};
    draw_into(&completion.facts, draw() % (sizeof completion.facts + 1));
    completion.facts.sms = draw();
    completion.facts.copy_engines = draw();
    put(&completion);
}

static void put_batch(void)
{
    struct gpu_completion completion = {.kind = GPU_COMPLETION_BATCH};
    completion.batch.number = world.flights[0].order.number + (uint64_t)(int8_t)draw();
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++)
        completion.batch.times[stage] = (struct gpu_stage_time){.start_ns = a_time(), .end_ns = a_time()};
    completion.batch.uncertain_ns = draw() < 128 ? 0 : a_time();
    put(&completion);
}

static void put_anything(void)
{
    struct gpu_completion completion = {.kind = draw()};
    draw_into(completion.text, draw() % (sizeof completion.text + 1));
    put(&completion);
}

/* Up to one byte more than there are entries: what the server wrote may be nonsense by now, too. */
static void take_commands(void)
{
    for (int i = 0; i <= GPU_CHANNEL_ENTRIES && gpu_channel_command_peek(&world.child) != NULL; i++)
        gpu_channel_command_take(&world.child);
}

/* A word of the channel: most often one of the first, where the indices are, and often by a little. */
static void write_word(void)
{
    uint8_t *memory = (uint8_t *)world.child.memory;
    const uint8_t where = draw(), how = draw();
    const size_t at = where < 192 ? where % 8 * 64u : draw32() % (world.child.bytes - 4);
    uint32_t value;
    memcpy(&value, memory + at, 4);
    value = how < 192 ? value + (uint32_t)(int8_t)how : draw32();
    memcpy(memory + at, &value, 4);
}

static void write_arenas(void)
{
    const struct gpu_region *region = gpu_arenas_region(world.arenas);
    const uint64_t at = draw32() % region->bytes, most = region->bytes - at, bytes = draw();
    memset(region->base + at, draw(), bytes * 64 < most ? bytes * 64 : most);
}

/* Its end of the socket. What it does to the flags of that is no business of the server's. */
static void use_socket(void)
{
    static const uint8_t flood[4096];
    uint8_t taken[64];
    const uint8_t how = draw();
    if (how & 1)
        (void)!recv(world.ends[1], taken, sizeof taken, MSG_DONTWAIT);
    if (how & 2)
        (void)!send(world.ends[1], flood, 1 + (size_t)draw() * 16, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (how & 4)
        (void)fcntl(world.ends[1], F_SETFL, how & 8 ? O_NONBLOCK : 0);
    if (how >= 224)
        (void)shutdown(world.ends[1], how % 3);
}

static void end(void)
{
    const uint8_t how = draw();
    world.loop_ended = true;
    if (how < 64 || world.stuck)
        return;
    world.alive = false;
    world.end = (struct gpu_process_end){.signalled = how >= 128, .code = how % 64};
}

static void child_acts(void)
{
    const uint8_t what = draw();
    if (!world.alive || world.child.memory == NULL)
        return;
    switch (what % 12) {
    case 0:
        put_ready();
        return;
    case 1:
    case 2:
        put_batch();
        return;
    case 3:
        put_anything();
        return;
    case 4:
    case 5:
        take_commands();
        return;
    case 6:
        write_word();
        return;
    case 7:
        write_arenas();
        return;
    case 8:
        gpu_channel_beat(&world.child, false);
        return;
    case 9:
        use_socket();
        return;
    case 10:
        what < 228 ? (void)(world.stuck = what & 16) : end();
        return;
    default:
        what < 228 ? (void)(world.interrupts = true) : gpu_channel_scribble(&world.child);
        return;
    }
}

static void interrupt(void)
{
    if (!world.interrupts)
        return;
    world.interrupts = false;
    child_acts();
}

/* ---- what the system says of it ---- */

core_ns __wrap_core_time_now_ns(void);
int __wrap_poll(struct pollfd *ready, nfds_t count, int timeout_ms);
core_status __wrap_gpu_keeper_start(struct gpu_keeper **keeper, const struct gpu_process_options *options,
                                    int wake, struct core_error *error);
void __wrap_gpu_keeper_ask(struct gpu_keeper *keeper);
core_status __wrap_gpu_keeper_asked(struct gpu_keeper *keeper, struct gpu_process *process,
                                    struct core_error *error);
bool __wrap_gpu_keeper_has_room(const struct gpu_keeper *keeper);
void __wrap_gpu_keeper_take(struct gpu_keeper *keeper, struct gpu_process *process);
void __wrap_gpu_keeper_stop(struct gpu_keeper *keeper);
bool __wrap_gpu_process_ended(const struct gpu_process *process, struct gpu_process_end *end);
bool __wrap_gpu_process_thread_ended(const struct gpu_process *process, pid_t thread);
void __wrap_gpu_process_kill(const struct gpu_process *process);

core_ns __wrap_core_time_now_ns(void)
{
    interrupt();
    return world.now_ns;
}

int __wrap_poll(struct pollfd *ready, nfds_t count, int timeout_ms)
{
    (void)ready;
    (void)count;
    interrupt();
    world.now_ns += timeout_ms * CORE_NS_PER_MS;
    return 0;
}

core_status __wrap_gpu_keeper_start(struct gpu_keeper **keeper, const struct gpu_process_options *options,
                                    int wake, struct core_error *error)
{
    (void)wake;
    (void)error;
    *keeper = (struct gpu_keeper *)&world;
    world.options = options;
    return CORE_OK;
}

static void descriptor_close(int *descriptor)
{
    if (*descriptor >= 0)
        close(*descriptor);
    *descriptor = -1;
}

static void process_forget(void)
{
    descriptor_close(&world.process);
    descriptor_close(&world.ends[0]);
    descriptor_close(&world.ends[1]);
}

/* The process begins at once; that it has begun is told later. */
void __wrap_gpu_keeper_ask(struct gpu_keeper *keeper)
{
    struct core_error error = {""};
    (void)keeper;
    TEST_REQUIRE(!world.asked && !world.alive && world.process < 0);
    process_forget();
    world.asked = true;
    world.told = world.stuck = world.loop_ended = false;
    world.alive = draw() < 240;
    gpu_channel_detach(&world.child);
    TEST_REQUIRE(gpu_channel_attach(&world.child, world.options->inherited[1], &error) == CORE_OK);
    TEST_REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, world.ends) == 0);
}

core_status __wrap_gpu_keeper_asked(struct gpu_keeper *keeper, struct gpu_process *process,
                                    struct core_error *error)
{
    static const struct core_error refused = {"it can not be started"};
    (void)keeper;
    interrupt();
    if (!world.asked || !world.told)
        return CORE_AGAIN;
    world.asked = false;
    *process = GPU_PROCESS_NONE;
    if (!world.alive && !world.loop_ended) {
        *error = refused;
        return CORE_SYSTEM;
    }
    process->pid = FIRST_PID;
    process->descriptor = world.process = eventfd(0, EFD_CLOEXEC);
    process->socket = world.ends[0];
    return CORE_OK;
}

bool __wrap_gpu_keeper_has_room(const struct gpu_keeper *keeper)
{
    (void)keeper;
    return true;
}

void __wrap_gpu_keeper_take(struct gpu_keeper *keeper, struct gpu_process *process)
{
    (void)keeper;
    TEST_REQUIRE(!world.alive && process->descriptor == world.process);
    *process = GPU_PROCESS_NONE;
    process_forget();
}

void __wrap_gpu_keeper_stop(struct gpu_keeper *keeper)
{
    (void)keeper;
    process_forget();
}

bool __wrap_gpu_process_ended(const struct gpu_process *process, struct gpu_process_end *how)
{
    TEST_REQUIRE(process->pid == FIRST_PID);
    interrupt();
    *how = world.alive ? (struct gpu_process_end){.signalled = false} : world.end;
    return !world.alive;
}

bool __wrap_gpu_process_thread_ended(const struct gpu_process *process, pid_t thread)
{
    (void)thread; /* the child says which it is */
    interrupt();
    return process->pid > 0 && world.loop_ended;
}

void __wrap_gpu_process_kill(const struct gpu_process *process)
{
    if (process->pid <= 0 || world.stuck || !world.alive)
        return;
    world.alive = false;
    world.loop_ended = true;
    world.end = (struct gpu_process_end){.signalled = true, .code = SIGKILL};
}

/* ---- what must be ---- */

static void check_text(const char *text, size_t size)
{
    const size_t length = strnlen(text, size);
    TEST_REQUIRE(length < size);
    for (size_t i = 0; i < length; i++)
        TEST_REQUIRE(text[i] >= ' ' && text[i] <= '~');
}

static void release(uint64_t batch)
{
    (void)!gpu_arena_release(world.arenas, 0, batch);
    TEST_REQUIRE(gpu_arena_release(world.arenas, GPU_ARENA_BATCHER, batch) == CORE_OK);
}

static void check_batch(const struct gpu_event *event)
{
    const struct flight *flight = &world.flights[0];
    core_ns last_ns = flight->submitted_ns;
    TEST_REQUIRE(world.flying > 0);
    TEST_REQUIRE(memcmp(&event->batch.order, &flight->order, sizeof flight->order) == 0);
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
        const struct gpu_stage_time *time = &event->batch.times[stage];
        TEST_REQUIRE(time->start_ns >= last_ns && time->end_ns >= time->start_ns);
        last_ns = time->end_ns;
    }
    TEST_REQUIRE(last_ns <= world.now_ns);
    TEST_REQUIRE(event->batch.uncertain_ns >= 0 && event->batch.uncertain_ns <= world.now_ns);
    struct gpu_record_list records = gpu_arena_records(world.arenas, 0, flight->order.number);
    TEST_REQUIRE(records.left == flight->count);
    for (uint32_t i = 0; i < flight->count; i++) {
        const struct gpu_record *record = gpu_record_next(&records);
        TEST_REQUIRE(record->cookie == flight->packets[i].cookie &&
                     record->offset_bytes == flight->packets[i].offset_bytes &&
                     record->bytes == flight->packets[i].bytes);
    }
    release(flight->order.number);
    world.flying--;
    memmove(world.flights, world.flights + 1, world.flying * sizeof *flight);
}

static void release_abandoned(void)
{
    for (uint32_t i = 0; i < world.abandoned; i++)
        release(world.flights[i].order.number);
    world.abandoned = 0;
}

static void check_fault(const struct gpu_fault *fault)
{
    TEST_REQUIRE(strcmp(gpu_fault_name(fault->kind), "unknown") != 0);
    check_text(fault->text, sizeof fault->text);
    TEST_REQUIRE(fault->text[0] != '\0' || fault->kind == GPU_FAULT_DEVICE || fault->kind == GPU_FAULT_START);
    TEST_REQUIRE(fault->unfinished == world.flying && fault->restart_ns > world.now_ns);
    TEST_REQUIRE(!fault->gone || (!world.alive && !world.asked));
    TEST_REQUIRE(gpu_engine_state(world.engine) == GPU_ENGINE_DOWN);
    world.abandoned = world.flying;
    world.flying = 0;
    if (fault->gone)
        release_abandoned();
}

static void check_event(const struct gpu_event *event, enum gpu_engine_state before)
{
    if (event->kind == GPU_EVENT_BATCH) {
        TEST_REQUIRE(before == GPU_ENGINE_READY);
        check_batch(event);
    } else if (event->kind == GPU_EVENT_READY) {
        TEST_REQUIRE(before == GPU_ENGINE_STARTING && world.told);
        check_text(event->facts.name, sizeof event->facts.name);
        check_text(event->facts.driver, sizeof event->facts.driver);
        check_text(event->facts.kernel, sizeof event->facts.kernel);
        TEST_REQUIRE(event->facts.sms > 0 && event->facts.copy_engines > 0);
    } else {
        TEST_REQUIRE(event->kind == GPU_EVENT_FAULT && before != GPU_ENGINE_DOWN);
        check_fault(&event->fault);
    }
}

/* ---- the server ---- */

static void take_events(void)
{
    struct gpu_event event;
    uint32_t events = 0;
    enum gpu_engine_state before = gpu_engine_state(world.engine);
    while (gpu_engine_poll(world.engine, world.now_ns, &event) == CORE_OK) {
        check_event(&event, before);
        TEST_REQUIRE(++events <= ARENAS + 2);
        before = gpu_engine_state(world.engine);
    }
    if (gpu_engine_state(world.engine) != GPU_ENGINE_DOWN)
        TEST_REQUIRE(gpu_engine_wake_ns(world.engine) > world.now_ns);
}

static void start(void)
{
    struct core_error error = {""};
    const enum gpu_engine_state before = gpu_engine_state(world.engine);
    const core_status status = gpu_engine_start(world.engine, world.now_ns, &error);
    TEST_REQUIRE((status == CORE_INVALID) == (before != GPU_ENGINE_DOWN));
    if (status == CORE_OK)
        release_abandoned();
}

static void append(struct flight *flight)
{
    static const uint8_t payload[8 * GPU_BLOCK_BYTES];
    struct gpu_place place;
    const struct gpu_packet packet = {.eligible_ns = world.close_ns,
                                      .payload = payload,
                                      .bytes = (1 + draw() % 8u) * GPU_BLOCK_BYTES,
                                      .slot = draw() % SLOTS,
                                      .cookie = ++world.cookie};
    TEST_REQUIRE(gpu_arena_append(world.arenas, 0, &packet, &place) == CORE_OK);
    flight->packets[flight->count++] = (struct gpu_record){
        .cookie = packet.cookie, .offset_bytes = place.offset_bytes, .bytes = packet.bytes};
}

static void submit(void)
{
    struct flight *flight = &world.flights[world.flying];
    struct gpu_arena_batch batch;
    struct core_error error = {""};
    if (world.abandoned > 0 || gpu_arena_open(world.arenas, ++world.close_ns) != CORE_OK)
        return;
    TEST_REQUIRE(world.flying < ARENAS);
    *flight = (struct flight){.submitted_ns = world.now_ns};
    for (uint32_t left = 1 + draw() % PACKETS_MAX; left > 0; left--)
        append(flight);
    TEST_REQUIRE(gpu_arena_close(world.arenas, &batch) == CORE_OK && batch.segment_count == flight->count);
    flight->order = gpu_order_of(&batch);
    const enum gpu_engine_state before = gpu_engine_state(world.engine);
    const core_status status =
        gpu_engine_submit(world.engine, &flight->order, PERIOD_NS, world.now_ns, &error);
    if (status == CORE_OK) {
        TEST_REQUIRE(before == GPU_ENGINE_READY);
        world.flying++;
        return;
    }
    /* What a child that is gone had counts as being in use until there is another. */
    TEST_REQUIRE(status == CORE_FULL || status == CORE_AGAIN ||
                 (status == CORE_INVALID && before == GPU_ENGINE_DOWN));
    release(flight->order.number);
}

static void change_keys(uint32_t times)
{
    static const uint8_t key[GPU_KEY_BYTES_MAX], chain[GPU_BLOCK_BYTES];
    const uint32_t slot = draw() % (2 * SLOTS + 1), bytes = 8 * (1 + draw() % 4u);
    while (times-- > 0) {
        core_status status = gpu_engine_key_set(world.engine, slot, key, bytes, chain);
        TEST_REQUIRE((status == CORE_INVALID) == (slot == 2 * SLOTS || bytes == 8));
        status = gpu_engine_key_clear(world.engine, slot);
        TEST_REQUIRE((status == CORE_INVALID) == (slot == 2 * SLOTS));
    }
}

static void stop(void)
{
    gpu_engine_stop(world.engine, CORE_NS_PER_S);
    TEST_REQUIRE(gpu_engine_state(world.engine) == GPU_ENGINE_DOWN);
    world.abandoned += world.flying;
    world.flying = 0;
}

static void server_acts(void)
{
    const uint8_t what = draw();
    switch (what % 8) {
    case 0:
        start();
        return;
    case 1:
    case 2:
        take_events();
        return;
    case 3:
        submit();
        return;
    case 4:
        change_keys(what < 240 ? 1 : 100);
        return;
    case 5:
        world.now_ns += (core_ns)1 << what / 8 % 32;
        return;
    case 6:
        world.told = world.told || world.asked;
        return;
    default:
        if (what < 224)
            gpu_engine_condemn(world.engine, world.now_ns, "the output is wrong");
        else
            stop();
    }
}

/* No part of the server writes where the child puts its messages. */
static void server_acts_watched(void)
{
    static uint8_t before[GPU_CHANNEL_ENTRIES * sizeof(struct gpu_completion)];
    const bool watched = world.child.memory != NULL && !world.interrupts;
    const uint8_t *keys = NULL;
    if (watched) { /* they lie below the keys */
        keys = (const uint8_t *)(gpu_channel_command_key(&world.child) -
                                 world.child.commands_at % GPU_CHANNEL_ENTRIES);
        memcpy(before, keys - sizeof before, sizeof before);
    }
    const uint8_t *memory = (const uint8_t *)world.child.memory;
    server_acts();
    if (watched && !world.asked && (const uint8_t *)world.child.memory == memory)
        TEST_REQUIRE(memcmp(before, keys - sizeof before, sizeof before) == 0);
}

int __real_poll(struct pollfd *ready, nfds_t count, int timeout_ms);

/* The child is quiet now, and so is the server soon: it does not go on looking at what it has seen. */
static void wait_for_quiet(void)
{
    struct pollfd woken = {.fd = gpu_engine_descriptor(world.engine), .events = POLLIN};
    for (int i = 0; __real_poll(&woken, 1, 0) > 0; i++) {
        TEST_REQUIRE(i < 1000);
        take_events();
    }
}

/* From here on the child does nothing but beat: what was begun ends in its time. */
static void wait_for_the_end(void)
{
    const core_ns limit_ns = world.now_ns + START_NS + SILENCE_NS + KILL_NS + CORE_NS_PER_S;
    world.interrupts = false;
    world.told = world.told || world.asked;
    take_events();
    wait_for_quiet();
    for (;;) {
        take_events();
        const enum gpu_engine_state state = gpu_engine_state(world.engine);
        if (state == GPU_ENGINE_DOWN || (state == GPU_ENGINE_READY && world.flying == 0))
            return;
        world.now_ns = gpu_engine_wake_ns(world.engine);
        TEST_REQUIRE(world.now_ns <= limit_ns);
        if (world.alive)
            gpu_channel_beat(&world.child, false);
    }
}

static void open_all(const uint8_t *data, size_t size)
{
    struct core_error error = {""};
    const struct gpu_arena_options arenas = {
        .shape = {.arenas = ARENAS, .slots = SLOTS, .segments = SEGMENTS, .arena_bytes = ARENA_BYTES},
        .writers = 1};
    world = (struct world){
        .bytes = data, .left = size, .now_ns = 1000 * CORE_NS_PER_S, .process = -1, .ends = {-1, -1}};
    TEST_REQUIRE(gpu_arenas_create(&world.arenas, &arenas, &error) == CORE_OK);
    const struct gpu_engine_options options = {.program = "/bin/true",
                                               .backend = "cuda",
                                               .region = gpu_arenas_region(world.arenas),
                                               .hang_periods = HANG_PERIODS,
                                               .start_ns = START_NS,
                                               .silence_ns = SILENCE_NS,
                                               .kill_ns = KILL_NS};
    TEST_REQUIRE(gpu_engine_open(&world.engine, &options, &error) == CORE_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    open_all(data, size);
    for (int i = 0; i < OPERATIONS_MAX && world.left > 0; i++)
        if (draw() % 2 == 0)
            server_acts_watched();
        else
            child_acts();
    wait_for_the_end();
    gpu_engine_close(world.engine);
    gpu_channel_detach(&world.child);
    gpu_arenas_destroy(world.arenas);
    return 0;
}
