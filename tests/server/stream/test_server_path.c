/* The path machine, in every situation that a stream can come into: from each state all that units, GPUs and
 * the planner can do is tried, the machine's steps are carried out on a model of the stream, and what the
 * header guarantees is looked at. Every row of the table must have been taken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/stream/path.c" /* NOLINT(bugprone-suspicious-include): for the rows of its table */
#include "tests/support/require.h"

#include <stdlib.h>
#include <string.h>

#define MIGRATION     (MIGRATING | READY | TO_GPU | FREE | MAY_HOLD | OVERDUE)
#define STEPS_AT_MOST 3

/* A stream as the machine sees it, and what decides which facts can come together. */
struct situation {
    enum server_path_state state;
    unsigned facts;
    bool gpu;           /* it is on a GPU, not at a worker of its own */
    bool backed;        /* it has a backup */
    bool other;         /* its backup is on another GPU */
    bool other_awaited; /* the other GPU has been sent the key and has not answered */
};

static uint8_t *seen;
static struct situation *open_list;
static size_t open_count, situations;
static unsigned taken[SERVER_PATH_STATES][TRANSITIONS_MAX];

#define SITUATIONS ((size_t)SERVER_PATH_STATES * SERVER_PATH_FACTS_END * 16)

static size_t number_of(const struct situation *now)
{
    size_t kind = (size_t)now->gpu | (size_t)now->other << 1 | (size_t)now->other_awaited << 2 |
                  (size_t)now->backed << 3;
    return ((size_t)now->state * SERVER_PATH_FACTS_END + now->facts) * 16 + kind;
}

static bool has(const struct situation *now, unsigned facts)
{
    return (now->facts & facts) == facts;
}

static struct situation with(struct situation now, unsigned more, unsigned less)
{
    now.facts = (now.facts | more) & ~less;
    return now;
}

/* ---- what can come together ---- */

static bool may_be_free(const struct situation *now)
{
    return has(now, MIGRATING | WORKER_EMPTY | GPU_EMPTY) && !has(now, AWAITED) && !now->other_awaited &&
           (!now->backed || has(now, ON_TIME));
}

static bool may_be_held(const struct situation *now)
{
    if (!has(now, MIGRATING) || now->backed)
        return false;
    if (!now->gpu)
        return now->state == SERVER_PATH_WORKER || now->state == SERVER_PATH_HELD_WORKER;
    return has(now, WORKER_EMPTY) && !has(now, AT_BACKUP) && now->state != SERVER_PATH_WORKER &&
           now->state != SERVER_PATH_LEAVING_WORKER;
}

/* Facts that follow from others. */
static struct situation settle(struct situation now)
{
    if (!now.gpu)
        now = with(now, GPU_EMPTY | ON_TIME, KEYED | OTHER | AT_BACKUP | AWAITED | LOST);
    if (!has(&now, MIGRATING))
        now = with(now, 0, MIGRATION);
    if (!may_be_free(&now))
        now = with(now, 0, FREE);
    else if (server_path_holds(now.state))
        now = with(now, FREE, 0); /* a stream whose contract changes as well is never held */
    if (!may_be_held(&now))
        now = with(now, 0, MAY_HOLD);
    return now;
}

static void add(struct situation now)
{
    now = settle(now);
    size_t number = number_of(&now);
    if (seen[number] != 0)
        return;
    seen[number] = 1;
    situations++;
    open_list[open_count++] = now;
}

/* ---- what the machine does ---- */

/* The row that a step takes; the last one: none. */
static size_t row_of(const struct situation *now)
{
    size_t row = 0;
    for (; table[now->state][row].all != 0 || table[now->state][row].none != 0; row++)
        if (has(now, table[now->state][row].all) && (now->facts & table[now->state][row].none) == 0)
            break;
    return row;
}

static struct situation swapped(struct situation now)
{
    bool keyed = has(&now, OTHER), other = has(&now, KEYED), at_backup = !has(&now, AT_BACKUP);
    bool awaited = now.other_awaited;

    TEST_REQUIRE(now.other && has(&now, GPU_EMPTY) && !has(&now, LOST));
    now.other_awaited = has(&now, AWAITED);
    now = with(now, 0, KEYED | OTHER | AT_BACKUP | AWAITED);
    return with(now, KEYED * keyed | OTHER * other | AT_BACKUP * at_backup | AWAITED * awaited, 0);
}

