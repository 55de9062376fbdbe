/* transport_try.h - a real try of one transport between two processes, here or on two hosts: open, connect,
 * measure.
 *
 * Both sides run the same steps over one stream socket that joins them; every wait has a deadline.
 *
 *   open ─► my record ◄─► their record ─► connect ─► probe (transport/probe) ─► done ◄─► done ─► close */
#ifndef WEFT_TOOLS_DOCTOR_TRANSPORT_TRY_H
#define WEFT_TOOLS_DOCTOR_TRANSPORT_TRY_H

#include "tools/doctor/finding.h"
#include "transport/transport.h"

enum { DOCTOR_LANE_MAX = WEFT_LINK_LANE_BYTES };

struct doctor_try_args {
    const char *lane;        /* "shm", "ucx:tcp" ... as `weft bench p2p --transport` */
    const char *devices;     /* NULL: the transport's default */
    const char *secret;      /* of both; NULL: none */
    uint64_t nonce;          /* the same on both sides */
    bool first;              /* this side measures */
    int fd;                  /* the socket to the other side */
    uint32_t deadline_s;     /* of each step */
};

struct doctor_try_result {
    enum weft_status status;
    bool absent;             /* this build or machine has no such transport: nothing is wrong */
    uint64_t latency_ns, out_bytes_per_second, in_bytes_per_second;
    char text[520];          /* the way, or why not, with the side that said so */
};

/* Between hosts it wants the name of the interface that leads to the other one; the rest finds its way by
 * itself. */
static inline bool doctor_lane_needs_device(const char *lane)
{
    return strncmp(lane, "ucx", 3) == 0 || strcmp(lane, "auto") == 0 || strcmp(lane, "tcp") == 0;
}

/* Blocks, for a few deadlines at most. */
void doctor_try(const struct doctor_try_args *plan, struct doctor_try_result *result);

/* The same in a process of its own, which is ended when a step blocks for longer than its deadline allows.
 * False: it was, or died; the socket to the other side is then of no more use. */
bool doctor_try_in_child(const struct doctor_try_args *plan, struct doctor_try_result *result);
/* Two processes of this host; they end before it returns. */
void doctor_try_on_host(const char *lane, const char *devices, uint32_t deadline_s,
                     struct doctor_try_result *result);
/* Can one process of this user read another's memory? 0, or an errno. */
int doctor_check_cma(void);

/* Whole messages over a socket; `seconds` for all of it, however it trickles. False: gone, or too late. */
bool doctor_send_all(int fd, const void *data, size_t bytes, uint32_t seconds);
bool doctor_recv_all(int fd, void *data, size_t bytes, uint32_t seconds);

#endif
