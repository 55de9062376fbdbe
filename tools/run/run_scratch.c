/* run_scratch.c - the private directory of a job (secret, port file) and the directory of its logs. */
#include "base/base.h"
#include "tools/run/run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static bool write_secret(const struct run_scratch *scratch)
{
    int fd = open(scratch->secret_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    size_t bytes = strlen(scratch->secret);
    bool written = fd >= 0 && write(fd, scratch->secret, bytes) == (ssize_t)bytes;
    if (fd >= 0 && close(fd) != 0) written = false;
    return written;
}

bool run_scratch_create(struct run_scratch *scratch, const char *job)
{
    const char *parent = getenv("TMPDIR");
    uint8_t random[32];
    snprintf(scratch->directory, sizeof scratch->directory, "%.3000s/weft-%.200s-XXXXXX",
             parent && parent[0] ? parent : "/tmp", job);
    if (!mkdtemp(scratch->directory)) {
        fprintf(stderr, "weft run: cannot make the directory %s: %s; set TMPDIR to a directory for it\n",
                scratch->directory, strerror(errno));
        scratch->directory[0] = 0;
        return false;
    }
    snprintf(scratch->secret_path, sizeof scratch->secret_path, "%s/secret", scratch->directory);
    snprintf(scratch->port_path, sizeof scratch->port_path, "%s/ports", scratch->directory);
    if (getrandom(random, sizeof random, 0) != sizeof random) {
        fprintf(stderr, "weft run: the kernel gave no random bytes: %s\n", strerror(errno));
        return false;
    }
    weft_hex_encode(random, sizeof random, scratch->secret);
    if (!write_secret(scratch)) {
        fprintf(stderr, "weft run: cannot write %s: %s\n", scratch->secret_path, strerror(errno));
        return false;
    }
    return true;
}

void run_scratch_remove(struct run_scratch *scratch)
{
    if (!scratch->directory[0]) return;
    unlink(scratch->secret_path);
    unlink(scratch->port_path);
    if (rmdir(scratch->directory) != 0)
        fprintf(stderr, "weft run: cannot remove %s: %s\n", scratch->directory, strerror(errno));
}

bool run_scratch_read_port(const struct run_scratch *scratch, const char *name, char *out, size_t out_bytes)
{
    char line[512];
    bool found = false;
    FILE *file = fopen(scratch->port_path, "re");
    if (!file) return false;
    while (!found && fgets(line, sizeof line, file)) {
        size_t name_bytes = strlen(name);
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, name, name_bytes) != 0 || line[name_bytes] != '=') continue;
        snprintf(out, out_bytes, "%s", line + name_bytes + 1);
        found = true;
    }
    fclose(file);
    return found;
}

bool run_make_directory(const char *path)
{
    char part[RUN_PATH_BYTES];
    if (strlen(path) >= sizeof part) {
        fprintf(stderr, "weft run: the path of the log directory is too long\n");
        return false;
    }
    strcpy(part, path);
    for (char *slash = part + 1;; slash++) {
        if (*slash != '/' && *slash != 0) continue;
        char kept = *slash;
        *slash = 0;
        if (mkdir(part, 0755) != 0 && errno != EEXIST) {
            fprintf(stderr, "weft run: cannot make the log directory %s: %s; name another: --log-dir DIR\n",
                    part, strerror(errno));
            return false;
        }
        *slash = kept;
        if (!kept) break;
    }
    if (access(path, W_OK | X_OK) == 0) return true;
    fprintf(stderr, "weft run: cannot write into the log directory %s: %s; name another: --log-dir DIR\n",
            path, strerror(errno));
    return false;
}

bool run_find_sibling(const char *name, char out[RUN_PATH_BYTES])
{
    ssize_t bytes = readlink("/proc/self/exe", out, RUN_PATH_BYTES - 1);
    if (bytes > 0) {
        out[bytes] = 0;
        char *slash = strrchr(out, '/');
        size_t capacity = RUN_PATH_BYTES - (size_t)(slash + 1 - out);
        if (strlen(name) < capacity) {
            strcpy(slash + 1, name);
            if (access(out, X_OK) == 0) return true;
        }
    }
    fprintf(stderr, "weft run: %s is not in the directory of this program (%s)\n", name, out);
    return false;
}
