/* device.c - the rails: one NCCL device for each entry of transport.devices.
 *
 * An entry is a network interface or an RDMA device with an optional port ("mlx5_0:1"). NCCL chooses a rail
 * by its PCI path and speed, which are read from sysfs. */
#include "nccl/net/net.h"

#include <dirent.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GIDS_READ = 16 };
#define SPEED_MBPS_MIN 10000 /* NCCL's search of the topology has no rates below 0.12 GB/s */

/* Length of the name without ":port". */
static int base_length(const char *name)
{
    return (int)strcspn(name, ":");
}

static const char *port_of(const char *name)
{
    const char *at = strchr(name, ':');
    return at ? at + 1 : "1";
}

static void read_pci_path(struct net_device *device, const char *class_name)
{
    char path[256], resolved[PATH_MAX];
    snprintf(path, sizeof path, "/sys/class/%s/%.*s/device", class_name, base_length(device->name),
             device->name);
    if (!device->pci_path[0] && realpath(path, resolved) && strlen(resolved) < sizeof device->pci_path)
        memcpy(device->pci_path, resolved, strlen(resolved) + 1);
}

static void read_speed(struct net_device *device)
{
    char path[256];
    int speed = 0;
    snprintf(path, sizeof path, "/sys/class/net/%s/speed", device->name);
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, "%d", &speed) != 1) speed = 0;
    if (file) fclose(file);
    snprintf(path, sizeof path, "/sys/class/infiniband/%.*s/ports/%s/rate", base_length(device->name),
             device->name, port_of(device->name));
    file = fopen(path, "re");
    if (file && fscanf(file, "%d", &speed) == 1) speed *= 1000; /* Gbit/s */
    if (file) fclose(file);
    device->speed_mbps = speed > SPEED_MBPS_MIN ? speed : SPEED_MBPS_MIN;
}

static enum weft_status device_add(struct net_process *process, const char *name, size_t length,
                                   struct weft_error *error)
{
    if (process->device_count == NET_DEVICES_MAX)
        return weft_error_set(error, WEFT_ERR_LIMIT, "transport.devices lists more than %d devices",
                              NET_DEVICES_MAX);
    if (length >= NET_NAME_BYTES || memchr(name, '/', length))
        return weft_error_set(error, WEFT_ERR_INVALID, "transport.devices: \"%.*s\" is not a device",
                              (int)length, name);
    struct net_device *device = &process->devices[process->device_count++];
    memcpy(device->name, name, length);
    read_pci_path(device, "net");
    read_pci_path(device, "infiniband");
    read_speed(device);
    device->guid = weft_fnv_bytes(WEFT_FNV_BASIS, device->name, length);
    return WEFT_OK;
}

enum weft_status net_devices_read(struct net_process *process, const char *list, struct weft_error *error)
{
    process->device_count = 0;
    memset(process->devices, 0, sizeof process->devices);
    for (const char *at = list[0] ? list : "lo"; *at;) {
        size_t length = strcspn(at, ", ");
        if (length > 0) WEFT_TRY(device_add(process, at, length, error));
        at += length + (at[length] != 0);
    }
    if (process->device_count > 0) return WEFT_OK;
    return weft_error_set(error, WEFT_ERR_INVALID, "transport.devices \"%s\" lists no device", list);
}

/* ---- device memory ---- */

/* The kinds of device memory that endpoints of the rail can access. `verbs` alone moves all payloads by the
 * device; auto may choose another backend for a peer. Opens an endpoint, once. */
static unsigned direct_kinds_of(struct net_process *process, int index)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct net_device *device = &process->devices[index];
    uint8_t secret[WEFT_HMAC_BYTES];
    struct net_endpoint_options options = {.device = index, .id = NET_LISTENER_ID, .secret = secret};
    struct weft_transport *transport;
    struct weft_error error = {0};
    pthread_mutex_lock(&lock);
    if (!device->is_probed && strcmp(process->backend, "verbs") == 0) {
        weft_random_bytes(&process->env, secret, sizeof secret);
        if (net_endpoint_open(&options, &transport, &error) == WEFT_OK) {
            device->direct_kinds = weft_transport_direct_kinds(transport);
            weft_transport_close(transport);
            weft_transport_free(transport);
        } else {
            weft_log(&process->env, WEFT_LOG_INFO, "nccl", "%s: host memory only: %s", device->name,
                     error.text);
        }
    }
    device->is_probed = true;
    unsigned kinds = device->direct_kinds;
    pthread_mutex_unlock(&lock);
    return kinds;
}

