/* verbs_device.c - lists devices, ports, GIDs and MTUs, and chooses among them.
 *
 * A RoCE port has one GID per address of its network interface and RoCE version. RoCE v2 over IPv4 is
 * first, because switched networks are configured for it. A link-local address works within one subnet; v1
 * does not leave the switch. An InfiniBand port is addressed by LID; its first GID serves across routers. */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/verbs/device/verbs_device.h"

enum { GIDS_MAX = 256, PORTS_MAX = 256 };

static uint32_t mtu_bytes(enum ibv_mtu mtu)
{
    return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128u << mtu : 0;
}

static uint64_t port_speed(const struct ibv_port_attr *attr)
{
    static const struct {
        uint8_t code;
        uint32_t mega;
    } lanes[] = {{1, 2500},   {2, 5000},   {4, 10000},  {8, 10000},
                 {16, 14000}, {32, 25000}, {64, 50000}, {128, 100000}};
    static const uint32_t widths[][2] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
    uint64_t mega = 0, width = 0;
    for (size_t i = 0; i < sizeof lanes / sizeof *lanes; i++) {
        if (lanes[i].code == attr->active_speed) mega = lanes[i].mega;
    }
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        if (widths[i][0] == attr->active_width) width = widths[i][1];
    }
    return mega * width * 1000000u;
}

/* ---- GIDs ---- */

static bool gid_is_ipv4(const union ibv_gid *gid)
{
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return memcmp(gid->raw, mapped, sizeof mapped) == 0;
}

static bool gid_is_link_local(const union ibv_gid *gid)
{
    return gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
}

/* Higher is better; 0: unusable. */
static int gid_rank(const struct ibv_gid_entry *entry)
{
    static const union ibv_gid none;
    if (memcmp(&entry->gid, &none, sizeof none) == 0) return 0;
    if (entry->gid_type == IBV_GID_TYPE_ROCE_V2)
        return gid_is_ipv4(&entry->gid) ? 6 : gid_is_link_local(&entry->gid) ? 4 : 5;
    return gid_is_ipv4(&entry->gid) ? 3 : gid_is_link_local(&entry->gid) ? 1 : 2;
}

static void take_gid(struct verbs_port *port, const struct ibv_gid_entry *entry)
{
    port->gid_index = (int)entry->gid_index;
    port->gid_type = entry->gid_type == IBV_GID_TYPE_ROCE_V2 ? 2 : 0;
    port->gid = entry->gid;
    if (!entry->ndev_ifindex || !if_indextoname(entry->ndev_ifindex, port->interface)) port->interface[0] = 0;
}

static void pick_gid(struct ibv_context *context, int wanted, int count, struct verbs_port *port)
{
    int best = 0;
    port->gid_index = -1;
    for (int i = wanted >= 0 ? wanted : 0; i < (wanted >= 0 ? wanted + 1 : count) && i < GIDS_MAX; i++) {
        struct ibv_gid_entry entry;
        if (ibv_query_gid_ex(context, port->port, (uint32_t)i, &entry, 0) != 0) continue;
        int rank = gid_rank(&entry);
        if (!port->roce) rank = rank > 0; /* InfiniBand: the first */
        if (rank > best) {
            best = rank;
            take_gid(port, &entry);
        }
    }
    if (port->gid_index >= 0) return;
    if (wanted >= 0)
        snprintf(port->why_not, sizeof port->why_not, "port %u has no GID %d", port->port, wanted);
    else if (port->roce)
        snprintf(port->why_not, sizeof port->why_not,
                 "port %u has no GID: give its network interface an address", port->port);
}

/* ---- ports ---- */

