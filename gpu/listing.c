#include "gpu/listing.h"

#include "gpu/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TEXT_BYTES 32768
#define LIST_NS    (30 * CORE_NS_PER_S)

/* ---- lines ---- */

enum { INDEX, NAME, BYTES, SMS, ENGINES, DRIVER, UUID, PCI, FIELDS };

struct field {
    const char *text;
    size_t bytes;
};

/* False: the line has fewer, or more. */
static bool fields_find(const char *line, struct field *fields)
{
    const size_t bytes = strcspn(line, "\n");
    for (size_t i = 0, at = 0; i < FIELDS; i++) {
        fields[i].text = line + at;
        fields[i].bytes = strcspn(fields[i].text, "\t\n");
        at += fields[i].bytes + 1;
        if ((i < FIELDS - 1) != (at <= bytes))
            return false;
    }
    return true;
}

/* "N WORD"; false: it is not so, or N is 0 or beyond `most`. */
static bool number_read(const struct field *field, const char *word, uint64_t most, uint64_t *value)
{
    char *end;
    if (*field->text < '0' || *field->text > '9')
        return false;
    errno = 0;
    *value = strtoull(field->text, &end, 10);
    const size_t left = field->bytes - (size_t)(end - field->text);
    return errno == 0 && *value <= most && left == strlen(word) && memcmp(end, word, left) == 0;
}

/* False: it is too long. */
static bool text_read(const struct field *field, char *to, size_t size)
{
    if (field->bytes >= size)
        return false;
    memcpy(to, field->text, field->bytes);
    to[field->bytes] = '\0';
    return true;
}

bool gpu_listing_parse(const char *line, struct gpu_listed *card)
{
    static const char driver[] = "driver ";
    struct field fields[FIELDS];
    struct gpu_device_facts *facts = &card->facts;
    uint64_t index, bytes, sms, engines;

    memset(card, 0, sizeof *card);
    if (!fields_find(line, fields) || fields[NAME].bytes == 0 ||
        !number_read(&fields[INDEX], "", GPU_LISTING_INDEX_MAX, &index) ||
        !number_read(&fields[BYTES], " bytes", UINT64_MAX, &bytes) || bytes == 0 ||
        !number_read(&fields[SMS], " SMs", UINT32_MAX, &sms) || sms == 0 ||
        !number_read(&fields[ENGINES], " copy engines", UINT32_MAX, &engines) || engines == 0 ||
        fields[DRIVER].bytes < sizeof driver - 1 ||
        memcmp(fields[DRIVER].text, driver, sizeof driver - 1) != 0)
        return false;
    fields[DRIVER].text += sizeof driver - 1;
    fields[DRIVER].bytes -= sizeof driver - 1;
    card->index = (uint32_t)index;
    facts->memory_bytes = bytes;
    facts->sms = (uint32_t)sms;
    facts->copy_engines = (uint32_t)engines;
    return text_read(&fields[NAME], facts->name, sizeof facts->name) &&
           text_read(&fields[DRIVER], facts->driver, sizeof facts->driver) &&
           text_read(&fields[UUID], facts->uuid, sizeof facts->uuid) &&
           text_read(&fields[PCI], facts->pci, sizeof facts->pci);
}

void gpu_listing_print(const struct gpu_listed *card, FILE *to)
{
    const struct gpu_device_facts *facts = &card->facts;
    fprintf(to, "%u\t%s\t%llu bytes\t%u SMs\t%u copy engines\tdriver %s\t%s\t%s\n", card->index, facts->name,
            (unsigned long long)facts->memory_bytes, facts->sms, facts->copy_engines, facts->driver,
            facts->uuid, facts->pci);
}

/* ---- the program ---- */

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

/* With its output, and what it says of errors, to `write_end`. Returns 0 or an errno. */
static int start(const char *program, const char *backend, const char *visible, int write_end, pid_t *process)
{
    char *const arguments[] = {"millrace-gpu", "--list", "--backend", (char *)backend, NULL};
    char **environment = gpu_process_environment(visible);
    posix_spawn_file_actions_t actions;

    if (environment == NULL)
        return ENOMEM;
    posix_spawn_file_actions_init(&actions);
    int failed = posix_spawn_file_actions_adddup2(&actions, write_end, STDOUT_FILENO);
    if (failed == 0)
        failed = posix_spawn_file_actions_adddup2(&actions, write_end, STDERR_FILENO);
    if (failed == 0)
        failed = posix_spawnp(process, program, &actions, NULL, arguments, environment);
    posix_spawn_file_actions_destroy(&actions);
    free(environment);
    return failed;
}

static core_status text_get(const char *program, const char *backend, const char *visible, char *text,
                            struct core_error *error)
{
    const core_ns until_ns = core_time_now_ns() + LIST_NS;
    pid_t process = 0;
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0)
        return core_error_errno(error, "can not make a pipe");
    const int failed = start(program, backend, visible, ends[1], &process);
    close(ends[1]);
    bool good = failed == 0 && read_all(ends[0], text, TEXT_BYTES, until_ns);
    if (failed == 0)
        good = collect(process, good ? until_ns : 0) && good;
    close(ends[0]);
    errno = failed;
    if (failed != 0) {
        (void)core_error_errno(error, "%s can not be run", program);
        return CORE_NOT_FOUND;
    }
    return good ? CORE_OK : core_error_set(error, CORE_SYSTEM, "%s --list failed", program);
}

/* Fills in the cards; *words: the first line in which the program speaks for itself, or NULL. */
static uint32_t text_read_cards(const char *text, struct gpu_listed *cards, const char **words)
{
    static const char own[] = "millrace-gpu: ";
    uint32_t count = 0;
    *words = NULL;
    for (const char *line = text, *end; *line != '\0'; line = *end == '\0' ? end : end + 1) {
        end = strchrnul(line, '\n');
        if (count < GPU_LISTING_MAX && gpu_listing_parse(line, &cards[count]))
            count++;
        else if (*words == NULL && strncmp(line, own, sizeof own - 1) == 0)
            *words = line + sizeof own - 1;
    }
    return count;
}

core_status gpu_listing_run(const char *program, const char *backend, const char *visible,
                            struct gpu_listed *cards, uint32_t *count, struct core_error *why,
                            struct core_error *error)
{
    const char *words;
    char *text = calloc(1, TEXT_BYTES + 1); /* ended, however much comes */

    *count = 0;
    if (text == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the list of cards");
    core_status status = text_get(program, backend, visible, text, error);
    const uint32_t found = text_read_cards(text, cards, &words);
    const int bytes = words == NULL ? 0 : (int)strcspn(words, "\n");
    if (status != CORE_OK && bytes > 0)
        status = core_error_set(error, status, "%s --list: %.*s", program, bytes, words);
    else if (status == CORE_OK && found == 0)
        (void)core_error_set(why, CORE_NOT_FOUND, "%s --list: %.*s", program, bytes > 0 ? bytes : 13,
                             bytes > 0 ? words : "shows no card");
    *count = status == CORE_OK ? found : 0;
    free(text);
    return status;
}
