/* transport_try.h - a try of one transport between two processes, on one host or two: open, connect, measure.
 *
 * Both sides run the same steps over one stream socket; every wait has a deadline.
 *
 *   open ─► my record ◄─► their record ─► connect ─► probe (transport/probe) ─► done ◄─► done ─► close */
#ifndef WEFT_TOOLS_DOCTOR_TRANSPORT_TRY_H
#define WEFT_TOOLS_DOCTOR_TRANSPORT_TRY_H

#include "tools/doctor/finding.h"
#include "transport/transport.h"

enum { DOCTOR_LANE_MAX = WEFT_LINK_LANE_BYTES };

struct doctor_try_args {
    const char *lane;    /* "shm", "ucx:tcp" ..., as for `weft bench p2p --transport` */
    const char *devices; /* NULL: the default of the transport */
    const char *secret;  /* the same on both sides; NULL: none */
    uint64_t nonce;      /* the same on both sides */
    bool first;          /* this side measures */
    int fd;              /* the socket to the other side */
    uint32_t deadline_s; /* of each step, seconds */
};

struct doctor_try_result {
    enum weft_status status;
    bool absent; /* this build or machine has no such transport: no fault */
    uint64_t latency_ns, out_bytes_per_second, in_bytes_per_second;
    char text[520]; /* the transport that works, or the reason and the side that reports it */
};

/* Between hosts these lanes require the name of the interface that leads to the other host; other lanes find
 * it. */
static inline bool doctor_lane_needs_device(const char *lane)
{
    return strncmp(lane, "ucx", 3) == 0 || strcmp(lane, "auto") == 0 || strcmp(lane, "tcp") == 0;
}

/* Blocks, at most for a few deadlines. */
void doctor_try(const struct doctor_try_args *plan, struct doctor_try_result *result);

/* The same in a child process, which is killed if a step exceeds its deadline. False: the child was killed or
 * died, and the socket to the other side is of no more use. */
bool doctor_try_in_child(const struct doctor_try_args *plan, struct doctor_try_result *result);
/* A try between two processes of this host; both have ended on return. */
void doctor_try_on_host(const char *lane, const char *devices, uint32_t deadline_s,
                        struct doctor_try_result *result);
/* Whether a process of this user may read the memory of another one (process_vm_readv). 0, or an errno. */
int doctor_check_cma(void);

/* Sends or receives a whole message; `seconds` limits all of it. False: the connection is lost, or the time
 * is over. */
bool doctor_send_all(int fd, const void *data, size_t bytes, uint32_t seconds);
bool doctor_recv_all(int fd, void *data, size_t bytes, uint32_t seconds);

#endif
