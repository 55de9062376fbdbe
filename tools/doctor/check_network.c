/* check_network.c - checks of Ethernet devices, TCP settings and packet filters; see machine.h. */
#include <inttypes.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tools/doctor/machine.h"

enum { DEVICES_MAX = 64, FAST_MBIT = 10000, JUMBO_MTU = 9000, BUFFER_WANTED = 4 << 20 };

static bool device_number(const char *root, const char *device, const char *fact, int64_t *out)
{
    char path[160];
    snprintf(path, sizeof path, "/sys/class/net/%s/%s", device, fact);
    return machine_number(root, path, out);
}

static void check_device(struct doctor_report *report, const char *root, const char *device, bool *fast_out)
{
    char path[160], state[32] = "";
    int64_t mtu = 0, speed = -1, kind = 0;
    snprintf(path, sizeof path, "/sys/class/net/%s/operstate", device);
    machine_text(root, path, state, sizeof state);
    snprintf(path, sizeof path, "/sys/class/net/%s/device", device);
    /* virtual devices (lo, bridges, tunnels) depend on the physical ones */
    if (!machine_exists(root, path)) return;
    /* not Ethernet; check_rdma.c has InfiniBand */
    if (device_number(root, device, "type", &kind) && kind != 1) return;
    if (strcmp(state, "up") != 0) {
        doctor_add_finding(report, DOCTOR_NOTE, "net-device", device,
                           "`ip link set DEVICE up`, if it is to carry anything", "is %s",
                           state[0] ? state : "in an unknown state");
        return;
    }
    device_number(root, device, "mtu", &mtu);
    device_number(root, device, "speed", &speed);
    bool fast = speed >= FAST_MBIT;
    *fast_out = *fast_out || fast;
    char rate[32] = "unknown speed";
    if (speed > 0) snprintf(rate, sizeof rate, "%" PRId64 " Mbit/s", speed);
    if (mtu >= JUMBO_MTU) {
        doctor_add_finding(report, DOCTOR_OK, "net-mtu", device, NULL, "MTU %" PRId64 ", %s", mtu, rate);
    } else {
        doctor_add_finding(
            report, fast ? DOCTOR_WARN : DOCTOR_NOTE, "net-mtu", device,
            fast ? "`ip link set DEVICE mtu 9000` on every host, and on the switches between them"
            : speed > 0
                ? "nothing at this speed; from 10 Gbit/s on MTU 9000 saves processor time"
                : "where it is 10 Gbit/s or faster: `ip link set DEVICE mtu 9000`, on every host and switch",
            "MTU %" PRId64 ", %s%s", mtu, rate,
            fast ? ": packets of 1500 bytes cost processor time at this speed" : "");
    }
}

/* Reads the flags of the loopback interface; false: unknown. On this machine the kernel is asked, because
 * /sys may show another network namespace (unshare -n). */
static bool loopback_flags(const char *root, long *flags_out)
{
    char text[32];
    struct ifreq request = {.ifr_name = "lo"};
    if (root[0]) {
        if (!machine_text(root, "/sys/class/net/lo/flags", text, sizeof text)) return false;
        *flags_out = strtol(text, NULL, 16);
        return true;
    }
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0); /* a kernel without IPv4 */
    bool known = fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &request) == 0;
    if (fd >= 0) close(fd);
    *flags_out = request.ifr_flags;
    return known;
}

static void check_loopback(struct doctor_report *report, const char *root)
{
    long flags = 0;
    if (!loopback_flags(root, &flags)) return;
    if (flags & IFF_UP) doctor_add_finding(report, DOCTOR_OK, "loopback", "lo", NULL, "is up");
    else
        doctor_add_finding(
            report, DOCTOR_BROKEN, "loopback", "lo",
            "`ip link set lo up`, as root of this network namespace (unshare -n and some sandboxes leave it "
            "down)",
            "is down: processes of this host cannot connect to each other, so `weft run` cannot start a job");
}

/* The last number of "4096 87380 33554432". */
static bool buffer_max(const char *root, const char *path, uint64_t *out)
{
    char text[128];
    unsigned long long low, usual, high;
    if (!machine_text(root, path, text, sizeof text) ||
        sscanf(text, "%llu %llu %llu", &low, &usual, &high) != 3)
        return false;
    *out = high;
    return true;
}

static void check_tcp(struct doctor_report *report, const char *root, bool fast)
{
    char control[64], others[256];
    uint64_t read_max, write_max;
    if (machine_text(root, "/proc/sys/net/ipv4/tcp_congestion_control", control, sizeof control) &&
        control[0]) {
        machine_text(root, "/proc/sys/net/ipv4/tcp_available_congestion_control", others, sizeof others);
        bool bbr = strncmp(control, "bbr", 3) == 0;
        doctor_add_finding(
            report, bbr ? DOCTOR_WARN : DOCTOR_OK, "congestion-control", control,
            bbr ? "`sysctl net.ipv4.tcp_congestion_control=cubic`: UCX cannot choose it per socket" : NULL,
            "%s (there are: %s)",
            bbr ? "paces what a host sends to itself: two-way loopback runs at half speed"
                : "fine inside a cluster",
            others);
    }
    if (!fast || !buffer_max(root, "/proc/sys/net/ipv4/tcp_rmem", &read_max) ||
        !buffer_max(root, "/proc/sys/net/ipv4/tcp_wmem", &write_max))
        return;
    uint64_t least = read_max < write_max ? read_max : write_max;
    if (least >= BUFFER_WANTED)
        doctor_add_finding(report, DOCTOR_OK, "tcp-buffers", "kernel", NULL, "up to %" PRIu64 " KiB",
                           least >> 10);
    else
        doctor_add_finding(report, DOCTOR_WARN, "tcp-buffers", "kernel",
                           "`sysctl net.ipv4.tcp_rmem='4096 131072 33554432'`, tcp_wmem likewise",
                           "at most %" PRIu64 " KiB: too little to fill a fast link", least >> 10);
}

static void check_firewall(struct doctor_report *report, const char *root)
{
    char modules[65536];
    static const char try_it[] =
        "`weft doctor --listen` there and `weft doctor HOST` here show which ports are open; "
        "open the range of transport.ports";
    static const char *const filters[] = {"nf_tables ", "ip_tables ", "ip6_tables ", "bpfilter "};
    if (!machine_text(root, "/proc/modules", modules, sizeof modules)) {
        doctor_add_finding(report, DOCTOR_NOTE, "firewall", "kernel", try_it,
                           "whether there is a packet filter cannot be seen here (no /proc/modules)");
        return;
    }
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++) {
        const char *found = strstr(modules, filters[i]);
        if (!found || (found != modules && found[-1] != '\n')) continue;
        doctor_add_finding(report, DOCTOR_NOTE, "firewall", "kernel", try_it,
                           "a packet filter is loaded (%.*s): what it drops shows only between hosts",
                           (int)strlen(filters[i]) - 1, filters[i]);
        return;
    }
    doctor_add_finding(report, DOCTOR_OK, "firewall", "kernel", NULL, "no packet filter module is loaded");
}

void doctor_check_network(struct doctor_report *report, const char *root)
{
    char names[DEVICES_MAX][64];
    bool fast = false;
    size_t count = machine_list(root, "/sys/class/net", names, DEVICES_MAX);
    for (size_t i = 0; i < count; i++) check_device(report, root, names[i], &fast);
    check_loopback(report, root);
    check_tcp(report, root, fast);
    check_firewall(report, root);
}
