#include "client/command_encrypt.h"

#include "core/transport_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_standard(const char *path)
{
    return path == NULL || strcmp(path, "-") == 0;
}

/* ---- input ---- */

/* A pipe can not seek: what is to be left out must be read. */
static core_status read_past(struct encrypt_input *input, uint64_t bytes, struct core_error *error)
{
    while (bytes > 0) {
        size_t wanted = bytes < input->packet_bytes ? (size_t)bytes : input->packet_bytes;
        ssize_t count = read(input->descriptor, input->packet, wanted);
        if (count < 0 && errno != EINTR)
            return core_error_errno(error, "%s", input->name);
        if (count == 0)
            return core_error_set(error, CORE_INVALID, "%s ends before the packets to be skipped",
                                  input->name);
        if (count > 0)
            bytes -= (uint64_t)count;
    }
    return CORE_OK;
}

static core_status skip_packets(struct encrypt_input *input, uint64_t skip, struct core_error *error)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(skip, (uint64_t)input->packet_bytes, &bytes) || bytes > INT64_MAX)
        return core_error_set(error, CORE_INVALID, "--skip %" PRIu64 " is beyond any file", skip);
    if (bytes == 0)
        return CORE_OK;
    if (input->size == 0)
        return read_past(input, bytes, error);
    if (bytes > input->size)
        return core_error_set(error, CORE_INVALID, "%s ends before the packets to be skipped", input->name);
    if (lseek(input->descriptor, (off_t)bytes, SEEK_CUR) < 0)
        return core_error_errno(error, "%s", input->name);
    return CORE_OK;
}

/* A file's length is known before anything is sent. */
static core_status length_check(const struct encrypt_input *input, uint32_t unit, bool decrypts,
                                struct core_error *error)
{
    const off_t start = lseek(input->descriptor, 0, SEEK_CUR); /* of a redirected input; -1: a pipe */
    const uint64_t read = start > 0 ? (uint64_t)start : 0;
    const uint64_t bytes = input->size > read ? input->size - read : 0;
    if (bytes % unit == 0)
        return CORE_OK;
    if (unit != CORE_BLOCK_BYTES || decrypts)
        return core_error_set(error, CORE_INVALID,
                              "%s has %" PRIu64 " bytes, and %s must be a multiple of %" PRIu32, input->name,
                              bytes, decrypts ? "what is decrypted" : "with --records=ts it", unit);
    return core_error_set(error, CORE_INVALID,
                          "%s has %" PRIu64 " bytes, and without padding it must be a multiple of %d; give "
                          "--padding=end or --padding=pkcs7",
                          input->name, bytes, CORE_BLOCK_BYTES);
}

