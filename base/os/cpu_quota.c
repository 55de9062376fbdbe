/* cpu_quota.c - see cpu_quota.h. /proc/self/cgroup names the group: "0::/path" (version 2) or
 * "1:cpu,cpuacct:/path" (version 1). A container without cgroup namespace sees the host's path there, but its
 * own group as the root of the mount. Folders that do not exist are therefore skipped. */
#include "base/os/cpu_quota.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Reads quota / period, in processors; false: no limit or no such file. */
static bool limit_read(const char *folder, const char *quota_file, const char *period_file,
                       double *processors_out)
{
    char path[PATH_MAX + 32], quota[32] = "", period[32] = "";
    snprintf(path, sizeof path, "%s/%s", folder, quota_file);
    FILE *file = fopen(path, "re");
    if (!file) return false;
    bool read = fscanf(file, "%31s %31s", quota, period) >= 1;
    fclose(file);
    if (read && period_file) {
        snprintf(path, sizeof path, "%s/%s", folder, period_file);
        if (!(file = fopen(path, "re"))) return false;
        read = fscanf(file, "%31s", period) == 1;
        fclose(file);
    }
    double time = strtod(quota, NULL), whole = strtod(period, NULL); /* "max" and -1: no limit */
    if (!read || !(time > 0) || !(whole > 0)) return false;
    *processors_out = time / whole;
    return true;
}

/* Reads the group `path` below `mount` and all groups above it; keeps the smallest quota. */
static void tightest(const char *mount, const char *path, const char *quota_file, const char *period_file,
                     struct weft_cpu_quota *quota)
{
    char folder[PATH_MAX];
    size_t root = strlen(mount),
           whole = (size_t)snprintf(folder, sizeof folder, "%s%s", mount, strcmp(path, "/") == 0 ? "" : path);
    if (whole >= sizeof folder) return;
    for (;;) {
        double processors;
        struct stat identity;
        if (limit_read(folder, quota_file, period_file, &processors) && stat(folder, &identity) == 0) {
            uint32_t count = processors < 1 ? 1 : processors > UINT32_MAX ? UINT32_MAX : (uint32_t)processors;
            if (quota->processors == 0 || count < quota->processors)
                *quota = (struct weft_cpu_quota){.group = (uint64_t)identity.st_ino ^
                                                          (uint64_t)identity.st_dev << 40,
                                                 .processors = count};
        }
        char *last = strrchr(folder + root, '/');
        if (!last) return;
        *last = '\0';
    }
}

static bool has_word(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += length)
        if ((at == list || at[-1] == ',') && (at[length] == '\0' || at[length] == ',')) return true;
    return false;
}

struct weft_cpu_quota weft_cpu_quota_read(const char *root)
{
    struct weft_cpu_quota quota = {0};
    char path[PATH_MAX], mount[PATH_MAX], line[PATH_MAX]; /* a longer line is not a path that can be opened */
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    if (!file) return quota;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group || group[1] != '/') continue;
        *group++ = '\0';
        if (*++controllers == '\0') {
            const char *const mounts[] = {"", "/unified"};
            for (int i = 0; i < 2; i++) {
                snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s", root, mounts[i]);
                tightest(mount, group, "cpu.max", NULL, &quota);
            }
        } else if (has_word(controllers, "cpu")) {
            /* a symbolic link if it is mounted with other controllers */
            snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/cpu", root);
            tightest(mount, group, "cpu.cfs_quota_us", "cpu.cfs_period_us", &quota);
        }
    }
    fclose(file);
    return quota;
}
