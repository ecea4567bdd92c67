/* A libnvidia-ml.so.1 for machines without one. It has one card and an instance of it. What it tells is in the
 * file that FAKE_NVML names, read at each call:
 *
 *   CLOCK HIGHEST REASONS CELSIUS RESULT
 *
 * RESULT is what each question for a figure returns: 0, or an error; -1: none is ever answered. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, LOST = 15 };

struct card {
    unsigned instance;
};

static struct card cards[] = {{0}, {1}};
static int open_count;

struct told {
    unsigned mhz, most_mhz, reasons, celsius;
    int result;
};

static struct told read_told(void)
{
    struct told told = {.mhz = 1980, .most_mhz = 1980, .celsius = 45};
    const char *path = getenv("FAKE_NVML");
    FILE *file = path != NULL ? fopen(path, "re") : NULL;
    if (file == NULL)
        return told;
    if (fscanf(file, "%u %u %x %u %d", &told.mhz, &told.most_mhz, &told.reasons, &told.celsius,
               &told.result) != 5)
        abort();
    fclose(file);
    while (told.result == -1)
        pause();
    return told;
}

/* Figures are those of a card, not of an instance. */
static int tell(const struct card *card, unsigned value, unsigned *to)
{
    if (open_count < 1)
        abort();
    *to = value;
    return card->instance ? NOT_SUPPORTED : read_told().result;
}

int nvmlInit_v2(void);
int nvmlShutdown(void);
const char *nvmlErrorString(int result);
int nvmlDeviceGetHandleByUUID(const char *uuid, struct card **card);
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct card *instance, struct card **card);
int nvmlDeviceGetClockInfo(struct card *card, int kind, unsigned *mhz);
int nvmlDeviceGetMaxClockInfo(struct card *card, int kind, unsigned *mhz);
int nvmlDeviceGetCurrentClocksThrottleReasons(struct card *card, unsigned long long *reasons);
int nvmlDeviceGetTemperature(struct card *card, int sensor, unsigned *celsius);

int nvmlInit_v2(void)
{
    open_count++;
    return SUCCESS;
}

int nvmlShutdown(void)
{
    open_count--;
    return SUCCESS;
}

const char *nvmlErrorString(int result)
{
    return result == LOST ? "GPU is lost" : result == NOT_FOUND ? "Not Found" : "Unknown Error";
}

int nvmlDeviceGetHandleByUUID(const char *uuid, struct card **card)
{
    static const char *const uuids[] = {"GPU-", "MIG-"};
    for (unsigned i = 0; i < 2; i++)
        if (strncmp(uuid, uuids[i], 4) == 0 && strstr(uuid, "ffff") == NULL) {
            *card = &cards[i];
            return SUCCESS;
        }
    return NOT_FOUND; /* all with so many f */
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct card *instance, struct card **card)
{
    *card = &cards[0];
    return instance->instance ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetClockInfo(struct card *card, int kind, unsigned *mhz)
{
    return kind == 1 ? tell(card, read_told().mhz, mhz) : INVALID_ARGUMENT;
}

int nvmlDeviceGetMaxClockInfo(struct card *card, int kind, unsigned *mhz)
{
    return kind == 1 ? tell(card, read_told().most_mhz, mhz) : INVALID_ARGUMENT;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(struct card *card, unsigned long long *reasons)
{
    unsigned value;
    const int result = tell(card, read_told().reasons, &value);
    *reasons = value;
    return result;
}

int nvmlDeviceGetTemperature(struct card *card, int sensor, unsigned *celsius)
{
    return sensor == 0 ? tell(card, read_told().celsius, celsius) : INVALID_ARGUMENT;
}
