/* check_counters.c - counters of a port since its driver was loaded; see rdma_port.h. Each group is one
 * finding: the counters that are above their limit, and one remedy.
 *
 * Single errors over months are normal, so that some counters have a limit above 0. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/doctor/rdma_port.h"

struct counter {
    const char *file; /* below the folder of the port; NULL: the end */
    int64_t limit;    /* not reported up to this value */
};

/* A cable, a transceiver or a switch port that damages packets. */
static const struct counter physical[] = {
    {"counters/symbol_error", 10},
    {"counters/link_error_recovery", 0},
    {"counters/link_downed", 3},
    {"counters/local_link_integrity_errors", 0},
    {"counters/port_rcv_errors", 0},
    {"hw_counters/rx_icrc_encapsulated", 0},
    {NULL, 0},
};

/* Packets that were lost and had to be sent again. */
static const struct counter losses[] = {
    {"counters/port_xmit_discards", 0},   {"counters/excessive_buffer_overrun_errors", 0},
    {"hw_counters/packet_seq_err", 0},    {"hw_counters/local_ack_timeout_err", 0},
    {"hw_counters/rnr_nak_retry_err", 0}, {NULL, 0},
};

static const struct counter partitions[] = {
    {"counters/port_xmit_constraint_errors", 0},
    {"counters/port_rcv_constraint_errors", 0},
    {NULL, 0},
};

static const struct counter congestion[] = {
    {"counters/port_xmit_wait", 0},
    {"hw_counters/np_ecn_marked_roce_packets", 0},
    {"hw_counters/np_cnp_sent", 0},
    {"hw_counters/rp_cnp_handled", 0},
    {NULL, 0},
};

static int64_t read_counter(const struct doctor_port *port, const char *file)
{
    char path[256];
    int64_t value = 0;
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/%s/%s", port->device, port->name, file);
    return machine_number(port->root, path, &value) ? value : 0;
}

/* "symbol_error 120, link_downed 7"; false: none is above its limit. */
static bool list_counters(const struct doctor_port *port, const struct counter *counters, char *out,
                          size_t capacity)
{
    size_t at = 0;
    out[0] = 0;
    for (const struct counter *counter = counters; counter->file && at < capacity; counter++) {
        const int64_t value = read_counter(port, counter->file);
        if (value <= counter->limit) continue;
        at += (size_t)snprintf(out + at, capacity - at, "%s%s %" PRId64, at ? ", " : "",
                               strchr(counter->file, '/') + 1, value);
    }
    return at > 0;
}

/* With adaptive routing packets overtake each other, and the receiving card puts them in order without a
 * request to send again. */
static void check_routing(struct doctor_report *report, const struct doctor_port *port)
{
    const int64_t overtaken = read_counter(port, "hw_counters/out_of_sequence"),
                  again = read_counter(port, "hw_counters/packet_seq_err");
    if (overtaken > 0 && again == 0)
        doctor_add_finding(report, DOCTOR_NOTE, "rdma-routing", port->subject,
                           "nothing: weft relies on no order of writes; other software may",
                           "out_of_sequence %" PRId64 " and no packet was requested again: the fabric "
                           "routes adaptively",
                           overtaken);
    else if (overtaken > 0)
        doctor_add_finding(report, DOCTOR_WARN, "rdma-routing", port->subject,
                           "if the fabric routes adaptively, allow it on the cards of all hosts (mlxreg: "
                           "adaptive_routing_forced_en); otherwise see rdma-loss",
                           "out_of_sequence %" PRId64 ", and %" PRId64 " requests to send packets again: "
                           "packets are lost, or the cards take overtaken packets for lost ones",
                           overtaken, again);
    else
        doctor_add_finding(report, DOCTOR_OK, "rdma-routing", port->subject, NULL,
                           "no packet has overtaken another");
}

