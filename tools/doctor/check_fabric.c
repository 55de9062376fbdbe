/* check_fabric.c - what the fabric decides for a port: partition, subnet, MTU, class of service; and the
 * rails of a host. See rdma_port.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/doctor/rdma_port.h"

enum { FULL_MEMBER = 0x8000, ARPHRD_IPOIB = 32, IPOIB_HEADER_BYTES = 4, IB_MTU_MAX = 4096 };

/* ---- partition ---- */

/* Queue pairs of weft use the first entry of the table of partition keys. */
void doctor_check_partition(struct doctor_report *report, const struct doctor_port *port)
{
    static const char advice[] = "give it full membership in the partition table of the subnet manager "
                                 "(opensm: partitions.conf, =full)";
    char text[32];
    if (!doctor_port_text(port, "pkeys/0", text, sizeof text) || !text[0]) return;
    const unsigned long key = strtoul(text, NULL, 0) & 0xffff;
    if ((key & ~(unsigned long)FULL_MEMBER) == 0)
        doctor_add_finding(report, DOCTOR_BROKEN, "rdma-pkey", port->subject, advice,
                           "no partition in the first entry (P_Key 0x%04lx): no queue pair can connect", key);
    else if (!(key & FULL_MEMBER))
        doctor_add_finding(report, DOCTOR_WARN, "rdma-pkey", port->subject, advice,
                           "limited member of partition 0x%04lx: it reaches full members only, not other "
                           "limited ones",
                           key);
    else
        doctor_add_finding(report, DOCTOR_OK, "rdma-pkey", port->subject, NULL,
                           "full member of partition 0x%04lx", key & ~(unsigned long)FULL_MEMBER);
}

/* ---- subnet and MTU of InfiniBand ---- */

static void check_prefix(struct doctor_report *report, const struct doctor_port *port)
{
    char gid[64];
    if (!doctor_port_text(port, "gids/0", gid, sizeof gid) || strlen(gid) != 39) return;
    if (strspn(gid, "0:") == 39) {
        doctor_add_finding(report, DOCTOR_BROKEN, "rdma-gid", port->subject,
                           "restart the subnet manager, or reload the driver of the card",
                           "the port has no GID");
        return;
    }
    const bool is_default = strncmp(gid, "fe80:0000:0000:0000:", 20) == 0;
    doctor_add_finding(report, DOCTOR_OK, "rdma-gid", port->subject, NULL, "subnet prefix %.19s%s", gid,
                       is_default ? " (the default)" : ": all hosts of a job need the same");
}

/* Datagram mode of IPoIB shows the MTU of the fabric: a datagram has 4 bytes less than a packet. */
static void check_ipoib(struct doctor_report *report, const struct doctor_port *port, const char *netdev)
{
    char path[160], mode[32];
    int64_t type, dev_port, mtu;
    snprintf(path, sizeof path, "/sys/class/net/%s/type", netdev);
    if (!machine_number(port->root, path, &type) || type != ARPHRD_IPOIB) return;
    snprintf(path, sizeof path, "/sys/class/net/%s/dev_port", netdev);
    if (machine_number(port->root, path, &dev_port) && dev_port + 1 != strtol(port->name, NULL, 10)) return;
    snprintf(path, sizeof path, "/sys/class/net/%s/mode", netdev);
    machine_text(port->root, path, mode, sizeof mode);
    snprintf(path, sizeof path, "/sys/class/net/%s/mtu", netdev);
    if (strcmp(mode, "datagram") != 0 || !machine_number(port->root, path, &mtu)) return;
    const bool is_small = mtu + IPOIB_HEADER_BYTES < IB_MTU_MAX;
    doctor_add_finding(report, is_small ? DOCTOR_WARN : DOCTOR_OK, "rdma-mtu", port->subject,
                       is_small ? "raise the MTU of the partition in the subnet manager (opensm: "
                                  "partitions.conf, mtu=5 for 4096), then restart the interface"
                                : NULL,
                       "%s has MTU %" PRId64 ": packets of the fabric have %" PRId64 " bytes", netdev, mtu,
                       mtu + IPOIB_HEADER_BYTES);
}

void doctor_check_subnet(struct doctor_report *report, const struct doctor_port *port)
{
    char names[8][64], path[160];
    check_prefix(report, port);
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/device/net", port->device);
    const size_t count = machine_list(port->root, path, names, 8);
    for (size_t i = 0; i < count; i++) check_ipoib(report, port, names[i]);
}

