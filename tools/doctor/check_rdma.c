/* check_rdma.c - checks of RDMA devices, ports, GIDs, placement and GPU memory; see machine.h. */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/doctor/rdma_port.h"

enum { GIDS_MAX = 256, CONFIG_BYTES = 4096, ROCE_MTU = 4200 };

bool doctor_port_init(struct doctor_port *port, const char *root, const char *device, const char *name)
{
    *port = (struct doctor_port){.root = root};
    if (strlen(name) >= sizeof port->name || strlen(device) >= sizeof port->device) return false;
    memcpy(port->name, name, strlen(name) + 1);
    memcpy(port->device, device, strlen(device) + 1);
    snprintf(port->subject, sizeof port->subject, "%s:%s", device, name);
    return true;
}

bool doctor_port_text(const struct doctor_port *port, const char *fact, char *out, size_t capacity)
{
    char path[256];
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/%s/%s", port->device, port->name, fact);
    return machine_text(port->root, path, out, capacity);
}

bool doctor_port_is_active(const struct doctor_port *port)
{
    char state[64];
    return doctor_port_text(port, "state", state, sizeof state) && strstr(state, "ACTIVE") != NULL &&
           strstr(state, "DEFER") == NULL;
}

bool doctor_port_is_ethernet(const struct doctor_port *port)
{
    char layer[32];
    return doctor_port_text(port, "link_layer", layer, sizeof layer) && strcmp(layer, "Ethernet") == 0;
}

double doctor_port_gbps(const struct doctor_port *port)
{
    char rate[64];
    return doctor_port_text(port, "rate", rate, sizeof rate) ? strtod(rate, NULL) : 0;
}

/* ---- GIDs ---- */

static bool is_null_gid(const char *gid)
{
    for (; *gid; gid++) {
        if (*gid != '0' && *gid != ':') return false;
    }
    return true;
}

static bool is_ipv4_gid(const char *gid)
{
    return strncmp(gid, "0000:0000:0000:0000:0000:ffff:", 30) == 0;
}
static bool is_link_local(const char *gid)
{
    return strncmp(gid, "fe80:", 5) == 0;
}

static void check_gids(struct doctor_report *report, const struct doctor_port *port)
{
    int usable = 0, version2 = 0, best = -1;
    char netdev[64] = "", netdev_of_best[64] = "";
    for (int i = 0; i < GIDS_MAX; i++) {
        char fact[48], gid[64], type[32];
        snprintf(fact, sizeof fact, "gids/%d", i);
        if (!doctor_port_text(port, fact, gid, sizeof gid)) break;
        if (is_null_gid(gid)) continue;
        usable++;
        snprintf(fact, sizeof fact, "gid_attrs/types/%d", i);
        if (!doctor_port_text(port, fact, type, sizeof type) || strcmp(type, "RoCE v2") != 0) continue;
        snprintf(fact, sizeof fact, "gid_attrs/ndevs/%d", i);
        doctor_port_text(port, fact, netdev, sizeof netdev);
        version2++;
        if (best < 0 || is_ipv4_gid(gid)) {
            if (best >= 0 && is_link_local(gid)) continue;
            best = i;
            memcpy(netdev_of_best, netdev, sizeof netdev);
        }
    }
    if (usable == 0) {
        doctor_add_finding(report, DOCTOR_BROKEN, "rdma-gid", port->subject,
                           "give its network device an address (`ip addr add`)", "RoCE without any GID");
    } else if (version2 == 0) {
        doctor_add_finding(report, DOCTOR_WARN, "rdma-gid", port->subject,
                           "give its network device an IPv4 or IPv6 address",
                           "%d GIDs, none of RoCE v2: packets cannot be routed", usable);
    } else {
        doctor_add_finding(report, DOCTOR_OK, "rdma-gid", port->subject, NULL, "GID %d (RoCE v2, %s) of %d",
                           best, netdev_of_best, usable);
    }
    int64_t mtu;
    char path[160];
    snprintf(path, sizeof path, "/sys/class/net/%s/mtu", netdev_of_best);
    if (netdev_of_best[0] && machine_number(port->root, path, &mtu)) {
        int64_t payload = mtu >= ROCE_MTU ? 4096 : mtu >= 2200 ? 2048 : mtu >= 1100 ? 1024 : 512;
        doctor_add_finding(
            report, payload < 4096 ? DOCTOR_WARN : DOCTOR_OK, "rdma-mtu", port->subject,
            payload < 4096
                ? "`ip link set DEVICE mtu 9000` on every host and switch: the path MTU becomes 4096"
                : NULL,
            "network device %s has MTU %" PRId64 ": path MTU %" PRId64, netdev_of_best, mtu, payload);
    }
}

