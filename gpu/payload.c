#include "gpu/payload.h"

#include <stddef.h>
#include <string.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ORDINARY
#endif
#endif
#if !defined(__SSE2__) || defined(__SANITIZE_THREAD__)
#define ORDINARY
#endif

#ifdef ORDINARY

void gpu_payload_write(uint8_t *input, const uint8_t *payload, uint32_t bytes)
{
    memcpy(input, payload, bytes);
}

#else

#include <emmintrin.h>

#define LINE_BYTES 64u

/* A whole line at once: parts of one would each be a write to memory. */
static void line_write(uint8_t *line, const uint8_t *from)
{
    const __m128i *source = (const __m128i *)(const void *)from;
    __m128i *target = (__m128i *)(void *)line;
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);

    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
}

/* Lines at both ends, of which others may have a part, are written the ordinary way. */
void gpu_payload_write(uint8_t *input, const uint8_t *payload, uint32_t bytes)
{
    if (bytes < GPU_PAYLOAD_LONG_BYTES) {
        memcpy(input, payload, bytes);
        return;
    }
    size_t done = -(uintptr_t)input % LINE_BYTES;

    memcpy(input, payload, done);
    for (; bytes - done >= LINE_BYTES; done += LINE_BYTES)
        line_write(input + done, payload + done);
    memcpy(input + done, payload + done, bytes - done);
    _mm_sfence(); /* a release orders ordinary stores only */
}

#endif
