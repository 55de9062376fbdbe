/* auto_devices.c - splits one list of devices among the children of "auto".
 *
 * The user lists the devices that lead to other hosts, "mlx5_0:1,eth0": RDMA devices for verbs, interfaces
 * for UCX over tcp. "lo", the default, means this host only: no child listens on a network. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "transport/auto/auto.h"

static bool is_rdma(const char *root, const char *name, size_t length)
{
    char path[AUTO_DEVICES_BYTES + 300];
    size_t bytes = strcspn(name, ":"); /* skips a port */
    if (bytes > length) bytes = length;
    if (bytes == 0 || memchr(name, '/', bytes) || name[0] == '.') return false;
    int got = snprintf(path, sizeof path, "%s/sys/class/infiniband/%.*s", root, (int)bytes, name);
    return got > 0 && (size_t)got < sizeof path && access(path, F_OK) == 0;
}

bool auto_has_rdma(const char *root)
{
    char path[AUTO_DEVICES_BYTES + 300];
    const int length = snprintf(path, sizeof path, "%s/sys/class/infiniband", root);
    DIR *folder = length > 0 && (size_t)length < sizeof path ? opendir(path) : NULL;
    bool found = false;
    for (const struct dirent *entry = NULL; folder && !found && (entry = readdir(folder));)
        found = entry->d_name[0] != '.';
    if (folder) closedir(folder);
    return found;
}

static void add(char list[AUTO_DEVICES_BYTES], const char *name, size_t length)
{
    size_t at = strlen(list);
    snprintf(list + at, AUTO_DEVICES_BYTES - at, "%s%.*s", at > 0 ? "," : "", (int)length, name);
}

enum weft_status auto_devices_split(const char *root, const char *list, struct auto_devices *devices_out,
                                    struct weft_error *error)
{
    struct auto_devices *devices = devices_out;
    *devices = (struct auto_devices){0};
    if (!list || !list[0]) list = "lo";
    if (strlen(list) >= AUTO_DEVICES_BYTES)
        return weft_error_set(error, WEFT_ERR_INVALID, "the list of devices is longer than %d bytes",
                              AUTO_DEVICES_BYTES - 1);
    snprintf(devices->all, sizeof devices->all, "%s", list);
    for (const char *at = list; *at;) {
        size_t length = strcspn(at, ", ");
        if (length > 0) add(is_rdma(root, at, length) ? devices->rdma : devices->network, at, length);
        at += length + (at[length] != 0);
    }
    return WEFT_OK;
}

bool auto_lanes_are_sockets(const char *lanes)
{
    return !lanes || !lanes[0] || strcmp(lanes, "tcp") == 0;
}