/* On the new unit: `backed` and `gpu`: a GPU that has no key may be one that lost it while packets were held.
 * */
static struct situation switched(struct situation now, bool gpu, bool backed)
{
    bool keyed = has(&now, TO_GPU);

    TEST_REQUIRE(may_be_free(&now));
    TEST_REQUIRE(!keyed || now.state == SERVER_PATH_GPU);
    TEST_REQUIRE(keyed || now.state == SERVER_PATH_WORKER);
    now.gpu = gpu || keyed;
    now.other = now.other_awaited = false;
    now.backed = now.gpu && backed;
    now.facts = WORKER_EMPTY | GPU_EMPTY | ON_TIME | (keyed ? KEYED : 0);
    return now;
}

/* `chance` decides what the effects leave open. */
static struct situation carried_out(struct situation now, unsigned effects, unsigned chance)
{
    if ((effects & FAIL_OVER) != 0 && now.backed && (chance & 1) != 0)
        now = with(now, 0, ON_TIME);
    if ((effects & REWIND) != 0) {
        TEST_REQUIRE(has(&now, LOST | GPU_EMPTY));
        now = with(now, 0, LOST);
    }
    if ((effects & SWAP) != 0)
        now = swapped(now);
    if ((effects & SWITCH) != 0)
        now = switched(now, (chance & 1) != 0, (chance & 2) != 0);
    if ((effects & GIVE_UP) != 0)
        now = with(now, 0, MIGRATION);
    if ((effects & USE_WORKER) != 0)
        TEST_REQUIRE(has(&now, GPU_EMPTY) && !has(&now, LOST));
    if ((effects & USE_GPU) != 0)
        TEST_REQUIRE(has(&now, KEYED | WORKER_EMPTY | GPU_EMPTY));
    return settle(now);
}

/* Packets waited in one state and may go in the next one: they are told to. What comes back to the primary
 * GPU because the backup's has failed is paced. */
static void check_release(enum server_path_state before, const struct situation *now, unsigned effects)
{
    if ((effects & (SWAP | USE_GPU | FAIL_OVER)) == (SWAP | USE_GPU | FAIL_OVER))
        TEST_REQUIRE(has(now, AT_BACKUP) == ((effects & PACED) != 0));
    if (server_path_waits(before) && !server_path_waits(now->state))
        TEST_REQUIRE((effects & (RELEASE | SWITCH | USE_WORKER | USE_GPU)) != 0);
    if (server_path_holds(before) && (effects & SWITCH) != 0)
        TEST_REQUIRE((effects & PACED) != 0);
}

/* Nothing is to be done: every state that waits has something to wait for, and no unit gets packets while
 * another one has some. What a GPU without a backup loses goes to the worker packet by packet, and comes to
 * no harm: that GPU delivers nothing any more. */
static void check_rest(const struct situation *now)
{
    bool backed = now->backed, awaited = has(now, AWAITED) || now->other_awaited;

    switch (now->state) {
    case SERVER_PATH_WORKER:
        TEST_REQUIRE(has(now, GPU_EMPTY) && !has(now, LOST));
        TEST_REQUIRE(!has(now, KEYED | WORKER_EMPTY));
        break;
    case SERVER_PATH_LEAVING_WORKER:
        TEST_REQUIRE(has(now, KEYED | GPU_EMPTY) && !has(now, WORKER_EMPTY));
        break;
    case SERVER_PATH_GPU: /* without the key packets wait, too: until the GPU has returned all */
        TEST_REQUIRE(has(now, KEYED) || !has(now, GPU_EMPTY));
        TEST_REQUIRE(!backed || has(now, WORKER_EMPTY));
        TEST_REQUIRE(!has(now, OTHER | AT_BACKUP | ON_TIME));
        break;
    case SERVER_PATH_LOSING:
        TEST_REQUIRE(has(now, LOST | WORKER_EMPTY) && !has(now, GPU_EMPTY));
        break;
    case SERVER_PATH_RETURNING:
        TEST_REQUIRE(has(now, AT_BACKUP | OTHER | WORKER_EMPTY) && !has(now, GPU_EMPTY));
        break;
    case SERVER_PATH_HELD_WORKER:
        TEST_REQUIRE(has(now, GPU_EMPTY | MIGRATING) && (!has(now, WORKER_EMPTY) || awaited));
        break;
    default:
        TEST_REQUIRE(has(now, MIGRATING) && !has(now, AT_BACKUP) && !backed);
        TEST_REQUIRE(!has(now, WORKER_EMPTY | GPU_EMPTY) || awaited);
    }
}