enum nccl_result net_device_properties(int device, struct nccl_properties_v12 *out)
{
    struct net_process *process = net_process();
    if (!process || device < 0 || device >= process->device_count)
        return net_report(WEFT_ERR_STATE, "NCCL requested device %d of %d", device,
                          process ? process->device_count : 0);
    struct net_device *own = &process->devices[device];
    const unsigned kinds = direct_kinds_of(process, device);
    *out = (struct nccl_properties_v12){.name = own->name,
                                        .pci_path = own->pci_path[0] ? own->pci_path : NULL,
                                        .guid = own->guid,
                                        .pointers = NCCL_POINTER_HOST |
                                                    (kinds & WEFT_DIRECT_POINTER ? NCCL_POINTER_CUDA : 0) |
                                                    (kinds & WEFT_DIRECT_DMABUF ? NCCL_POINTER_DMABUF : 0),
                                        .speed = own->speed_mbps,
                                        .port = 1,
                                        .max_comms = 65536,
                                        .max_recvs = NCCL_RECVS_LIMIT,
                                        .device_type = NCCL_DEVICE_HOST,
                                        .members = {1, {device}},
                                        .max_p2p_bytes = NCCL_NET_BYTES_MAX,
                                        .max_coll_bytes = NCCL_NET_BYTES_MAX,
                                        .max_multi_request = 1,
                                        .rail_id = -1,
                                        .plane_id = -1};
    return NCCL_RESULT_SUCCESS;
}

/* ---- address for set-up connections ---- */

/* The first address of the interface, IPv4 before IPv6. */
static bool interface_address(const struct ifaddrs *all, const char *name, struct sockaddr_storage *out,
                              socklen_t *bytes_out)
{
    for (int family = 0; family < 2; family++) {
        for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
            if (!one->ifa_addr || strcmp(one->ifa_name, name) != 0 || !(one->ifa_flags & IFF_UP)) continue;
            if (one->ifa_addr->sa_family != (family == 0 ? AF_INET : AF_INET6)) continue;
            *bytes_out = family == 0 ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
            memset(out, 0, sizeof *out);
            memcpy(out, one->ifa_addr, *bytes_out);
            return true;
        }
    }
    return false;
}

/* The address of the interface of a port's GID: RoCE in software has no PCI device. */
static bool gid_address(const struct ifaddrs *all, const char *name, struct sockaddr_storage *out,
                        socklen_t *bytes_out)
{
    char path[256], interface[IF_NAMESIZE];
    for (int index = 0; index < GIDS_READ; index++) {
        snprintf(path, sizeof path, "/sys/class/infiniband/%.*s/ports/%s/gid_attrs/ndevs/%d",
                 base_length(name), name, port_of(name), index);
        FILE *file = fopen(path, "re");
        const bool is_read = file && fscanf(file, "%15s", interface) == 1;
        if (file) fclose(file);
        if (is_read && interface_address(all, interface, out, bytes_out)) return true;
    }
    return false;
}

/* The address of a network interface of the RDMA device. */
static bool rdma_address(const struct ifaddrs *all, const char *name, struct sockaddr_storage *out,
                         socklen_t *bytes_out)
{
    char path[256];
    bool found = false;
    snprintf(path, sizeof path, "/sys/class/infiniband/%.*s/device/net", base_length(name), name);
    DIR *folder = opendir(path);
    for (const struct dirent *entry; folder && !found && (entry = readdir(folder));)
        found = entry->d_name[0] != '.' && interface_address(all, entry->d_name, out, bytes_out);
    if (folder) closedir(folder);
    return found || gid_address(all, name, out, bytes_out);
}

enum weft_status net_device_address(const struct net_device *device, struct sockaddr_storage *address_out,
                                    socklen_t *bytes_out, struct weft_error *error)
{
    struct ifaddrs *all;
    if (getifaddrs(&all) != 0)
        return weft_error_set(error, WEFT_ERR_IO, "the network devices of this host cannot be listed");
    bool found = interface_address(all, device->name, address_out, bytes_out) ||
                 rdma_address(all, device->name, address_out, bytes_out);
    freeifaddrs(all);
    if (found) return WEFT_OK;
    return weft_error_set(error, WEFT_ERR_NOT_FOUND,
                          "device %s of transport.devices has no network interface with an address",
                          device->name);
}
