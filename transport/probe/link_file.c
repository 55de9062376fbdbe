/* link_file.c - the link table as a file, and the fingerprint of a host. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "transport/probe/link_table.h"

enum weft_status weft_link_table_load(struct weft_env *env, const char *path,
                                      struct weft_link_table **table_out, struct weft_error *error)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* an open of a FIFO must not block */
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    if (!file && errno == ENOENT)
        return weft_error_set(error, WEFT_ERR_NOT_FOUND, "there is no link table %s yet", path);
    if (!file)
        return weft_error_set(error, WEFT_ERR_IO, "cannot read the link table %s: %s", path, strerror(errno));
    struct stat about;
    enum weft_status status = WEFT_OK;
    char *text = NULL;
    size_t bytes = 0;
    if (fstat(fileno(file), &about) != 0 || !S_ISREG(about.st_mode)) {
        status = weft_error_set(error, WEFT_ERR_IO, "the link table %s is not a file", path);
    } else if ((uint64_t)about.st_size > WEFT_LINK_TABLE_BYTES_MAX) {
        status = weft_error_set(error, WEFT_ERR_LIMIT,
                                "the link table %s is too long; delete it and probe again", path);
    } else if (!(text = weft_alloc_bytes(env, (size_t)about.st_size + 1))) {
        status = weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for the link table %s", path);
    } else {
        bytes = fread(text, 1, (size_t)about.st_size, file);
        if (ferror(file)) status = weft_error_set(error, WEFT_ERR_IO, "cannot read the link table %s", path);
    }
    fclose(file);
    if (status == WEFT_OK) status = weft_link_table_read(env, text, bytes, table_out, error);
    weft_free_bytes(env, text);
    return status;
}

enum weft_status weft_link_table_save(const struct weft_link_table *table, const char *path,
                                      struct weft_error *error)
{
    char *text;
    size_t bytes;
    if (weft_link_table_write(table, &text, &bytes) < 0)
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a link table");
    const int reason = weft_replace_file(path, text, bytes, 0600);
    weft_free_bytes(weft_link_table_env(table), text);
    return reason == 0 ? WEFT_OK
                       : weft_error_set(error, WEFT_ERR_IO, "cannot write the link table %s: %s", path,
                                        strerror(reason));
}

/* ---- the fingerprint ---- FNV-1a over everything that the links of a host depend on */

static uint64_t mix(uint64_t hash, const char *text)
{
    return weft_fnv(weft_fnv_bytes(hash, text, strlen(text)), 0xff); /* the length separates adjacent texts */
}

static uint64_t mix_file(uint64_t hash, const char *root, const char *path, const char *first_words)
{
    char name[PATH_MAX], line[512];
    if (snprintf(name, sizeof name, "%s%s", root, path) >= (int)sizeof name) return hash;
    FILE *file = fopen(name, "re");
    if (!file) return mix(hash, "-");
    while (fgets(line, sizeof line, file)) {
        if (!first_words || strncmp(line, first_words, strlen(first_words)) == 0) hash = mix(hash, line);
    }
    fclose(file);
    return hash;
}

/* Adds the hashes of the devices, so their order does not matter. Virtual interfaces change with
 * containers; only interfaces with a device count. */
static uint64_t mix_devices(uint64_t hash, const char *root)
{
    char path[PATH_MAX];
    uint64_t sum = 0;
    snprintf(path, sizeof path, "%s/sys/class/net", root);
    DIR *folder = opendir(path);
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        static const char *const facts[] = {"speed", "mtu", "address"};
        struct stat about;
        if (entry->d_name[0] == '.' || strlen(entry->d_name) > 64) continue;
        if (snprintf(path, sizeof path, "%s/sys/class/net/%s/device", root, entry->d_name) >=
                (int)sizeof path ||
            stat(path, &about) != 0)
            continue;
        uint64_t device = mix(WEFT_FNV_BASIS, entry->d_name);
        for (size_t i = 0; i < 3; i++) {
            snprintf(path, sizeof path, "/sys/class/net/%s/%s", entry->d_name, facts[i]);
            device = mix_file(device, root, path, NULL);
        }
        sum += device;
    }
    if (folder) closedir(folder);
    snprintf(path, sizeof path, "%016llx", (unsigned long long)sum);
    return mix(hash, path);
}

uint64_t weft_host_fingerprint(const char *root)
{
    if (strcmp(root, "/") == 0) root = "";
    uint64_t hash = mix(WEFT_FNV_BASIS, "weft links 1");
    hash = mix_file(hash, root, "/proc/sys/kernel/hostname", NULL);
    hash = mix_file(hash, root, "/etc/machine-id", NULL);
    hash = mix_file(hash, root, "/proc/meminfo", "MemTotal:");
    hash = mix_file(hash, root, "/sys/devices/system/cpu/online", NULL);
    hash = mix_devices(hash, root);
    return hash ? hash : 1;
}
