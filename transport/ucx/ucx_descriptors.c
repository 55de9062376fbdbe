/* ucx_descriptors.c - sets FD_CLOEXEC on the descriptors that UCX opens.
 *
 * UCX does not set it and does not list its descriptors. After UCX is opened, every new descriptor of a
 * kind that UCX opens (pipe, socket, epoll, event, timer) gets FD_CLOEXEC. This includes a descriptor that
 * another thread of the program opens at the same time. Connections that UCX makes later are not covered. */
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transport/ucx/ucx.h"

static bool is_noted(const struct ucx_descriptors *before, int fd)
{
    return fd < UCX_DESCRIPTORS_MAX && before->open[fd / 64] >> fd % 64 & 1;
}

static bool may_be_ucx(int fd)
{
    static const char *const kinds[] = {"pipe:", "socket:", "anon_inode:", "/dev/null"};
    char path[64], target[64] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (readlink(path, target, sizeof target - 1) < 0) return false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strncmp(target, kinds[i], strlen(kinds[i])) == 0) return true;
    return false;
}

static void seal(const struct ucx_descriptors *before, int fd)
{
    const int flags = is_noted(before, fd) || !may_be_ucx(fd) ? -1 : fcntl(fd, F_GETFD);
    if (flags >= 0 && !(flags & FD_CLOEXEC)) fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
}

/* notes: records all open descriptors in `before`; else sets FD_CLOEXEC on those that are not in it. */
static void each_descriptor(struct ucx_descriptors *before, bool notes)
{
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        const int fd = isdigit((unsigned char)entry->d_name[0]) ? atoi(entry->d_name) : -1;
        if (fd < 0 || fd == dirfd(folder)) continue; /* closed below */
        if (!notes) seal(before, fd);
        else if (fd < UCX_DESCRIPTORS_MAX) before->open[fd / 64] |= UINT64_C(1) << fd % 64;
    }
    if (folder) closedir(folder);
    else before->unknown = true;
}

void ucx_descriptors_note(struct ucx_descriptors *before)
{
    *before = (struct ucx_descriptors){0};
    each_descriptor(before, true);
}

void ucx_descriptors_seal(struct ucx_descriptors *before)
{
    if (!before->unknown) each_descriptor(before, false);
}
