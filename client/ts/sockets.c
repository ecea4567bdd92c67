#include "client/ts/sockets.h"

#include <net/if.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BUFFER_BYTES  (8 << 20) /* of a socket: what comes while this process does not get a core */
#define CONTROL_BYTES 128

static bool set(int descriptor, int level, int option, int value)
{
    return setsockopt(descriptor, level, option, &value, sizeof value) == 0;
}

/* More than the system allows everybody, where it lets us. */
static void enlarge(int descriptor, int option, int forced_option)
{
    if (!set(descriptor, SOL_SOCKET, forced_option, BUFFER_BYTES))
        (void)set(descriptor, SOL_SOCKET, option, BUFFER_BYTES);
}

static core_status make(const struct config_ts_endpoint *endpoint, int *descriptor, unsigned *interface,
                        struct core_error *error)
{
    *interface = 0;
    if (endpoint->interface != NULL && (*interface = if_nametoindex(endpoint->interface)) == 0)
        return core_error_errno(error, "the interface %s", endpoint->interface);
    *descriptor = socket(endpoint->address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return *descriptor < 0 ? core_error_errno(error, "a socket") : CORE_OK;
}

static bool join(int descriptor, const struct config_ts_service *config, unsigned interface)
{
    const struct config_ts_endpoint *input = &config->input;
    int level = input->address.ss_family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6;
    struct group_req any = {.gr_interface = interface};
    struct group_source_req one = {.gsr_interface = interface};
    if (!config->has_source) {
        memcpy(&any.gr_group, &input->address, input->address_bytes);
        return setsockopt(descriptor, level, MCAST_JOIN_GROUP, &any, sizeof any) == 0;
    }
    memcpy(&one.gsr_group, &input->address, input->address_bytes);
    memcpy(&one.gsr_source, &config->source, input->address_bytes);
    return setsockopt(descriptor, level, MCAST_JOIN_SOURCE_GROUP, &one, sizeof one) == 0;
}

core_status ts_socket_input(const struct config_ts_service *config, int *descriptor, struct core_error *error)
{
    const struct config_ts_endpoint *input = &config->input;
    unsigned interface;
    int made;
    core_status status = make(input, &made, &interface, error);
    if (status)
        return core_error_prefix(error, status, "%s: its input", config->name);
    enlarge(made, SO_RCVBUF, SO_RCVBUFFORCE);
    bool is_ready = set(made, SOL_SOCKET, SO_TIMESTAMPNS, 1) && set(made, SOL_SOCKET, SO_RXQ_OVFL, 1) &&
                    (!input->is_group || set(made, SOL_SOCKET, SO_REUSEADDR, 1)) &&
                    bind(made, (const struct sockaddr *)&input->address, input->address_bytes) == 0 &&
                    (!input->is_group || join(made, config, interface));
    if (is_ready) {
        *descriptor = made;
        return CORE_OK;
    }
    status = core_error_errno(error, "%s: its input can not be received", config->name);
    close(made);
    return status;
}

core_status ts_socket_output(const struct config_ts_service *config, int *descriptor,
                             struct core_error *error)
{
    const struct config_ts_endpoint *output = &config->output;
    bool is_4 = output->address.ss_family == AF_INET;
    unsigned interface;
    int made;
    core_status status = make(output, &made, &interface, error);
    if (status)
        return core_error_prefix(error, status, "%s: its output", config->name);
    const struct ip_mreqn interface_4 = {.imr_ifindex = (int)interface};
    enlarge(made, SO_SNDBUF, SO_SNDBUFFORCE);
    bool is_ready = !output->is_group || (is_4 ? set(made, IPPROTO_IP, IP_MULTICAST_TTL, config->ttl)
                                               : set(made, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, config->ttl));
    if (interface > 0)
        is_ready = is_ready && (is_4 ? setsockopt(made, IPPROTO_IP, IP_MULTICAST_IF, &interface_4,
                                                  sizeof interface_4) == 0
                                     : set(made, IPPROTO_IPV6, IPV6_MULTICAST_IF, (int)interface));
    if (is_ready) {
        *descriptor = made;
        return CORE_OK;
    }
    status = core_error_errno(error, "%s: its output can not be sent", config->name);
    close(made);
    return status;
}

/* ---- datagrams ---- */

/* The two clocks are read one after the other, and not with a pause between them. */
core_ns ts_clock_offset_ns(void)
{
    core_ns offset_ns = 0, shortest_ns = CORE_NS_NEVER;
    for (int i = 0; i < 3 && shortest_ns > CORE_NS_PER_US; i++) {
        struct timespec now;
        core_ns before_ns = core_time_now_ns();
        clock_gettime(CLOCK_REALTIME, &now);
        core_ns pause_ns = core_time_now_ns() - before_ns;
        if (pause_ns < shortest_ns)
            offset_ns = before_ns + pause_ns / 2 - (now.tv_sec * CORE_NS_PER_S + now.tv_nsec);
        shortest_ns = core_time_min(shortest_ns, pause_ns);
    }
    return offset_ns;
}

static void read_control(struct msghdr *header, core_ns offset_ns, struct ts_arrival *arrival,
                         uint64_t *overflows)
{
    struct timespec stamp;
    for (struct cmsghdr *control = CMSG_FIRSTHDR(header); control != NULL;
         control = CMSG_NXTHDR(header, control)) {
        if (control->cmsg_level != SOL_SOCKET)
            continue;
        if (control->cmsg_type == SO_RXQ_OVFL)
            *overflows = *(const uint32_t *)(const void *)CMSG_DATA(control);
        if (control->cmsg_type == SCM_TIMESTAMPNS) {
            memcpy(&stamp, CMSG_DATA(control), sizeof stamp);
            core_ns in_ns = stamp.tv_sec * CORE_NS_PER_S + stamp.tv_nsec + offset_ns;
            arrival->in_ns = core_time_min(arrival->in_ns, in_ns);
        }
    }
}

unsigned ts_socket_receive(int descriptor, const struct iovec *rooms, unsigned count, core_ns offset_ns,
                           struct ts_arrival *arrivals, uint64_t *overflows)
{
    struct mmsghdr messages[TS_BATCH];
    _Alignas(struct cmsghdr) char controls[TS_BATCH][CONTROL_BYTES];
    for (unsigned i = 0; i < count; i++)
        messages[i].msg_hdr = (struct msghdr){.msg_iov = (struct iovec *)(uintptr_t)&rooms[i],
                                              .msg_iovlen = 1,
                                              .msg_control = controls[i],
                                              .msg_controllen = CONTROL_BYTES};
    int received = recvmmsg(descriptor, messages, count, MSG_DONTWAIT, NULL);
    core_ns now_ns = core_time_now_ns();
    for (int i = 0; i < received; i++) {
        bool is_cut = (messages[i].msg_hdr.msg_flags & MSG_TRUNC) != 0;
        arrivals[i] = (struct ts_arrival){.bytes = is_cut ? SIZE_MAX : messages[i].msg_len, .in_ns = now_ns};
        read_control(&messages[i].msg_hdr, offset_ns, &arrivals[i], overflows);
    }
    return received > 0 ? (unsigned)received : 0;
}

unsigned ts_socket_send(int descriptor, const struct config_ts_endpoint *to, const struct iovec *datagrams,
                        unsigned count)
{
    struct mmsghdr messages[TS_BATCH];
    for (unsigned i = 0; i < count; i++)
        messages[i].msg_hdr = (struct msghdr){.msg_name = (void *)(uintptr_t)&to->address,
                                              .msg_namelen = to->address_bytes,
                                              .msg_iov = (struct iovec *)(uintptr_t)&datagrams[i],
                                              .msg_iovlen = 1};
    int sent = sendmmsg(descriptor, messages, count, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent > 0 ? (unsigned)sent : 0;
}
