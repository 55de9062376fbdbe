/* process_identity.c - identity and state of a process, from /proc.
 *
 * The kernel closes the sockets of a dying process before it is a zombie: a peer may read the end of the
 * connection first. So a process that is exiting (PF_EXITING) is dead here. Without a readable /proc/PID only
 * the absence of the pid is an answer: another user's processes can be hidden. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/little_endian.h"
#include "base/os/process_identity.h"

#define PF_EXITING 0x4u /* include/linux/sched.h; field 9 of /proc/PID/stat */
#define FIELD_STATE 3
#define FIELD_FLAGS 9
#define FIELD_START 22

static size_t read_file(const char *path, char *out, size_t bytes)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    const ssize_t got = read(fd, out, bytes - 1);
    close(fd);
    out[got > 0 ? got : 0] = 0;
    return got > 0 ? (size_t)got : 0;
}

/* The text of a field of /proc/PID/stat. Field 2, the name in brackets, may hold any character. */
static const char *field_of(const char *stat, int field)
{
    const char *at = strrchr(stat, ')');
    for (int i = 2; at && i < field; i++) at = strchr(at + 1, ' ');
    return at ? at + 1 : NULL;
}

static bool read_stat(uint64_t pid, char *text, size_t bytes)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
    return read_file(path, text, bytes) > 0 && field_of(text, FIELD_START);
}

static uint64_t start_of(const char *stat)
{
    return strtoull(field_of(stat, FIELD_START), NULL, 10);
}

/* FNV-1a over boot id and inode of the pid namespace. 0: unknown. */
static uint64_t own_space(void)
{
    char boot[64];
    struct stat space;
    uint64_t hash = 0xcbf29ce484222325u;
    const size_t bytes = read_file("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    if (bytes == 0 || stat("/proc/self/ns/pid", &space) != 0) return 0;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ (uint8_t)boot[i]) * 0x100000001b3u;
    for (unsigned i = 0; i < 64; i += 8)
        hash = (hash ^ ((uint64_t)space.st_ino >> i & 0xff)) * 0x100000001b3u;
    return hash ? hash : 1;
}

void weft_process_identify(struct weft_env *env, struct weft_process_identity *own_out)
{
    char text[1024];
    *own_out = (struct weft_process_identity){0};
    if (env->virtual_time) {
        if (env->virtual_time->identify) env->virtual_time->identify(env, own_out);
        return;
    }
    const uint64_t pid = (uint64_t)getpid();
    if (!read_stat(pid, text, sizeof text)) return;
    *own_out = (struct weft_process_identity){.space = own_space(), .pid = pid, .start = start_of(text)};
}

enum weft_process_state weft_process_state(struct weft_env *env, const struct weft_process_identity *identity)
{
    char text[1024];
    if (identity->space == 0) return WEFT_PROCESS_UNKNOWN;
    if (env->virtual_time) return (enum weft_process_state)env->virtual_time->process_state(env, identity);
    if (identity->space != own_space() || identity->pid == 0 || identity->pid > INT32_MAX)
        return WEFT_PROCESS_UNKNOWN;
    if (!read_stat(identity->pid, text, sizeof text))
        return kill((pid_t)identity->pid, 0) != 0 && errno == ESRCH ? WEFT_PROCESS_DEAD
                                                                    : WEFT_PROCESS_UNKNOWN;
    const char state = *field_of(text, FIELD_STATE);
    const unsigned long flags = strtoul(field_of(text, FIELD_FLAGS), NULL, 10);
    const bool has_ended = state == 'Z' || state == 'X' || (flags & PF_EXITING) != 0;
    return has_ended || start_of(text) != identity->start ? WEFT_PROCESS_DEAD : WEFT_PROCESS_ALIVE;
}

void weft_process_identity_encode(const struct weft_process_identity *identity,
                                  uint8_t out[WEFT_PROCESS_IDENTITY_BYTES])
{
    put_le64(out, identity->space);
    put_le64(out + 8, identity->pid);
    put_le64(out + 16, identity->start);
}

size_t weft_process_identity_own(struct weft_env *env, uint8_t out[WEFT_PROCESS_IDENTITY_BYTES])
{
    struct weft_process_identity own;
    weft_process_identify(env, &own);
    weft_process_identity_encode(&own, out);
    return own.space ? WEFT_PROCESS_IDENTITY_BYTES : 0;
}

void weft_process_identity_decode(const uint8_t data[WEFT_PROCESS_IDENTITY_BYTES],
                                  struct weft_process_identity *identity_out)
{
    *identity_out = (struct weft_process_identity){
        .space = get_le64(data), .pid = get_le64(data + 8), .start = get_le64(data + 16)};
}
