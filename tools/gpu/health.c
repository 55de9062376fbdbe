/* health.c - see health.h: the child process that calls NVML, and the kernel log. */
#include "tools/gpu/health.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LOG_RECORD_BYTES = 8192 };

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Reads (bytes,) before the deadline. */
static bool read_fully(int fd, void *out, size_t bytes, uint32_t deadline_ms)
{
    const uint64_t until_ms = now_ms() + deadline_ms;
    size_t done = 0;
    while (done < bytes) {
        const uint64_t at_ms = now_ms();
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (at_ms >= until_ms) return false;
        if (poll(&ready, 1, (int)(until_ms - at_ms)) <= 0) continue;
        const ssize_t got = read(fd, (char *)out + done, bytes - done);
        if (got == 0 || (got < 0 && errno != EINTR)) return false;
        if (got > 0) done += (size_t)got;
    }
    return true;
}

static void write_fully(int fd, const void *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t put = write(fd, (const char *)data + done, bytes - done);
        if (put <= 0) return;
        done += (size_t)put;
    }
}

static void read_in_child(struct gpu_health *health, uint32_t deadline_ms)
{
    int ends[2], status;
    if (pipe2(ends, O_CLOEXEC) < 0) {
        snprintf(health->text, sizeof health->text, "no pipe to a child process: %s", strerror(errno));
        return;
    }
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        gpu_nvml_read(health);
        write_fully(ends[1], health, sizeof *health);
        _exit(0);
    }
    close(ends[1]);
    if (child < 0) {
        snprintf(health->text, sizeof health->text, "no child process: %s", strerror(errno));
    } else {
        const uint64_t until_ms = now_ms() + deadline_ms;
        struct gpu_health *answer = malloc(sizeof *answer);
        if (answer && read_fully(ends[0], answer, sizeof *answer, deadline_ms)) {
            *health = *answer;
        } else {
            health->is_silent = now_ms() >= until_ms;
            snprintf(health->text, sizeof health->text, "NVML %s",
                     health->is_silent ? "did not answer in time" : "ended its process");
        }
        free(answer);
        kill(child, SIGKILL); /* it may be blocked in the driver: then the kernel ends it later */
        if (!health->is_silent) waitpid(child, &status, 0);
        else waitpid(child, &status, WNOHANG);
    }
    close(ends[0]);
}

/* ---- the kernel log ---- */

static void count_xid(struct gpu_health *health, const char *pci, uint32_t xid)
{
    for (uint32_t i = 0; i < health->xid_count; i++) {
        struct gpu_xid *known = &health->xids[i];
        if (known->xid != xid || strcmp(known->pci, pci) != 0) continue;
        known->count++;
        return;
    }
    if (health->xid_count == GPU_XIDS_MAX) return;
    struct gpu_xid *added = &health->xids[health->xid_count++];
    *added = (struct gpu_xid){.xid = xid, .count = 1};
    snprintf(added->pci, sizeof added->pci, "%s", pci);
}

void gpu_xid_scan(struct gpu_health *health, const char *line)
{
    char pci[32], *end;
    const char *at = strstr(line, "NVRM: Xid (PCI:");
    if (!at) return;
    at += strlen("NVRM: Xid (PCI:");
    const size_t bytes = strcspn(at, ")");
    if (at[bytes] != ')' || at[bytes + 1] != ':' || bytes == 0 || bytes >= sizeof pci) return;
    for (size_t i = 0; i < bytes; i++) {
        pci[i] = (char)tolower((unsigned char)at[i]);
        if (!isxdigit((unsigned char)pci[i]) && pci[i] != ':' && pci[i] != '.') return;
    }
    pci[bytes] = 0;
    errno = 0;
    const unsigned long xid = strtoul(at + bytes + 2, &end, 10);
    if (errno == 0 && end != at + bytes + 2 && xid <= UINT32_MAX) count_xid(health, pci, (uint32_t)xid);
}

/* One read of /dev/kmsg is one record; a file of a test has many lines. */
static void read_log(struct gpu_health *health, const char *root)
{
    char path[PATH_MAX], record[LOG_RECORD_BYTES + 1];
    size_t used = 0;
    if (snprintf(path, sizeof path, "%s/dev/kmsg", root) >= (int)sizeof path) return;
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    for (;;) {
        const ssize_t got = read(fd, record + used, LOG_RECORD_BYTES - used);
        if (got < 0 && (errno == EINTR || errno == EPIPE)) continue; /* EPIPE: a record was overwritten */
        if (got < 0 && errno != EAGAIN) break;
        health->has_log = true;
        if (got <= 0) break;
        used += (size_t)got;
        record[used] = 0;
        char *line = record, *end;
        for (; (end = strchr(line, '\n')); line = end + 1) {
            *end = 0;
            gpu_xid_scan(health, line);
        }
        used = strlen(line);
        if (used == LOG_RECORD_BYTES) used = 0; /* no line of the driver is that long */
        memmove(record, line, used);
    }
    close(fd);
}

void gpu_health_read(struct gpu_health *health, const char *root, uint32_t deadline_ms)
{
    memset(health, 0, sizeof *health);
    if (root[0]) snprintf(health->text, sizeof health->text, "only the files of this machine are known");
    else read_in_child(health, deadline_ms);
    health->xid_count = 0;
    read_log(health, root);
}