void doctor_check_counters(struct doctor_report *report, const struct doctor_port *port)
{
    static const struct {
        const struct counter *counters;
        const char *id, *meaning, *advice;
        enum doctor_level level;
    } groups[] = {
        {physical, "rdma-link-errors", "the link damages packets or has failed",
         "clean or replace the cable or transceiver, then another switch port; `perfquery -R` resets the "
         "counters, and a second look shows whether they rise",
         DOCTOR_WARN},
        {losses, "rdma-loss", "packets were lost and sent again",
         "Ethernet: one class with PFC or ECN on all hosts and switches, and transport.tune=verbs.tc=N; "
         "InfiniBand: a slow receiver or a bad link on the path (ibqueryerrors)",
         DOCTOR_WARN},
        {partitions, "rdma-partition-errors", "packets were dropped since their partition is not allowed",
         "compare the partition of all hosts and switches (rdma-pkey on each)", DOCTOR_WARN},
        {congestion, "rdma-congestion", "the port has waited for credits or was slowed down",
         "nothing while it rises slowly: other traffic or a slow receiver shares the path; weft bench fleet "
         "shows which",
         DOCTOR_NOTE},
    };
    char text[400];
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        const bool found = list_counters(port, groups[i].counters, text, sizeof text);
        doctor_add_finding(report, found ? groups[i].level : DOCTOR_OK, groups[i].id, port->subject,
                           found ? groups[i].advice : NULL, found ? "%s: %s" : "counters in order",
                           groups[i].meaning, text);
    }
    check_routing(report, port);
}

/* ---- rise while doctor works ---- */

/* Groups of errors, of which each rise matters. */
static const struct counter *const errors[] = {physical, losses, partitions};
enum { ERROR_GROUPS = sizeof errors / sizeof errors[0], COUNTERS_MAX = 16 };

struct doctor_counters {
    size_t count;
    struct {
        struct doctor_port port;
        int64_t values[COUNTERS_MAX]; /* in the order of the groups */
    } ports[DOCTOR_RAILS_MAX];
};

static void read_all(const struct doctor_port *port, int64_t *values)
{
    size_t at = 0;
    for (size_t group = 0; group < ERROR_GROUPS; group++)
        for (const struct counter *counter = errors[group]; counter->file && at < COUNTERS_MAX; counter++)
            values[at++] = read_counter(port, counter->file);
}

struct doctor_counters *doctor_counters_read(const char *root)
{
    struct doctor_counters *counters = calloc(1, sizeof *counters);
    struct doctor_port *ports = calloc(DOCTOR_RAILS_MAX, sizeof *ports);
    if (counters && ports) counters->count = doctor_active_ports(root, ports, DOCTOR_RAILS_MAX);
    for (size_t i = 0; counters && i < counters->count; i++) {
        counters->ports[i].port = ports[i];
        read_all(&ports[i], counters->ports[i].values);
    }
    free(ports);
    return counters;
}

void doctor_check_rise(struct doctor_report *report, const struct doctor_counters *before)
{
    for (size_t i = 0; before && i < before->count; i++) {
        const struct doctor_port *port = &before->ports[i].port;
        char text[400] = "";
        size_t at = 0, index = 0;
        for (size_t group = 0; group < ERROR_GROUPS; group++) {
            for (const struct counter *counter = errors[group]; counter->file && index < COUNTERS_MAX;
                 counter++, index++) {
                const int64_t rise = read_counter(port, counter->file) - before->ports[i].values[index];
                if (rise <= 0 || at >= sizeof text) continue;
                at += (size_t)snprintf(text + at, sizeof text - at, "%s%s by %" PRId64, at ? ", " : "",
                                       strchr(counter->file, '/') + 1, rise);
            }
        }
        if (at > 0)
            doctor_add_finding(report, DOCTOR_WARN, "rdma-rise", port->subject,
                               "the fault is present now: see rdma-link-errors, rdma-loss and "
                               "rdma-partition-errors of this port",
                               "errors rose while doctor tried transports: %s", text);
    }
}
