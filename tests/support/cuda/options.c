/* What the card is like and which calls fail, by words; and what is counted. */
#include "tests/support/cuda/runtime.h"

#include "tests/support/require.h"

#include <stdlib.h>
#include <string.h>

#define FUNCTIONS 64

struct cuda_fake_options cuda_fake_options;
struct cuda_fake_counts cuda_fake_counts;

/* With the lock. */
static struct {
    const char *name;
    uint64_t calls;
} functions[FUNCTIONS];
static bool configured;

/* ---- what the card is like ---- */

static bool word_is(const char *word, const char *name, const char **value)
{
    const size_t length = strlen(name);
    *value = word + length + 1;
    return strncmp(word, name, length) == 0 && word[length] == '=';
}

static void counted_take(const char *value, char *what, size_t size, uint64_t *at)
{
    const char *colon = strchr(value, ':');
    TEST_REQUIRE(colon != NULL && (size_t)(colon - value) < size);
    memcpy(what, value, (size_t)(colon - value));
    what[colon - value] = '\0';
    *at = strtoull(colon + 1, NULL, 10);
}

static void word_take(const char *word)
{
    struct cuda_fake_options *to = &cuda_fake_options;
    const struct {
        const char *name;
        int64_t *value;
    } numbers[] = {
        {"driver", &to->driver},
        {"version", &to->version},
        {"cards", &to->cards},
        {"mig", &to->mig},
        {"sms", &to->sms},
        {"engines", &to->engines},
        {"memory_mb", &to->memory_mb},
        {"open_ms", &to->open_ms},
        {"lazy_ms", &to->lazy_ms},
        {"late_us", &to->late_us},
        {"busy_us", &to->busy_us},
        {"mb_per_s", &to->mb_per_s},
        {"clock", &to->clock},
        {"drift_ppm", &to->drift_ppm},
        {"sticky", &to->sticky},
        {"seed", &to->seed},
        {"tell", &to->tell},
    };
    const char *value;
    if (word_is(word, "fail", &value)) {
        counted_take(value, to->fail, sizeof to->fail, &to->fail_at);
        return;
    }
    if (word_is(word, "fault", &value)) {
        counted_take(value, to->fault, sizeof to->fault, &to->fault_at);
        return;
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (word_is(word, numbers[i].name, &value)) {
            *numbers[i].value = strtoll(value, NULL, 10);
            return;
        }
    fprintf(stderr, "MILLRACE_FAKE_CUDA has no word '%s'\n", word);
    abort();
}

/* With the lock. */
static void configure(const char *words)
{
    char text[512], *rest;
    cuda_fake_options = (struct cuda_fake_options){
        .driver = 1, .version = 13020, .cards = 1, .sms = 4, .engines = 2, .memory_mb = 1024, .seed = 1};
    TEST_REQUIRE(strlen(words) < sizeof text);
    strcpy(text, words);
    for (char *word = strtok_r(text, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest))
        word_take(word);
    configured = true;
}

void cuda_fake_configured(void)
{
    const char *words = getenv("MILLRACE_FAKE_CUDA");
    if (!configured)
        configure(words == NULL ? "" : words);
}

void cuda_fake_begin(const char *words)
{
    cuda_fake_streams_end();
    pthread_mutex_lock(&cuda_fake_lock);
    TEST_REQUIRE(cuda_fake_counts.live == 0);
    configure(words);
    cuda_fake_clock_begin();
    cuda_fake_broken = cudaSuccess;
    memset(functions, 0, sizeof functions);
    cuda_fake_counts = (struct cuda_fake_counts){.calls = 0};
    pthread_mutex_unlock(&cuda_fake_lock);
    (void)cudaGetLastError();
}

void cuda_fake_break(void)
{
    pthread_mutex_lock(&cuda_fake_lock);
    cuda_fake_broken_set(cudaErrorIllegalAddress);
    pthread_mutex_unlock(&cuda_fake_lock);
}

static struct cuda_fake_counts counts(void)
{
    pthread_mutex_lock(&cuda_fake_lock);
    const struct cuda_fake_counts copy = cuda_fake_counts;
    pthread_mutex_unlock(&cuda_fake_lock);
    return copy;
}

uint64_t cuda_fake_calls(void)
{
    return counts().calls;
}

uint64_t cuda_fake_launches(void)
{
    return counts().launches;
}

uint32_t cuda_fake_kernels(void)
{
    return counts().kernel_count;
}

int64_t cuda_fake_live(void)
{
    return counts().live;
}

bool cuda_fake_was_wiped(void)
{
    return counts().was_wiped;
}

/* ---- what is counted ---- */

bool cuda_fake_is_failure(const char *name)
{
    size_t i = 0;
    while (functions[i].name != NULL && strcmp(functions[i].name, name) != 0)
        TEST_REQUIRE(++i < FUNCTIONS);
    functions[i].name = name;
    functions[i].calls++;
    cuda_fake_counts.calls++;
    if (strcmp(cuda_fake_options.fail, "any") == 0)
        return cuda_fake_counts.calls == cuda_fake_options.fail_at;
    return strcmp(cuda_fake_options.fail, name) == 0 && functions[i].calls == cuda_fake_options.fail_at;
}

void cuda_fake_count_copies(cudaStream_t stream, bool event)
{
    pthread_mutex_lock(&cuda_fake_lock);
    stream->copies = event ? 0 : stream->copies + 1;
    if (stream->copies > cuda_fake_counts.copies_most) {
        cuda_fake_counts.copies_most = stream->copies;
        if (cuda_fake_options.tell != 0)
            fprintf(stderr, "fake card: %llu copies\n", (unsigned long long)stream->copies);
    }
    pthread_mutex_unlock(&cuda_fake_lock);
}

void cuda_fake_count_live(int64_t more)
{
    pthread_mutex_lock(&cuda_fake_lock);
    cuda_fake_counts.live += more;
    pthread_mutex_unlock(&cuda_fake_lock);
}