static void list_port(struct ibv_context *context, const struct verbs_options *options,
                      struct verbs_port *port)
{
    struct ibv_port_attr attr;
    int failed = ibv_query_port(context, port->port, &attr);
    if (failed) {
        snprintf(port->why_not, sizeof port->why_not, "port %u cannot be asked: %s", port->port,
                 strerror(failed));
        return;
    }
    port->roce = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
    port->lid = attr.lid;
    port->mtu_bytes = mtu_bytes(attr.active_mtu);
    port->mtu_max_bytes = mtu_bytes(attr.max_mtu);
    port->bits_per_second = port_speed(&attr);
    if (options->mtu && options->mtu < port->mtu_bytes) port->mtu_bytes = options->mtu;
    pick_gid(context, options->gid_index, attr.gid_tbl_len, port);
    if (attr.state != IBV_PORT_ACTIVE) {
        snprintf(port->why_not, sizeof port->why_not, "port %u is %s", port->port,
                 ibv_port_state_str(attr.state));
    } else if (options->mtu > port->mtu_max_bytes || (options->mtu && options->mtu > port->mtu_bytes)) {
        snprintf(port->why_not, sizeof port->why_not, "port %u has an MTU of %u bytes, not %u", port->port,
                 port->mtu_bytes, options->mtu);
    } else if (!port->why_not[0] && !port->roce && !port->lid) {
        snprintf(port->why_not, sizeof port->why_not, "port %u has no LID: is a subnet manager running?",
                 port->port);
    }
    port->usable = !port->why_not[0];
}

static int compare_ports(const void *left, const void *right)
{
    const struct verbs_port *a = left, *b = right;
    if (a->usable != b->usable) return a->usable ? -1 : 1;
    if (a->bits_per_second != b->bits_per_second) return a->bits_per_second > b->bits_per_second ? -1 : 1;
    int by_name = strcmp(a->device, b->device);
    return by_name ? by_name : (int)a->port - (int)b->port;
}

static uint32_t list_device(struct ibv_device *device, const struct verbs_options *options,
                            struct verbs_port *ports, uint32_t capacity)
{
    const char *name = ibv_get_device_name(device);
    struct ibv_device_attr attr;
    struct ibv_context *context = ibv_open_device(device);
    int failed = context ? ibv_query_device(context, &attr) : errno;
    uint32_t count = 0;
    if (failed) {
        ports[0] = (struct verbs_port){.port = 1, .gid_index = -1};
        snprintf(ports[0].device, sizeof ports[0].device, "%s", name);
        snprintf(ports[0].why_not, sizeof ports[0].why_not,
                 "it cannot be opened: %s (may this user read and write /dev/infiniband?)", strerror(failed));
        count = 1;
    } else {
        for (; count < attr.phys_port_cnt && count < capacity; count++) {
            ports[count] = (struct verbs_port){.port = (uint8_t)(count + 1), .gid_index = -1};
            snprintf(ports[count].device, sizeof ports[count].device, "%s", name);
            list_port(context, options, &ports[count]);
        }
    }
    if (context) ibv_close_device(context);
    return count;
}

enum weft_status verbs_ports_list(struct weft_env *env, const struct verbs_options *options,
                                  struct verbs_port **ports_out, uint32_t *count_out)
{
    int device_count = 0;
    *ports_out = NULL;
    *count_out = 0;
    struct ibv_device **devices = ibv_get_device_list(&device_count); /* NULL: no kernel support */
    if (!devices || device_count == 0) {
        if (devices) ibv_free_device_list(devices);
        return WEFT_OK;
    }
    struct verbs_port *ports = weft_alloc_array(env, PORTS_MAX, sizeof *ports);
    uint32_t count = 0;
    for (int i = 0; ports && i < device_count && count < PORTS_MAX; i++)
        count += list_device(devices[i], options, ports + count, PORTS_MAX - count);
    ibv_free_device_list(devices);
    if (!ports) return WEFT_ERR_NO_MEMORY;
    qsort(ports, count, sizeof *ports, compare_ports);
    *ports_out = ports;
    *count_out = count;
    return WEFT_OK;
}

void verbs_port_describe(const struct verbs_port *port, char *out, size_t bytes)
{
    char address[INET6_ADDRSTRLEN] = "";
    if (gid_is_ipv4(&port->gid)) inet_ntop(AF_INET, port->gid.raw + 12, address, sizeof address);
    else inet_ntop(AF_INET6, port->gid.raw, address, sizeof address);
    if (!port->usable) {
        snprintf(out, bytes, "%s: %s", port->device, port->why_not);
    } else if (port->roce) {
        snprintf(out, bytes, "%s port %u (RoCE v%d, GID %d %s%s%s, MTU %u)", port->device, port->port,
                 port->gid_type == 2 ? 2 : 1, port->gid_index, address, port->interface[0] ? " on " : "",
                 port->interface, port->mtu_bytes);
    } else {
        snprintf(out, bytes, "%s port %u (InfiniBand, LID %u, MTU %u)", port->device, port->port, port->lid,
                 port->mtu_bytes);
    }
}