/* ---- ports ---- */

static bool check_port(struct doctor_report *report, const struct doctor_port *port)
{
    char state[64] = "", rate[64] = "", layer[32] = "", lid[32] = "";
    doctor_port_text(port, "state", state, sizeof state);
    doctor_port_text(port, "rate", rate, sizeof rate);
    doctor_port_text(port, "link_layer", layer, sizeof layer);
    bool active = doctor_port_is_active(port), ethernet = doctor_port_is_ethernet(port);
    const char *word = strchr(state, ':');
    if (!active) {
        const char *advice = strstr(state, "INIT")
                                 ? "start a subnet manager (opensm), or check the one of the switch"
                             : strstr(state, "ARMED") ? "wait for the subnet manager"
                                                      : "plug the cable in, or bring the network device up";
        doctor_add_finding(report, DOCTOR_WARN, "rdma-port", port->subject, advice, "%s, port state is%s",
                           layer, word ? word + 1 : " unknown");
        return false;
    }
    doctor_add_finding(report, DOCTOR_OK, "rdma-port", port->subject, NULL, "active, %s, %s", layer, rate);
    if (strcasestr(rate, "1X") && !ethernet) {
        doctor_add_finding(report, DOCTOR_WARN, "rdma-rate", port->subject,
                           "reseat or replace the cable: a working one negotiates 4X",
                           "only one lane is up: %s", rate);
    }
    doctor_check_partition(report, port);
    doctor_check_class(report, port);
    doctor_check_counters(report, port);
    if (ethernet) {
        check_gids(report, port);
        return true;
    }
    doctor_check_subnet(report, port);
    if (doctor_port_text(port, "lid", lid, sizeof lid) && strtoul(lid, NULL, 0) == 0) {
        doctor_add_finding(report, DOCTOR_WARN, "rdma-port", port->subject, "check the subnet manager",
                           "active without a LID");
    }
    return true;
}

/* ---- PCIe ---- */

struct pcie {
    bool readable, relaxed, found;
    uint16_t control;
};

