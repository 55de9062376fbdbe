/* rdma_port.h - one port of an RDMA device as files below /sys/class/infiniband, and the checks of a port
 * that is active. */
#ifndef WEFT_TOOLS_DOCTOR_RDMA_PORT_H
#define WEFT_TOOLS_DOCTOR_RDMA_PORT_H

#include "tools/doctor/machine.h"

struct doctor_port {
    const char *root; /* borrowed */
    char device[64];
    char name[16];    /* "1" */
    char subject[80]; /* "mlx5_0:1" */
};

enum { DOCTOR_DEVICES_MAX = 64, DOCTOR_PORTS_MAX = 8, DOCTOR_RAILS_MAX = 128 };

/* A file of the port, such as "state" or "counters/symbol_error". False: it cannot be read. */
bool doctor_port_text(const struct doctor_port *port, const char *fact, char *out, size_t capacity);
/* The port with this name of a device. False: the name is too long. */
bool doctor_port_init(struct doctor_port *port, const char *root, const char *device, const char *name);
bool doctor_port_is_active(const struct doctor_port *port);
bool doctor_port_is_ethernet(const struct doctor_port *port);
/* Gbit/s of the file "rate"; 0: unknown. */
double doctor_port_gbps(const struct doctor_port *port);

/* check_fabric.c: partition; subnet prefix and MTU of InfiniBand; service level or traffic class. */
void doctor_check_partition(struct doctor_report *report, const struct doctor_port *port);
void doctor_check_subnet(struct doctor_report *report, const struct doctor_port *port);
void doctor_check_class(struct doctor_report *report, const struct doctor_port *port);
/* Compares the active ports of all devices. */
void doctor_check_rails(struct doctor_report *report, const char *root);
/* Writes the active ports of all devices, at most `capacity`; returns their number. */
size_t doctor_active_ports(const char *root, struct doctor_port *ports, size_t capacity);
/* check_counters.c: errors, losses and congestion since the driver was loaded. */
void doctor_check_counters(struct doctor_report *report, const struct doctor_port *port);
/* Error counters of the active ports now, for a comparison; free with free(). NULL: none, or no memory. */
struct doctor_counters *doctor_counters_read(const char *root);
/* A finding for each port of which error counters have risen since `before` (NULL: no finding). */
void doctor_check_rise(struct doctor_report *report, const struct doctor_counters *before);
/* compare_hosts.c: findings of two hosts that must be equal. The first `own_count` are of this host,
 * those from index `first` on are of `target`. */
void doctor_compare_hosts(struct doctor_report *report, const char *target, size_t own_count, size_t first);

#endif
