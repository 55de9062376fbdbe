/* rdma_port.h - one port of an RDMA device as files below /sys/class/infiniband, and the checks of a port
 * that is active. */
#ifndef WEFT_TOOLS_DOCTOR_RDMA_PORT_H
#define WEFT_TOOLS_DOCTOR_RDMA_PORT_H

#include "tools/doctor/machine.h"

struct doctor_port {
    const char *root, *device;
    char name[16];    /* "1" */
    char subject[80]; /* "mlx5_0:1" */
};

enum { DOCTOR_DEVICES_MAX = 64, DOCTOR_PORTS_MAX = 8 };

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
/* check_counters.c: errors, losses and congestion since the driver was loaded. */
void doctor_check_counters(struct doctor_report *report, const struct doctor_port *port);

#endif