static uint16_t le16(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

/* Walks the capabilities of the configuration space to the one of PCI Express. */
static struct pcie read_pcie(const char *root, const char *device)
{
    struct pcie pcie = {0};
    char path[PATH_MAX];
    uint8_t config[CONFIG_BYTES];
    if (snprintf(path, sizeof path, "%s/sys/class/infiniband/%s/device/config", root, device) >=
        (int)sizeof path)
        return pcie;
    FILE *file = fopen(path, "re");
    size_t bytes = file ? fread(config, 1, sizeof config, file) : 0;
    if (file) fclose(file);
    if (bytes < 64) return pcie;
    pcie.readable = bytes > 64; /* an ordinary user can read only the first 64 bytes */
    if (!(le16(config + 6) & 0x10)) return pcie;
    size_t at = config[0x34] & 0xfc;
    for (int steps = 0; steps < 48 && at >= 64 && at + 10 <= bytes; steps++, at = config[at + 1] & 0xfc) {
        if (config[at] != 0x10) continue;
        pcie.found = true;
        pcie.control = le16(config + at + 8);
        pcie.relaxed = pcie.control & 0x10;
        break;
    }
    return pcie;
}

static bool device_text(const char *root, const char *device, const char *fact, char *out, size_t capacity)
{
    char path[256];
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/device/%s", device, fact);
    return machine_text(root, path, out, capacity);
}

static void check_pcie(struct doctor_report *report, const char *root, const char *device)
{
    char speed[64], speed_max[64], width[32], width_max[32];
    struct pcie pcie = read_pcie(root, device);
    if (pcie.found) {
        doctor_add_finding(
            report, pcie.relaxed ? DOCTOR_OK : DOCTOR_WARN, "pcie-relaxed", device,
            pcie.relaxed ? NULL
                         : "allow it in the firmware's set-up (PCIe relaxed ordering), or `setpci -s SLOT "
                           "CAP_EXP+8.w=0010:0010`",
            "relaxed ordering is %s",
            pcie.relaxed
                ? "allowed"
                : "off: writes into memory wait for each other, much bandwidth is lost on some hosts");
    } else if (device_text(root, device, "vendor", speed, sizeof speed)) {
        doctor_add_finding(report, DOCTOR_NOTE, "pcie-relaxed", device,
                           pcie.readable ? "nothing: not every card is on PCI Express"
                                         : "run doctor as root once to see it",
                           "relaxed ordering: %s",
                           pcie.readable ? "no PCI Express device" : "an ordinary user may not read it");
    }
    if (!device_text(root, device, "current_link_speed", speed, sizeof speed) ||
        !device_text(root, device, "max_link_speed", speed_max, sizeof speed_max) ||
        !device_text(root, device, "current_link_width", width, sizeof width) ||
        !device_text(root, device, "max_link_width", width_max, sizeof width_max))
        return;
    bool slower = strtod(speed, NULL) < strtod(speed_max, NULL) ||
                  strtol(width, NULL, 10) < strtol(width_max, NULL, 10);
    doctor_add_finding(report, slower ? DOCTOR_WARN : DOCTOR_OK, "pcie-link", device,
                       slower ? "another slot, or reseat the card" : NULL, "%s x%s%s%s%s%s", speed, width,
                       slower ? "; the card can do " : "", slower ? speed_max : "", slower ? " x" : "",
                       slower ? width_max : "");
}

/* ---- placement ---- */

/* Checks that this process may run on a processor of the NUMA node of the device. */
static void check_numa(struct doctor_report *report, const char *root, const char *device)
{
    char status[8192], cpus[512], path[96];
    int64_t node;
    char text[32];
    if (!device_text(root, device, "numa_node", text, sizeof text) || (node = strtol(text, NULL, 10)) < 0)
        return;
    snprintf(path, sizeof path, "/sys/devices/system/node/node%" PRId64 "/cpulist", node);
    machine_text(root, "/proc/self/status", status, sizeof status);
    const char *allowed = strstr(status, "Cpus_allowed_list:");
    char list[512] = "";
    if (allowed) sscanf(allowed + strlen("Cpus_allowed_list:"), " %511s", list);
    if (!machine_text(root, path, cpus, sizeof cpus) || !list[0]) return;
    bool near = false;
    for (uint32_t cpu = 0; cpu < 4096 && !near; cpu++)
        near = machine_in_list(cpus, cpu) && machine_in_list(list, cpu);
    doctor_add_finding(
        report, near ? DOCTOR_OK : DOCTOR_WARN, "numa", device,
        near ? NULL
             : "run the rank that drives it on that node (`numactl -N NODE -m NODE`), or give it "
               "another --devices",
        "is on NUMA node %" PRId64 " (processors %s)%s%s", node, cpus,
        near ? "" : "; this process may only run on ", near ? "" : list);
}

/* ---- all checks ---- */

static bool check_verbs_file(struct doctor_report *report, const char *root, const char *device)
{
    char names[DOCTOR_DEVICES_MAX][64], path[160], owner[64];
    size_t count = machine_list(root, "/sys/class/infiniband_verbs", names, DOCTOR_DEVICES_MAX);
    for (size_t i = 0; i < count; i++) {
        snprintf(path, sizeof path, "/sys/class/infiniband_verbs/%s/ibdev", names[i]);
        if (!machine_text(root, path, owner, sizeof owner) || strcmp(owner, device) != 0) continue;
        char file[PATH_MAX];
        snprintf(file, sizeof file, "%s/dev/infiniband/%s", root, names[i]);
        if (access(file, R_OK | W_OK) == 0) return true;
        doctor_add_finding(report, DOCTOR_BROKEN, "rdma-access", device,
                           machine_exists(root, "/dev/infiniband")
                               ? "add the user to the group of /dev/infiniband (often rdma)"
                               : "give the container the devices: --device=/dev/infiniband",
                           "this user may not open /dev/infiniband/%s", names[i]);
        return false;
    }
    doctor_add_finding(report, DOCTOR_BROKEN, "rdma-access", device, "`modprobe ib_uverbs`",
                       "has no verbs device: the kernel module ib_uverbs is not loaded");
    return false;
}

static bool check_device(struct doctor_report *report, const char *root, const char *device)
{
    char ports[DOCTOR_PORTS_MAX][64], path[160], parent[64];
    bool active = false, open = check_verbs_file(report, root, device);
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports", device);
    size_t count = machine_list(root, path, ports, DOCTOR_PORTS_MAX);
    for (size_t i = 0; i < count; i++) {
        struct doctor_port port;
        if (!doctor_port_init(&port, root, device, ports[i])) continue;
        active = check_port(report, &port) || active;
    }
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/parent", device);
    if (machine_text(root, path, parent, sizeof parent))
        doctor_add_finding(report, DOCTOR_NOTE, "rdma-emulated", device,
                           "nothing for a test of addresses and set-up; measure speed on a real card",
                           "emulated by the kernel over %s: its speed, losses and counters are not those of "
                           "a card",
                           parent);
    check_pcie(report, root, device);
    check_numa(report, root, device);
    return active && open;
}

bool doctor_check_rdma(struct doctor_report *report, const char *root, bool need_rdma)
{
    char names[DOCTOR_DEVICES_MAX][64];
    size_t count = machine_list(root, "/sys/class/infiniband", names, DOCTOR_DEVICES_MAX);
    bool usable = false;
    for (size_t i = 0; i < count; i++) usable = check_device(report, root, names[i]) || usable;
    doctor_check_rails(report, root);
    if (count == 0) {
        doctor_add_finding(
            report, need_rdma ? DOCTOR_BROKEN : DOCTOR_NOTE, "rdma-device", "machine",
            "with a card in it: load its driver (mlx5_ib, irdma, ...); without: `rdma link add rxe0 "
            "type rxe netdev DEVICE` emulates one",
            "no RDMA device: verbs cannot be used");
    } else if (!usable && need_rdma) {
        doctor_add_finding(report, DOCTOR_BROKEN, "rdma-device", "machine", "see the lines above",
                           "none of %zu RDMA devices can be used", count);
    }
    return usable;
}

void doctor_check_accelerator(struct doctor_report *report, const char *root, bool has_rdma)
{
    char version[512], release[128] = "";
    if (!machine_text(root, "/proc/driver/nvidia/version", version, sizeof version)) {
        doctor_add_finding(report, DOCTOR_NOTE, "gpu-memory", "nvidia",
                           "with a card in it: install its driver",
                           "no NVIDIA driver: buffers are host memory");
        return;
    }
    machine_text(root, "/proc/sys/kernel/osrelease", release, sizeof release);
    int major = 0, minor = 0;
    bool open_module = strstr(version, "Open Kernel Module") != NULL,
         peermem = machine_exists(root, "/sys/module/nvidia_peermem");
    bool dmabuf = open_module && sscanf(release, "%d.%d", &major, &minor) == 2 &&
                  (major > 5 || (major == 5 && minor >= 12));
    if (!has_rdma)
        doctor_add_finding(report, DOCTOR_NOTE, "gpu-memory", "nvidia",
                           "an RDMA card on the GPU's PCI Express switch, for traffic between hosts",
                           "no usable RDMA device: GPU memory is staged through the host");
    else if (dmabuf)
        doctor_add_finding(report, DOCTOR_OK, "gpu-memory", "nvidia", NULL,
                           "the card can reach GPU memory by dma-buf (kernel %s)", release);
    else if (peermem)
        doctor_add_finding(report, DOCTOR_OK, "gpu-memory", "nvidia", NULL,
                           "the card can reach GPU memory by nvidia_peermem");
    else
        doctor_add_finding(
            report, DOCTOR_WARN, "gpu-memory", "nvidia",
            "`modprobe nvidia_peermem`, or the open kernel modules on Linux 5.12 or later (dma-buf)",
            "neither dma-buf nor nvidia_peermem: GPU memory is staged through the host");
}
