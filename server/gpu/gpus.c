#include "server/gpu/gpus.h"

#include "core/log.h"
#include "core/node.h"
#include "core/realtime.h"
#include "gpu/listing.h"
#include "server/gpu/batcher.h"
#include "server/server_internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ARENAS      10 /* batches on the way: most plans need six */
#define TABLE_SHARE 8  /* of the memory, one in so many for segments and jobs */
#define PAGE_BYTES  4096
/* Of a card's part of the memory: a page for each arena's input and output, and the tables. */
#define ROOM_BYTES_MIN UINT64_C(131072)
#define CARDS_MAX      GPU_LISTING_MAX

struct cards;

/* What is to be started: a card of a kind of the profile. */
struct card {
    struct cards *cards;
    uint32_t kind;
    struct gpu_listed listed; /* emulated: its index alone */
    pthread_t thread;
    bool runs; /* the thread, which owns what follows: */
    core_status status;
    struct server_gpu *gpu;
    struct core_error error, not_permitted;
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

static uint32_t taken_of(const struct cards *cards, uint32_t kind)
{
    uint32_t taken = 0;
    for (uint32_t i = 0; i < cards->count; i++)
        taken += cards->cards[i].kind == kind ? 1 : 0;
    return taken;
}

/* For messages: its index, and its UUID where it has one. */
static const char *card_text(const struct gpu_listed *listed, char text[64])
{
    const char *uuid = listed->facts.uuid;
    if (listed->index > GPU_LISTING_INDEX_MAX)
        snprintf(text, 64, "%s", uuid);
    else
        snprintf(text, 64, "%u%s%s%s", listed->index, *uuid != '\0' ? " (" : "", uuid,
                 *uuid != '\0' ? ")" : "");
    return text;
}

/* Is it the one that the configuration means? */
static bool is_meant(const char *card, const struct gpu_listed *listed)
{
    return strcmp(card, listed->facts.uuid) == 0 ||
           (*card >= '0' && *card <= '9' && strtoul(card, NULL, 10) == listed->index);
}

static bool is_wanted(const struct config_server_gpus *gpus, const struct gpu_listed *listed)
{
    for (uint32_t i = 0; i < gpus->card_count; i++)
        if (is_meant(gpus->cards[i], listed))
            return true;
    return gpus->use != CONFIG_GPUS_LISTED;
}

static bool is_taken(const struct cards *cards, const char *card)
{
    for (uint32_t taken = 0; taken < cards->count; taken++)
        if (is_meant(card, &cards->cards[taken].listed))
            return true;
    return false;
}

static void add_card(struct cards *cards, const struct gpu_listed *listed)
{
    const struct config_profile *profile = cards->server->profile;
    const char *name = listed->facts.name;
    char text[64];

    if (!is_wanted(&cards->server->config->gpus, listed))
        return;
    for (uint32_t kind = 0; kind < profile->gpu_count; kind++)
        if (strcmp(profile->gpus[kind].name, name) == 0 && cards->count < CARDS_MAX &&
            taken_of(cards, kind) < profile->gpus[kind].count) {
            cards->cards[cards->count++] = (struct card){.cards = cards, .kind = kind, .listed = *listed};
            return;
        }
    core_log(CORE_LOG_WARNING, "gpu.card",
             "card %s, %s, is not in the profile %s and is not used; `millrace-bench calibrate` measures it",
             card_text(listed, text), name, profile->name);
}

/* Adds those that the program lists, or the one of that UUID. *why: why there is none. */
static core_status list_cards(struct cards *cards, const char *uuid, struct core_error *why)
{
    struct gpu_listed *listed = calloc(GPU_LISTING_MAX, sizeof *listed);
    uint32_t count = 0;
    if (listed == NULL)
        return core_error_set(why, CORE_NO_MEMORY, "no memory for the list of cards");
    const core_status status =
        gpu_listing_run(cards->program, cards->backend, uuid, listed, &count, why, why);
    for (uint32_t i = 0; i < count; i++) {
        if (uuid != NULL) /* it is no place among all */
            listed[i].index = GPU_LISTING_INDEX_MAX + 1;
        add_card(cards, &listed[i]);
    }
    free(listed);
    return status;
}

static void find_real(struct cards *cards)
{
    const struct config_profile *profile = cards->server->profile;
    struct core_error why = {""};

    cards->backend = "cuda";
    cards->program = find_program(cards->server->config);
    if (cards->program == NULL) {
        if (no_program(cards->server->config, &why) != CORE_OK &&
            (profile->gpu_count > 0 || cards->server->config->gpus.program != NULL))
            core_log(CORE_LOG_WARNING, "gpu.program", "%s: CPU workers only", why.text);
        return;
    }
    if (list_cards(cards, NULL, &why) != CORE_OK) {
        core_log(CORE_LOG_WARNING, "gpu.program", "%s: CPU workers only", why.text);
        return;
    }
    if (why.text[0] != '\0' && profile->gpu_count > 0)
        core_log(CORE_LOG_WARNING, "gpu.program", "%s", why.text);
    for (uint32_t kind = 0; kind < profile->gpu_count; kind++)
        if (taken_of(cards, kind) < profile->gpus[kind].count)
            core_log(CORE_LOG_WARNING, "gpu.card",
                     "the profile describes %u cards of model %s, this machine has %u",
                     profile->gpus[kind].count, profile->gpus[kind].name, taken_of(cards, kind));
}

/* Who lists cards wants just these. Of the instances of cards (MIG) CUDA need not show all: one that is asked
 * for is looked for alone. */
static core_status find_listed(struct cards *cards, struct core_error *error)
{
    const struct config_server_gpus *gpus = &cards->server->config->gpus;
    char where[400];

    find_real(cards);
    for (uint32_t i = 0; i < gpus->card_count; i++) {
        const char *card = gpus->cards[i];
        struct core_error why = {""};
        if (!is_taken(cards, card) && strncmp(card, "MIG-", 4) == 0 && cards->program != NULL)
            (void)!list_cards(cards, card, &why);
        if (!is_taken(cards, card))
            return core_error_set(
                error, CORE_NOT_FOUND,
                "%s: card %s is not in this machine or not in the profile; `millrace-gpu --list` shows "
                "the cards, `millrace-bench calibrate` measures them%s%s",
                config_server_where(cards->server->config, "gpus", where, sizeof where), card,
                why.text[0] != '\0' ? ": " : "", why.text);
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
            cards->cards[cards->count] =
                (struct card){.cards = cards, .kind = kind, .listed.index = cards->count};
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
struct gpu_region_shape server_gpus_shape(const struct config_profile *profile,
                                          const struct config_profile_gpu *kind, uint32_t cards,
                                          uint64_t streams)
{
    uint64_t bytes = room_bytes(profile, kind, cards);
    uint64_t table_bytes = bytes / TABLE_SHARE / ARENAS;
    uint64_t segments = table_bytes / (sizeof(struct gpu_segment) + sizeof(struct gpu_job));
    if (segments > PAGE_BYTES / sizeof(struct gpu_segment)) /* both tables are whole pages */
        segments -= segments % (PAGE_BYTES / sizeof(struct gpu_segment));
    uint64_t slots = segments;
    if (segments > GPU_REGION_SEGMENTS_MAX)
        segments = GPU_REGION_SEGMENTS_MAX;
    if (slots > streams + streams / 8 + 64)
        slots = streams + streams / 8 + 64;
    if (slots > GPU_REGION_SLOTS_MAX)
        slots = GPU_REGION_SLOTS_MAX;
    uint64_t payload_bytes = (bytes - PAGE_BYTES - ARENAS * table_bytes) / ARENAS / 2;
    return (struct gpu_region_shape){.arenas = ARENAS,
                                     .slots = (uint32_t)slots,
                                     .segments = (uint32_t)segments,
                                     .arena_bytes = payload_bytes / PAGE_BYTES * PAGE_BYTES};
}

/* ---- the start ---- */

/* On the card's node, where the machine has several: its memory, its batcher and its process. */
static void take_node(struct card *card)
{
    const int node = core_node_of_pci("/sys", card->listed.facts.pci);
    struct core_error error = {""};
    if (node < 0 || !card->cards->server->config->threads.pin)
        return;
    if (core_node_take("/sys", node, &error) == CORE_OK)
        core_log(CORE_LOG_INFO, "gpu.node", "%s, at %s: memory and threads on NUMA node %d",
                 card->listed.facts.uuid, card->listed.facts.pci, node);
    else
        core_log(CORE_LOG_WARNING, "gpu.node", "%s, at %s: not permitted: %s", card->listed.facts.uuid,
                 card->listed.facts.pci, error.text);
}

/* A thread of its own for each card: to take memory, to wake a driver and to pin takes seconds. */
static void *start_card(void *argument)
{
    struct card *card = argument;
    const struct cards *cards = card->cards;
    struct server *server = cards->server;
    const struct config_profile_gpu *kind = &server->profile->gpus[card->kind];

    take_node(card);
    card->status = check_room(server->profile, kind, cards->count, &card->error);
    if (card->status != CORE_OK)
        return NULL;
    const struct gpu_region_shape shape =
        server_gpus_shape(server->profile, kind, cards->count, server->config->limits.streams);
    const struct server_gpu_options options = {.server = server,
                                               .notify = cards->notify,
                                               .kind = kind,
                                               .program = cards->program,
                                               .backend = cards->backend,
                                               .card = &card->listed,
                                               .shape = shape,
                                               .room = server_gpu_room_limits(&shape)};
    card->status = server_gpu_start(&card->gpu, &options, &card->not_permitted, &card->error);
    return NULL;
}

/* All side by side. */
static void start_all(struct cards *cards)
{
    const struct core_thread_options options = {.name = "gpu-start", .cpu = -1};

    for (uint32_t i = 0; i < cards->count; i++) {
        struct card *card = &cards->cards[i];
        const core_status status =
            core_thread_start(&card->thread, &options, start_card, card, NULL, &card->error);
        card->runs = status == CORE_OK;
        if (!card->runs)
            card->status = status;
    }
    for (uint32_t i = 0; i < cards->count; i++)
        if (cards->cards[i].runs)
            pthread_join(cards->cards[i].thread, NULL);
}

/* One that was started, or not. CORE_OK also where it was left out with a warning. */
static core_status take_card(struct cards *cards, const struct card *card, struct core_error *error)
{
    struct server *server = cards->server;
    char text[64];

    if (card->status == CORE_OK) {
        cards->started[card->kind]++;
        server_gpu_number(card->gpu, server->gpu_count);
        server->gpus[server->gpu_count++] = card->gpu;
        if (card->not_permitted.text[0] != '\0')
            core_log(CORE_LOG_WARNING, "start.realtime", "not permitted: %s", card->not_permitted.text);
        return CORE_OK;
    }
    if (server->config->gpus.use != CONFIG_GPUS_AUTO) {
        *error = card->error;
        return card->status;
    }
    core_log(CORE_LOG_WARNING, "gpu.card", "card %s, %s, can not be used: %s", card_text(&card->listed, text),
             server->profile->gpus[card->kind].name, card->error.text);
    return CORE_OK;
}

/* They are numbered in the order of the profile's kinds, as the units of a plan. On an error those that were
 * started are the server's to end. */
static core_status start_cards(struct cards *cards, struct core_error *error)
{
    struct server *server = cards->server;
    core_status status = CORE_OK;

    server->gpus = calloc(cards->count + 1, sizeof(struct server_gpu *));
    if (server->gpus == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the GPUs");
    start_all(cards);
    for (uint32_t kind = 0; kind < server->profile->gpu_count; kind++)
        for (uint32_t i = 0; i < cards->count; i++)
            if (cards->cards[i].kind == kind && (status == CORE_OK || cards->cards[i].status == CORE_OK)) {
                const core_status one = take_card(cards, &cards->cards[i], error);
                status = status == CORE_OK ? one : status;
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