core_status encrypt_input_open(struct encrypt_input *input, const char *path,
                               const struct command_contract *contract, uint64_t message_packets,
                               uint64_t skip, struct core_error *error)
{
    const struct core_stream_spec *spec = &contract->spec;
    const bool decrypts = spec->direction == CORE_DIRECTION_DECRYPT;
    const bool whole_blocks = spec->padding == CORE_PADDING_NONE && (decrypts || !contract->pad_end);
    const uint32_t unit = spec->records == CORE_RECORDS_TS ? CORE_TS_BYTES
                          : whole_blocks                   ? CORE_BLOCK_BYTES
                                                           : 1;
    struct stat status;
    core_status known;
    *input = (struct encrypt_input){.descriptor = STDIN_FILENO,
                                    .name = is_standard(path) ? "standard input" : path,
                                    .packet_bytes = spec->packet_bytes,
                                    .pad_end = contract->pad_end && !decrypts,
                                    .has_messages = spec->unit == CORE_UNIT_MESSAGE,
                                    .ends_empty = spec->padding != CORE_PADDING_NONE,
                                    .message_packets = message_packets};
    input->looks_ahead = input->has_messages && whole_blocks && message_packets != 1;
    if (!is_standard(path) && (input->descriptor = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return core_error_errno(error, "%s", path);
    if (fstat(input->descriptor, &status) == 0 && S_ISREG(status.st_mode))
        input->size = (uint64_t)status.st_size;
    input->packet = malloc((size_t)input->packet_bytes + 1);
    if (input->packet == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a packet");
    if (unit > 1 && (known = length_check(input, unit, decrypts, error)) != CORE_OK)
        return known;
    return skip_packets(input, skip, error);
}

/* Place of the packet at hand in its message. */
static uint64_t place_of(const struct encrypt_input *input)
{
    return input->message_packets == 0 ? input->number : input->number % input->message_packets;
}

static bool fills_message(const struct encrypt_input *input)
{
    return input->message_packets > 0 && place_of(input) == input->message_packets - 1;
}

static void complete(struct encrypt_input *input)
{
    input->complete = true;
    if (!input->has_messages)
        return;
    const bool last = input->finished || fills_message(input);
    input->flags = (place_of(input) == 0 ? MILLRACE_DATA_FIRST : 0) | (last ? MILLRACE_DATA_LAST : 0);
}

/* Does a packet of nothing have to end the message, or, of all input as one, to be it? */
static bool needs_end(const struct encrypt_input *input)
{
    return input->has_messages && input->ends_empty && (input->message_packets == 0 || place_of(input) > 0);
}

static core_status finish(struct encrypt_input *input)
{
    input->finished = true;
    if (input->pad_end) {
        uint32_t padding = CORE_BLOCK_BYTES - input->bytes % CORE_BLOCK_BYTES;
        memset(input->packet + input->bytes, (int)padding, padding);
        input->bytes += padding;
    }
    if (input->bytes > 0 || needs_end(input))
        complete(input);
    return CORE_OK;
}

core_status encrypt_input_read(struct encrypt_input *input, struct core_error *error)
{
    const bool ahead = input->looks_ahead && !fills_message(input);
    const uint32_t wanted = input->packet_bytes + (ahead ? 1 : 0);
    ssize_t count = read(input->descriptor, input->packet + input->bytes, wanted - input->bytes);
    if (count < 0)
        return errno == EINTR || errno == EAGAIN ? CORE_OK : core_error_errno(error, "%s", input->name);
    if (count == 0)
        return finish(input);
    input->bytes += (uint32_t)count;
    if (input->bytes < wanted)
        return CORE_OK;
    input->has_ahead = ahead;
    input->bytes = input->packet_bytes;
    complete(input);
    return CORE_OK;
}

void encrypt_input_next(struct encrypt_input *input)
{
    input->bytes = input->has_ahead ? 1 : 0;
    if (input->has_ahead)
        input->packet[0] = input->packet[input->packet_bytes];
    input->has_ahead = input->complete = false;
    input->number++;
}

void encrypt_input_close(struct encrypt_input *input)
{
    free(input->packet);
    if (input->descriptor > STDIN_FILENO)
        close(input->descriptor);
}

/* ---- output ---- */

static core_status find_last_block(struct encrypt_output *output, uint64_t skip, uint32_t padded_bytes,
                                   struct core_error *error)
{
    struct stat status;
    if (__builtin_mul_overflow(skip, (uint64_t)padded_bytes, &output->kept_bytes) ||
        output->kept_bytes > INT64_MAX || fstat(fileno(output->file), &status) != 0 ||
        (uint64_t)status.st_size < output->kept_bytes)
        return core_error_set(error, CORE_INVALID,
                              "%s does not hold the %" PRIu64 " packets of %" PRIu32 " bytes to go on after",
                              output->name, skip, padded_bytes);
    if (fseeko(output->file, (off_t)output->kept_bytes - CORE_BLOCK_BYTES, SEEK_SET) != 0 ||
        fread(output->last_block, 1, CORE_BLOCK_BYTES, output->file) != CORE_BLOCK_BYTES)
        return core_error_errno(error, "%s", output->name);
    return CORE_OK;
}

static core_status open_file(struct encrypt_output *output, int flags, const char *mode,
                             struct core_error *error)
{
    int descriptor = open(output->name, flags | O_CLOEXEC, 0666);
    output->file = descriptor < 0 ? NULL : fdopen(descriptor, mode);
    if (output->file == NULL)
        return core_error_errno(error, "%s", output->name);
    setvbuf(output->file, NULL, _IOFBF, 1 << 18);
    return CORE_OK;
}

core_status encrypt_output_open(struct encrypt_output *output, const char *path, uint64_t skip,
                                uint32_t padded_bytes, struct core_error *error)
{
    *output = (struct encrypt_output){.file = stdout, .name = "standard output"};
    if (is_standard(path))
        return CORE_OK;
    *output = (struct encrypt_output){.name = path};
    if (skip == 0)
        return CORE_OK;
    core_status status = open_file(output, O_RDWR, "r+b", error);
    return status ? status : find_last_block(output, skip, padded_bytes, error);
}

/* Of two files, or of a file and what the output is redirected to. */
static bool is_same_file(int input, const struct stat *output)
{
    struct stat status;
    return S_ISREG(output->st_mode) && fstat(input, &status) == 0 && status.st_dev == output->st_dev &&
           status.st_ino == output->st_ino;
}

core_status encrypt_output_check(const struct encrypt_output *output, const struct encrypt_input *input,
                                 struct core_error *error)
{
    struct stat status;
    bool there = (output->file == stdout ? fstat(STDOUT_FILENO, &status) : stat(output->name, &status)) == 0;
    if (there && is_same_file(input->descriptor, &status))
        return core_error_set(error, CORE_INVALID,
                              "%s is input and output: it would be overwritten before it is read; write to "
                              "another file",
                              input->name);
    return CORE_OK;
}

core_status encrypt_output_start(struct encrypt_output *output, struct core_error *error)
{
    off_t kept = (off_t)output->kept_bytes;
    if (output->file == NULL)
        return open_file(output, O_WRONLY | O_CREAT | O_TRUNC, "wb", error);
    if (kept > 0 && (ftruncate(fileno(output->file), kept) != 0 || fseeko(output->file, kept, SEEK_SET) != 0))
        return core_error_errno(error, "%s", output->name);
    return CORE_OK;
}

static core_status write_bytes(struct encrypt_output *output, const uint8_t *bytes, uint32_t count,
                               struct core_error *error)
{
    return fwrite(bytes, 1, count, output->file) == count ? CORE_OK
                                                          : core_error_errno(error, "%s", output->name);
}

static core_status write_held(struct encrypt_output *output, struct core_error *error)
{
    const bool held = output->held;
    output->held = false;
    return held ? write_bytes(output, output->last_block, CORE_BLOCK_BYTES, error) : CORE_OK;
}

core_status encrypt_output_write(struct encrypt_output *output, const uint8_t *ciphertext, uint32_t bytes,
                                 struct core_error *error)
{
    if (bytes < CORE_BLOCK_BYTES) /* a clear end, or nothing: no block, and none is held back with those */
        return write_bytes(output, ciphertext, bytes, error);
    const uint32_t now = output->strips ? bytes - CORE_BLOCK_BYTES : bytes;
    core_status status = write_held(output, error);
    if (status == CORE_OK)
        status = write_bytes(output, ciphertext, now, error);
    memcpy(output->last_block, ciphertext + bytes - CORE_BLOCK_BYTES, CORE_BLOCK_BYTES);
    output->held = output->strips;
    return status;
}

/* How much of the last block is content: RFC 5652, section 6.3. */
static core_status strip(struct encrypt_output *output, uint32_t *content_bytes, struct core_error *error)
{
    const uint32_t padding = output->last_block[CORE_BLOCK_BYTES - 1];
    bool right = output->held && padding >= 1 && padding <= CORE_BLOCK_BYTES;
    for (uint32_t i = 0; right && i < padding; i++)
        right = output->last_block[CORE_BLOCK_BYTES - 1 - i] == padding;
    *content_bytes = CORE_BLOCK_BYTES - padding;
    return right
               ? CORE_OK
               : core_error_set(error, CORE_INVALID,
                                "there is no padding at the end: another key or IV, or it was changed; with "
                                "--padding=none nothing is taken off");
}

core_status encrypt_output_close(struct encrypt_output *output, bool complete, struct core_error *error)
{
    FILE *file = output->file;
    uint32_t content_bytes;
    core_status status = CORE_OK;
    if (file == NULL)
        return CORE_OK;
    if (complete && output->strips && (status = strip(output, &content_bytes, error)) == CORE_OK) {
        output->held = false;
        status = write_bytes(output, output->last_block, content_bytes, error);
    } else if (output->held) {
        const core_status held = write_held(output, status ? NULL : error);
        status = status ? status : held;
    }
    output->file = NULL;
    if ((fflush(file) != 0 || (file != stdout && fclose(file) != 0)) && status == CORE_OK)
        return core_error_errno(error, "%s", output->name);
    return status;
}
