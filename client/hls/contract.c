#include "client/hls/contract.h"

static uint32_t packet_bytes_of(const struct protocol_welcome *welcome)
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

void hls_contract(size_t bytes, double target_s, bool has_parts, core_ns wait_ns,
                  const struct protocol_welcome *welcome, struct core_stream_spec *spec)
{
    uint32_t packet_bytes = packet_bytes_of(welcome);
    uint64_t packets =
        (uint64_t)((double)bytes * HLS_HEADROOM / packet_bytes) + 2; /* 1: the IV, 1: the rest */
    uint32_t burst_max = least(welcome->burst_packets_max,
                               welcome->stream_buffer_bytes_max / (packet_bytes + CORE_BLOCK_BYTES));
    core_ns latency_ns = wait_ns;
    double interval_ns = target_s * 1e9 / (double)(has_parts ? 2 * packets : packets);
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
