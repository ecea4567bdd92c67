#include "client/hls/contract.h"

static uint32_t packet_bytes_of(const struct millrace_welcome *welcome)
{
    uint32_t bytes =
        welcome->packet_bytes_max < HLS_PACKET_BYTES ? welcome->packet_bytes_max : HLS_PACKET_BYTES;
    return bytes / CORE_BLOCK_BYTES * CORE_BLOCK_BYTES;
}

static uint32_t least(uint64_t one, uint64_t two)
{
    return (uint32_t)(one < two ? one : two);
}

static core_ns within(double value_ns, core_ns minimum_ns, core_ns maximum_ns)
{
    return value_ns < (double)minimum_ns   ? minimum_ns
           : value_ns > (double)maximum_ns ? maximum_ns
                                           : (core_ns)value_ns;
}

/* Of a file with its IV before it. */
static uint64_t packets_of(const struct hls_pace *pace, uint32_t packet_bytes)
{
    uint64_t bytes = (uint64_t)((double)pace->bytes * HLS_HEADROOM) + CORE_BLOCK_BYTES;
    return pace->bytes == 0 ? 0 : (bytes + packet_bytes - 1) / packet_bytes;
}

void hls_contract(const struct hls_pace paces[HLS_KINDS], core_ns wait_ns,
                  const struct millrace_welcome *welcome, struct core_stream_spec *spec)
{
    uint32_t packet_bytes = packet_bytes_of(welcome);
    uint64_t packets = 0;
    double packets_per_s = 0;
    for (int kind = 0; kind < HLS_KINDS; kind++) {
        uint64_t some = packets_of(&paces[kind], packet_bytes);
        packets += some;
        packets_per_s += some > 0 ? (double)some / paces[kind].every_s : 0;
    }
    if (packets == 0) { /* nothing but empty files so far */
        packets = 1;
        packets_per_s = 1;
    }
    uint32_t burst_max = least(welcome->burst_packets_max,
                               welcome->stream_buffer_bytes_max / (packet_bytes + CORE_BLOCK_BYTES));
    core_ns latency_ns = wait_ns;
    double interval_ns = 1e9 / packets_per_s;
    uint32_t burst = least(packets, burst_max > 0 ? burst_max : 1);
    if (burst < packets) {
        double paced_ns = (double)wait_ns / 2 / (double)(packets - burst);
        interval_ns = paced_ns < interval_ns ? paced_ns : interval_ns;
        latency_ns = wait_ns / 2;
    }
    core_ns shortest_ns =
        welcome->interval_ns_min > CORE_INTERVAL_NS_MIN ? welcome->interval_ns_min : CORE_INTERVAL_NS_MIN;
    *spec = (struct core_stream_spec){
        .packet_bytes = packet_bytes,
        .burst_packets = burst,
        .interval_ns = within(interval_ns, shortest_ns, CORE_INTERVAL_NS_MAX),
        .latency_ns = within((double)latency_ns, core_time_max(welcome->latency_ns_min, CORE_LATENCY_NS_MIN),
                             CORE_LATENCY_NS_MAX),
        .cipher = CORE_CIPHER_AES_128_CBC,
        .padding = CORE_PADDING_PKCS7,
        .unit = CORE_UNIT_MESSAGE,
        .iv = CORE_IV_EXPLICIT,
    };
}