static void advance(struct situation now, unsigned steps)
{
    const enum server_path_state before = now.state;
    const size_t row = row_of(&now);
    unsigned effects = 0;
    bool stepped = server_path_step(&now.state, now.facts, &effects);

    TEST_REQUIRE(stepped == (table[before][row].all != 0 || table[before][row].none != 0));
    if (!stepped) {
        check_rest(&now);
        add(now);
        return;
    }
    taken[before][row]++;
    TEST_REQUIRE(steps < STEPS_AT_MOST);
    check_release(before, &now, effects);
    for (unsigned chance = 0; chance < 4; chance++)
        advance(carried_out(now, effects, chance), steps + 1);
}

static void happen(const struct situation *before, unsigned more, unsigned less)
{
    advance(settle(with(*before, more, less)), 0);
}

/* ---- what can happen to it ---- */

static void packets_go(const struct situation *now)
{
    if (now->state == SERVER_PATH_WORKER)
        happen(now, 0, WORKER_EMPTY);
    if (now->state == SERVER_PATH_GPU && has(now, KEYED))
        happen(now, 0, GPU_EMPTY);
}

static void packets_come_back(const struct situation *now)
{
    happen(now, WORKER_EMPTY, 0);
    happen(now, ON_TIME, 0);
    if (has(now, GPU_EMPTY))
        return;
    if (has(now, KEYED) || has(now, LOST))
        happen(now, GPU_EMPTY, 0); /* encrypted, or the last of those that are lost */
    if (!now->backed) {            /* as it was: encrypted by a worker */
        happen(now, 0, KEYED | WORKER_EMPTY);
        happen(now, GPU_EMPTY, KEYED | WORKER_EMPTY);
    } else {
        happen(now, LOST, KEYED);
        happen(now, LOST | GPU_EMPTY, KEYED);
    }
}

static void keys_come_and_go(const struct situation *now)
{
    if (now->other) {
        struct situation answered = *now, asked = *now;
        answered.other_awaited = false;
        asked.other_awaited = true;
        happen(&answered, OTHER, 0);
        happen(&answered, 0, OTHER);
        happen(&asked, 0, OTHER);
    }
    if (!now->gpu)
        return;
    happen(now, 0, KEYED);
    happen(now, AWAITED, KEYED);
    if (!has(now, GPU_EMPTY) || has(now, LOST))
        return;
    happen(now, KEYED, AWAITED);
    happen(now, 0, AWAITED);
}

static void migrations_come_and_go(const struct situation *now)
{
    happen(now, MIGRATING, 0);
    happen(now, 0, MIGRATION);
    if (!has(now, MIGRATING))
        return;
    happen(now, READY, TO_GPU);
    happen(now, READY | TO_GPU, 0);
    happen(now, 0, READY | TO_GPU);
    happen(now, FREE, 0);
    happen(now, MAY_HOLD, 0);
    happen(now, OVERDUE, 0);
    happen(now, READY | MAY_HOLD | OVERDUE, TO_GPU);
    happen(now, READY | TO_GPU | FREE | MAY_HOLD | OVERDUE, 0);
}

static void every_situation_keeps_the_guarantees(void **state)
{
    (void)state;
    seen = calloc(SITUATIONS, 1);
    open_list = malloc(SITUATIONS * sizeof *open_list);
    assert_true(seen != NULL && open_list != NULL);
    add((struct situation){.facts = WORKER_EMPTY | GPU_EMPTY});
    for (unsigned backed = 0; backed < 3; backed++) /* not, by a worker, by a GPU */
        add((struct situation){.facts = WORKER_EMPTY | GPU_EMPTY | ON_TIME | AWAITED,
                               .gpu = true,
                               .backed = backed > 0,
                               .other = backed == 2});
    while (open_count > 0) {
        const struct situation now = open_list[--open_count];
        packets_go(&now);
        packets_come_back(&now);
        keys_come_and_go(&now);
        migrations_come_and_go(&now);
    }
    free(seen);
    free(open_list);
    for (unsigned from = 0; from < SERVER_PATH_STATES; from++)
        for (unsigned row = 0; table[from][row].all != 0 || table[from][row].none != 0; row++)
            if (taken[from][row] == 0)
                fail_msg("state %u: row %u is never taken", from, row);
    print_message("%zu situations\n", situations);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_situation_keeps_the_guarantees)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
