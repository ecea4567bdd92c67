#include "server/gpu/gpus.h"

#include "core/log.h"
#include "core/realtime.h"
#include "server/gpu/batcher.h"
#include "server/server_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ARENAS      10 /* batches on the way: most plans need six */
#define TABLE_SHARE 16 /* of the memory, one in so many for segments, and for jobs */
#define PAGE_BYTES  4096
/* Of a card's part of the memory: a page for each arena's input and output, and the tables. */
#define ROOM_BYTES_MIN UINT64_C(131072)
#define LIST_BYTES     16384
#define LIST_NS        (30 * CORE_NS_PER_S) /* a driver that wakes up takes seconds */
#define CARDS_MAX      64
#define CARD_NAME_MAX  96
#define INDEX_MAX      (CONFIG_GPUS_INDEX_MAX + 1)

/* What is to be started: a card of a kind of the profile. */
struct card {
    uint32_t kind, device;
};

struct cards {
    struct server *server;
    void (*notify)(struct server_io *io);
    char *program;
    const char *backend;
    struct card cards[CARDS_MAX];
    uint32_t count;
    uint32_t started[CONFIG_PROFILE_GPU_KINDS_MAX]; /* by kind */
};

/* ---- the program ---- */

/* NULL: it is not there. */
static char *try_path(const char *folder, const char *name)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", folder, name) < 0)
        return NULL;
    if (access(path, X_OK) == 0)
        return path;
    free(path);
    return NULL;
}

/* NULL and errno: there is none, or no memory for its path. */
static char *find_program(const struct config_server *config)
{
    char folder[4096];
    if (config->gpus.program != NULL)
        return access(config->gpus.program, X_OK) == 0 ? strdup(config->gpus.program) : NULL;
    ssize_t bytes = readlink("/proc/self/exe", folder, sizeof folder - 1);
    if (bytes <= 0)
        return NULL;
    folder[bytes] = '\0';
    *strrchr(folder, '/') = '\0';
    char *path = try_path(folder, "millrace-gpu");
    if (path == NULL)
        path = try_path(folder, "../libexec/millrace/millrace-gpu");
    return path != NULL ? path : try_path(folder, "../gpu/millrace-gpu"); /* not installed: a build folder */
}

/* Why find_program found none, which has just set errno. */
static core_status no_program(const struct config_server *config, struct core_error *error)
{
    const char *program = config->gpus.program;
    char where[400];
    if (errno == ENOMEM)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the path of millrace-gpu");
    if (program != NULL && access(program, X_OK) != 0) {
        (void)core_error_errno(error, "%s: %s can not be run",
                               config_server_where(config, "gpus.program", where, sizeof where), program);
        return CORE_NOT_FOUND;
    }
    return core_error_set(
        error, CORE_NOT_FOUND,
        "millrace-gpu is neither beside millraced nor in ../libexec/millrace; give its path as gpus.program");
}

static core_status check_program(const struct config_server *config, struct core_error *error)
{
    char *program = find_program(config);
    if (program == NULL)
        return no_program(config, error);
    free(program);
    return CORE_OK;
}

/* ---- the cards that are there ---- */

/* "INDEX<tab>NAME<tab>..." */
static void parse_line(const char *line, void (*card)(void *argument, unsigned index, const char *name),
                       void *argument)
{
    char name[CARD_NAME_MAX], *end;
    unsigned long index = strtoul(line, &end, 10);
    if (end == line || *end != '\t' || index >= INDEX_MAX)
        return;
    size_t bytes = strcspn(end + 1, "\t\n");
    bytes = bytes < sizeof name ? bytes : sizeof name - 1;
    memcpy(name, end + 1, bytes);
    name[bytes] = '\0';
    if (bytes > 0)
        card(argument, (unsigned)index, name);
}