/* ---- class of service ---- */

/* The traffic class that the driver sets for all queue pairs, as in "Global tclass=106"; 0: none. */
static unsigned long forced_class(const struct doctor_port *port)
{
    char path[160], text[128];
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/tc/%s/traffic_class", port->device, port->name);
    if (!machine_text(port->root, path, text, sizeof text)) return 0;
    const char *value = strchr(text, '=');
    return strtoul(value ? value + 1 : text, NULL, 10);
}

void doctor_check_class(struct doctor_report *report, const struct doctor_port *port)
{
    char level[32] = "";
    if (!doctor_port_is_ethernet(port)) {
        doctor_port_text(port, "sm_sl", level, sizeof level);
        doctor_add_finding(
            report, DOCTOR_OK, "rdma-class", port->subject, NULL,
            "service level 0, unless transport.tune has verbs.sl=N; the subnet manager uses %s",
            level[0] ? level : "an unknown one");
        return;
    }
    const unsigned long forced = forced_class(port);
    if (forced)
        doctor_add_finding(report, DOCTOR_OK, "rdma-class", port->subject, NULL,
                           "the driver sets traffic class %lu (DSCP %lu) for all queue pairs", forced,
                           forced >> 2);
    else
        doctor_add_finding(
            report, DOCTOR_NOTE, "rdma-class", port->subject,
            "if switches treat one class as lossless (PFC) or mark it (ECN), name it on every member: "
            "transport.tune=verbs.tc=104 is DSCP 26",
            "packets have traffic class 0, unless transport.tune has verbs.tc=N: the class that a switch "
            "drops "
            "first");
}

/* ---- rails ---- */

size_t doctor_active_ports(const char *root, struct doctor_port *ports, size_t capacity)
{
    char devices[DOCTOR_DEVICES_MAX][64], names[DOCTOR_PORTS_MAX][64], path[160];
    const size_t device_count = machine_list(root, "/sys/class/infiniband", devices, DOCTOR_DEVICES_MAX);
    size_t count = 0;
    for (size_t i = 0; i < device_count; i++) {
        snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports", devices[i]);
        const size_t port_count = machine_list(root, path, names, DOCTOR_PORTS_MAX);
        for (size_t j = 0; j < port_count && count < capacity; j++)
            count += doctor_port_init(&ports[count], root, devices[i], names[j]) &&
                     doctor_port_is_active(&ports[count]);
    }
    return count;
}

void doctor_check_rails(struct doctor_report *report, const char *root)
{
    struct doctor_port *ports = calloc(DOCTOR_RAILS_MAX, sizeof *ports);
    const size_t count = ports ? doctor_active_ports(root, ports, DOCTOR_RAILS_MAX) : 0;
    size_t fast = 0, slow = 0;
    bool layers_differ = false;
    for (size_t i = 1; i < count; i++) {
        if (doctor_port_gbps(&ports[i]) > doctor_port_gbps(&ports[fast])) fast = i;
        if (doctor_port_gbps(&ports[i]) < doctor_port_gbps(&ports[slow])) slow = i;
        layers_differ |= doctor_port_is_ethernet(&ports[i]) != doctor_port_is_ethernet(&ports[0]);
    }
    if (count > 1 && (layers_differ || fast != slow))
        doctor_add_finding(
            report, DOCTOR_WARN, "rdma-rails", "machine",
            "name ports of one kind in transport.devices (mlx5_0:1,mlx5_1:1), the same on all hosts",
            "%zu active ports differ: %s has %.0f Gbit/s, %s has %.0f Gbit/s%s; each rail carries the same "
            "share of a message",
            count, ports[fast].subject, doctor_port_gbps(&ports[fast]), ports[slow].subject,
            doctor_port_gbps(&ports[slow]), layers_differ ? ", InfiniBand and Ethernet" : "");
    else if (count > 1)
        doctor_add_finding(report, DOCTOR_NOTE, "rdma-rails", "machine",
                           "name several in transport.devices (mlx5_0:1,mlx5_1:1), in the same order on "
                           "all hosts, or set transport.tune=verbs.rails=N",
                           "%zu equal active ports; a job uses one of them", count);
    free(ports);
}
