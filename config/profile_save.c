/* Writing a profile so that a person can read it: libcyaml writes no comments, so this is by hand. */
#include "config/profile.h"

#include "config/file.h"
#include "config/profile_gpu.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void comment_write(FILE *file, const char *comment)
{
    if (!comment)
        return;
    for (const char *c = comment; *c;) {
        fputs("# ", file);
        for (; *c && *c != '\n'; c++)
            if ((unsigned char)*c >= ' ' && (unsigned char)*c <= '~') /* anything else might not be YAML */
                fputc(*c, file);
        fputc('\n', file);
        c += *c == '\n';
    }
}

void config_profile_text_write(FILE *file, const char *key, const char *text)
{
    fprintf(file, "%s: \"", key);
    for (const char *c = text; *c; c++)
        fprintf(file, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
    fputs("\"\n", file);
}

static void ciphers_write(FILE *file, const char *key, const int64_t values[CORE_CIPHER_COUNT],
                          const char *meaning)
{
    fprintf(file,
            "  %s: # %s\n"
            "    aes_128_cbc: %" PRId64 "\n"
            "    aes_192_cbc: %" PRId64 "\n"
            "    aes_256_cbc: %" PRId64 "\n",
            key, meaning, values[0], values[1], values[2]);
}

static void cpu_write(FILE *file, const struct config_profile_cpu *cpu)
{
    fputs("\n# Encryption on one worker. A burst of n pieces of x bytes each takes at most\n"
          "# n * (per_piece_ns + per_byte_fs * x / 1000000) + lane_ns nanoseconds.\n"
          "cpu:\n",
          file);
    config_profile_text_write(file, "  engine", cpu->engine);
    fprintf(file, "  lanes: %" PRIu32 " # pieces that the engine encrypts side by side\n", cpu->lanes);
    fprintf(file, "  burst_pieces: %" PRIu32 " # most pieces in one burst; a multiple of lanes\n",
            cpu->burst_pieces);
    fprintf(file, "  piece_bytes: %" PRIu32 " # longest piece of a packet; a multiple of 16\n",
            cpu->piece_bytes);
    fprintf(file, "  per_piece_ns: %" PRId64 "\n", cpu->per_piece_ns);
    ciphers_write(file, "per_byte_fs", cpu->per_byte_fs, "femtoseconds: 1,000,000 fs are 1 ns");
    ciphers_write(file, "lane_ns", cpu->lane_ns, "a piece of piece_bytes alone in its lane");
    fprintf(file, "  decrypt_more_percent: %" PRIu32 " # more of per_piece_ns and per_byte_fs to decrypt\n",
            cpu->decrypt_more_percent);
    fprintf(file, "  queue_granularity_ns: %" PRId64 " # deadlines closer together than this may swap\n",
            cpu->queue_granularity_ns);
}

static void profile_write(FILE *file, const struct config_profile *profile, const char *comment)
{
    comment_write(file, comment);
    config_profile_text_write(file, "name", profile->name);
    config_profile_text_write(file, "machine", profile->machine);
    config_profile_text_write(file, "measured", profile->measured);
    cpu_write(file, &profile->cpu);
    fprintf(file,
            "\n# One packet on an I/O thread: read, parse, hand over, collect, write.\n"
            "io:\n"
            "  per_packet_ns: %" PRId64 "\n"
            "  per_byte_fs: %" PRId64 " # femtoseconds: 1,000,000 fs are 1 ns\n"
            "  pattern_per_byte_fs: %" PRId64 " # more, of a stream with a pattern\n"
            "  mac_per_byte_fs: %" PRId64 " # more, of a stream with a MAC\n"
            "  by_lane_per_packet_ns: %" PRId64 " # where a lane is in the place of the socket\n"
            "  by_lane_per_byte_fs: %" PRId64 "\n"
            "  limit_percent: %" PRIu32 " # of an I/O thread's time that may be promised\n"
            "  rest_max_ns: %" PRId64 " # longest that packets may gather before they are read\n",
            profile->io.per_packet_ns, profile->io.per_byte_fs, profile->io.pattern_per_byte_fs,
            profile->io.mac_per_byte_fs, profile->io.by_lane_per_packet_ns, profile->io.by_lane_per_byte_fs,
            profile->io.limit_percent, profile->io.rest_max_ns);
    fprintf(file,
            "\n# Kept back from every promise.\n"
            "margins:\n"
            "  in_ns: %" PRId64 " # from a packet's arrival to the worker's queue\n"
            "  out_ns: %" PRId64 " # from the end of its burst to the socket\n"
            "  percent: %" PRIu32 " # added to every execution time on the processor\n",
            profile->margins.in_ns, profile->margins.out_ns, profile->margins.percent);
    if (profile->gpu_count > 0)
        fprintf(file,
                "  copies_ppm: %" PRIu32 " # added to a GPU's copies; 10,000 ppm are 1 %%\n"
                "  kernels_ppm: %" PRIu32 " # and to its kernels\n",
                profile->margins.copies_ppm, profile->margins.kernels_ppm);
    config_profile_gpus_write(file, profile);
}

core_status config_profile_save(const struct config_profile *profile, const char *path, const char *comment,
                                struct core_error *error)
{
    char *text = NULL;
    size_t bytes = 0;
    core_status status = config_profile_check(profile, error);

    if (status != CORE_OK)
        return status;
    FILE *file = open_memstream(&text, &bytes);
    if (!file)
        return core_error_set(error, CORE_NO_MEMORY, "%s: out of memory", path);
    profile_write(file, profile, comment);
    if (fclose(file) != 0)
        status = core_error_set(error, CORE_NO_MEMORY, "%s: out of memory", path);
    else
        status = config_file_replace(path, text, bytes, error);
    free(text);
    return status;
}