void server_gpus_parse(const char *text, void (*card)(void *argument, unsigned index, const char *name),
                       void *argument)
{
    while (*text != '\0') {
        const char *end = strchrnul(text, '\n');
        if (*text >= '0' && *text <= '9')
            parse_line(text, card, argument);
        text = *end == '\0' ? end : end + 1;
    }
}

/* Reads to the end. False: that has not come by until_ns, or there is more than `size` holds. */
static bool read_all(int descriptor, char *text, size_t size, core_ns until_ns)
{
    for (size_t used = 0; used < size;) {
        struct pollfd ready = {.fd = descriptor, .events = POLLIN};
        core_ns left_ns = until_ns - core_time_now_ns();
        if (left_ns <= 0)
            return false;
        if (poll(&ready, 1, (int)(left_ns / CORE_NS_PER_MS) + 1) <= 0)
            continue;
        ssize_t got = read(descriptor, text + used, size - used);
        if (got == 0)
            text[used] = '\0';
        if (got <= 0)
            return got == 0;
        used += (size_t)got;
    }
    return false;
}

/* Collects the process, which is killed if it has not ended by until_ns. Whether it exited with 0. */
static bool collect(pid_t process, core_ns until_ns)
{
    int status = 0;
    pid_t ended;
    while ((ended = waitpid(process, &status, WNOHANG)) == 0) {
        if (core_time_now_ns() >= until_ns)
            kill(process, SIGKILL);
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    }
    return ended == process && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* What `program --list` prints, within LIST_NS, whatever kind of program it is. */
static bool list_cards(const char *program, char *text, size_t size)
{
    const core_ns until_ns = core_time_now_ns() + LIST_NS;
    char *const arguments[] = {(char *)program, "--list", NULL};
    char *const environment[] = {NULL};
    posix_spawn_file_actions_t actions;
    pid_t process = 0;
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    /* why there is none is for those who ask by hand; our log has its own form */
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    bool good = posix_spawn(&process, program, &actions, NULL, arguments, environment) == 0;
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (good) {
        good = read_all(ends[0], text, size, until_ns);
        good = collect(process, good ? until_ns : 0) && good;
    }
    close(ends[0]);
    return good;
}

static uint32_t taken_of(const struct cards *cards, uint32_t kind)
{
    uint32_t taken = 0;
    for (uint32_t i = 0; i < cards->count; i++)
        taken += cards->cards[i].kind == kind ? 1 : 0;
    return taken;
}

static bool is_wanted(const struct config_server_gpus *gpus, uint32_t index)
{
    for (uint32_t i = 0; i < gpus->card_count; i++)
        if (gpus->cards[i] == index)
            return true;
    return gpus->use != CONFIG_GPUS_LISTED;
}

static void add_card(void *argument, unsigned index, const char *name)
{
    struct cards *cards = argument;
    const struct config_profile *profile = cards->server->profile;

    if (!is_wanted(&cards->server->config->gpus, index))
        return;

    for (uint32_t kind = 0; kind < profile->gpu_count; kind++)
        if (strcmp(profile->gpus[kind].name, name) == 0 && cards->count < CARDS_MAX &&
            taken_of(cards, kind) < profile->gpus[kind].count) {
            cards->cards[cards->count++] = (struct card){.kind = kind, .device = index};
            return;
        }
    core_log(CORE_LOG_WARNING, "gpu.card",
             "card %u, %s, is not in the profile %s and is not used; `millrace-bench calibrate` measures it",
             index, name, profile->name);
}

static void find_real(struct cards *cards)
{
    char text[LIST_BYTES] = "";
    const struct config_profile *profile = cards->server->profile;

    cards->backend = "cuda";
    cards->program = find_program(cards->server->config);
    if (cards->program == NULL) {
        struct core_error error = {""};
        if (no_program(cards->server->config, &error) != CORE_OK &&
            (profile->gpu_count > 0 || cards->server->config->gpus.program != NULL))
            core_log(CORE_LOG_WARNING, "gpu.program", "%s: CPU workers only", error.text);
        return;
    }
    if (!list_cards(cards->program, text, sizeof text)) {
        core_log(CORE_LOG_WARNING, "gpu.program", "%s can not list the cards: CPU workers only",
                 cards->program);
        return;
    }
    server_gpus_parse(text, add_card, cards);
    for (uint32_t kind = 0; kind < profile->gpu_count; kind++)
        if (taken_of(cards, kind) < profile->gpus[kind].count)
            core_log(CORE_LOG_WARNING, "gpu.card",
                     "the profile describes %u cards of model %s, this machine has %u",
                     profile->gpus[kind].count, profile->gpus[kind].name, taken_of(cards, kind));
}

/* Who lists cards wants just these. */
static core_status find_listed(struct cards *cards, struct core_error *error)
{
    const struct config_server_gpus *gpus = &cards->server->config->gpus;
    char where[400];

    find_real(cards);
    for (uint32_t i = 0; i < gpus->card_count; i++) {
        bool found = false;
        for (uint32_t taken = 0; taken < cards->count; taken++)
            found = found || cards->cards[taken].device == gpus->cards[i];
        if (!found)
            return core_error_set(
                error, CORE_NOT_FOUND,
                "%s: card %u is not in this machine or not in the profile; `millrace-gpu --list` shows "
                "the cards, `millrace-bench calibrate` measures them",
                config_server_where(cards->server->config, "gpus", where, sizeof where), gpus->cards[i]);
    }
    return CORE_OK;
}

static core_status find_emulated(struct cards *cards, struct core_error *error)
{
    const struct config_profile *profile = cards->server->profile;

    cards->backend = "emulated";
    cards->program = find_program(cards->server->config);
    if (cards->program == NULL)
        return no_program(cards->server->config, error);
    for (uint32_t kind = 0; kind < profile->gpu_count; kind++)
        for (uint32_t i = 0; i < profile->gpus[kind].count && cards->count < CARDS_MAX; i++) {
            cards->cards[cards->count] = (struct card){.kind = kind, .device = cards->count};
            cards->count++;
        }
    return CORE_OK;
}

/* ---- what they get ---- */

/* A card's equal part of the pinned memory, or as much as it has itself, or as batches can use. */
static uint64_t room_bytes(const struct config_profile *profile, const struct config_profile_gpu *kind,
                           uint32_t cards)
{
    uint64_t bytes = profile->pinned_bytes / cards;
    uint64_t card_bytes = kind->memory_bytes - kind->memory_bytes / 8;
    uint64_t most = UINT64_C(2) * ARENAS * GPU_REGION_ARENA_BYTES_MAX;
    bytes = bytes < card_bytes ? bytes : card_bytes;
    return bytes < most ? bytes : most;
}

static core_status check_room(const struct config_profile *profile, const struct config_profile_gpu *kind,
                              uint32_t cards, struct core_error *error)
{
    uint64_t bytes = room_bytes(profile, kind, cards);
    if (bytes >= ROOM_BYTES_MIN)
        return CORE_OK;
    if (profile->pinned_bytes / cards < ROOM_BYTES_MIN)
        return core_error_set(error, CORE_INVALID,
                              "pinned_bytes: %llu leaves no room for a batch; each card needs at least %llu",
                              (unsigned long long)profile->pinned_bytes, (unsigned long long)ROOM_BYTES_MIN);
    return core_error_set(error, CORE_INVALID, "memory_bytes of %s: %llu leaves no room for a batch",
                          kind->name, (unsigned long long)kind->memory_bytes);
}

/* What check_room passed: tables first, the rest for payload. */
static struct gpu_region_shape shape_of(const struct server *server, const struct config_profile_gpu *kind,
                                        uint32_t cards)
{
    uint64_t bytes = room_bytes(server->profile, kind, cards);
    uint64_t table_bytes = bytes / TABLE_SHARE / ARENAS;
    uint64_t segments = table_bytes / sizeof(struct gpu_segment);
    uint64_t slots = table_bytes / sizeof(struct gpu_job);
    uint64_t streams = server->config->limits.streams;
    if (segments > GPU_REGION_SEGMENTS_MAX)
        segments = GPU_REGION_SEGMENTS_MAX;
    if (slots > streams + streams / 8 + 64)
        slots = streams + streams / 8 + 64;
    if (slots > GPU_REGION_SLOTS_MAX)
        slots = GPU_REGION_SLOTS_MAX;
    uint64_t payload_bytes = (bytes - 2 * ARENAS * table_bytes) / ARENAS / 2;
    return (struct gpu_region_shape){.arenas = ARENAS,
                                     .slots = (uint32_t)slots,
                                     .segments = (uint32_t)segments,
                                     .arena_bytes = payload_bytes / PAGE_BYTES * PAGE_BYTES};
}

static core_status start_gpu(struct cards *cards, const struct card *card, struct core_error *error)
{
    struct server *server = cards->server;
    struct core_error not_permitted = {""};
    const struct config_profile_gpu *kind = &server->profile->gpus[card->kind];
    const struct server_gpu_options options = {.server = server,
                                               .notify = cards->notify,
                                               .index = server->gpu_count,
                                               .kind = kind,
                                               .program = cards->program,
                                               .backend = cards->backend,
                                               .device = card->device,
                                               .shape = shape_of(server, kind, cards->count)};
    core_status status = check_room(server->profile, kind, cards->count, error);

    if (status == CORE_OK)
        status = server_gpu_start(&server->gpus[server->gpu_count], &options, &not_permitted, error);
    if (status == CORE_OK && not_permitted.text[0] != '\0')
        core_log(CORE_LOG_WARNING, "start.realtime", "not permitted: %s", not_permitted.text);
    return status;
}

/* One card. CORE_OK also where it was left out with a warning. */
static core_status start_card(struct cards *cards, const struct card *card, struct core_error *error)
{
    struct server *server = cards->server;
    core_status status = start_gpu(cards, card, error);

    if (status == CORE_OK) {
        server->gpu_count++;
        return CORE_OK;
    }
    cards->started[card->kind]--;
    if (server->config->gpus.use != CONFIG_GPUS_AUTO)
        return status;
    core_log(CORE_LOG_WARNING, "gpu.card", "card %u, %s, can not be used: %s", card->device,
             server->profile->gpus[card->kind].name, error->text);
    return CORE_OK;
}

/* In the order of the profile's kinds, as the units of a plan are numbered. */
static core_status start_cards(struct cards *cards, struct core_error *error)
{
    struct server *server = cards->server;
    core_status status = CORE_OK;

    server->gpus = calloc(cards->count + 1, sizeof(struct server_gpu *));
    if (server->gpus == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the GPUs");
    for (uint32_t kind = 0; kind < server->profile->gpu_count; kind++) {
        cards->started[kind] = taken_of(cards, kind);
        for (uint32_t i = 0; i < cards->count && status == CORE_OK; i++)
            if (cards->cards[i].kind == kind)
                status = start_card(cards, &cards->cards[i], error);
    }
    return status;
}

/* ---- the parts together ---- */

static core_status check_emulated(const struct server *server, struct core_error *error)
{
    const struct config_profile *profile = server->profile;
    core_status status = CORE_OK;
    uint32_t cards = 0;

    for (uint32_t kind = 0; kind < profile->gpu_count; kind++)
        cards += profile->gpus[kind].count;
    cards = cards < CARDS_MAX ? cards : CARDS_MAX;
    for (uint32_t kind = 0; kind < profile->gpu_count && status == CORE_OK; kind++)
        status = check_room(profile, &profile->gpus[kind], cards, error);
    return status;
}

/* Cards that the configuration asks for are in the profile. */
static core_status check_profile(const struct server *server, struct core_error *error)
{
    char where[400];
    if (server->profile != NULL && server->profile->gpu_count > 0)
        return CORE_OK;
    return core_error_set(error, CORE_INVALID, "%s: asks for the GPUs of the profile, but %s",
                          config_server_where(server->config, "gpus", where, sizeof where),
                          server->profile != NULL ? "the profile has none" : "there is no profile");
}

static core_status find(struct cards *cards, struct core_error *error)
{
    switch (cards->server->config->gpus.use) {
    case CONFIG_GPUS_EMULATED:
        return find_emulated(cards, error);
    case CONFIG_GPUS_LISTED:
        return find_listed(cards, error);
    case CONFIG_GPUS_AUTO:
        find_real(cards);
        return CORE_OK;
    case CONFIG_GPUS_NONE:
        break;
    }
    return CORE_OK;
}

core_status server_gpus_check(struct server *server, struct core_error *error)
{
    enum config_gpus_use use = server->config->gpus.use;
    struct cards cards = {.server = server};
    core_status status = CORE_OK;

    if (use == CONFIG_GPUS_EMULATED || use == CONFIG_GPUS_LISTED)
        status = check_profile(server, error);
    if (status == CORE_OK && use == CONFIG_GPUS_EMULATED)
        status = check_emulated(server, error);
    if (status == CORE_OK && (use == CONFIG_GPUS_EMULATED || use == CONFIG_GPUS_LISTED))
        status = check_program(server->config, error);
    if (status == CORE_OK && server->check != NULL && server->profile != NULL) {
        status = find(&cards, error);
        free(cards.program);
    }
    return status;
}

/* Looks the user up, and whether its processes can be ours. */
static core_status find_user(struct server *server, const char *name, struct core_error *error)
{
    core_status status = core_user_find(name, &server->gpu_user, error);
    if (status != CORE_OK)
        return status;
    server->gpu_user_differs = server->gpu_user.number != geteuid();
    if (!server->gpu_user_differs || core_user_may_change())
        return CORE_OK;
    server->gpu_user_differs = false;
    return core_error_set(error, CORE_DENIED,
                          "millrace-gpu can run as '%.64s' only if the server has CAP_SETUID, CAP_SETGID and "
                          "CAP_KILL, as root has: grant them, or name the server's own user",
                          name);
}

core_status server_gpus_user(struct server *server, struct core_error *error)
{
    const struct config_server_gpus *gpus = &server->config->gpus;
    bool has_cards =
        gpus->use != CONFIG_GPUS_NONE && server->profile != NULL && server->profile->gpu_count > 0;
    struct core_error why = {""};
    char where[400];
    core_status status;

    if (gpus->user != NULL) {
        status = find_user(server, gpus->user, error);
        if (status != CORE_OK)
            core_error_prefix(error, status, "%s",
                              config_server_where(server->config, "gpus.user", where, sizeof where));
        return status;
    }
    if (has_cards && geteuid() == 0 && find_user(server, "nobody", &why) != CORE_OK)
        core_log(CORE_LOG_WARNING, "gpu.user",
                 "millrace-gpu runs as root because it can not run as nobody (gpus.user): %s", why.text);
    return CORE_OK;
}

core_status server_gpus_start(struct server *server, void (*notify)(struct server_io *io),
                              struct core_error *error)
{
    struct cards cards = {.server = server, .notify = notify};
    core_status status = find(&cards, error);

    if (status == CORE_OK)
        status = start_cards(&cards, error);
    config_profile_keep_gpus(server->profile, cards.started);
    free(cards.program);
    return status;
}

void server_gpus_halt(struct server *server)
{
    for (uint32_t i = 0; i < server->gpu_count; i++)
        server_gpu_halt(server->gpus[i]);
}

void server_gpus_destroy(struct server *server)
{
    for (uint32_t i = 0; i < server->gpu_count; i++)
        server_gpu_destroy(server->gpus[i]);
    free(server->gpus);
}
