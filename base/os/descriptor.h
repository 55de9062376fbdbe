/* descriptor.h - is a descriptor still the one that was opened? Internal to base.
 *
 * A program may close or replace descriptors that it did not open (close(3..1023), dup2). A thread that
 * sleeps in epoll is then not woken, so it checks its descriptors every DESCRIPTOR_LOOK_NS. A replacement of
 * the same kind (another eventfd) is not detected. */
#ifndef WEFT_BASE_OS_DESCRIPTOR_H
#define WEFT_BASE_OS_DESCRIPTOR_H

#include <stdbool.h>
#include <sys/stat.h>

#define DESCRIPTOR_LOOK_NS WEFT_SECONDS(1)

struct descriptor_id {
    dev_t device;
    ino_t inode;
};

static inline struct descriptor_id descriptor_id_of(int fd)
{
    struct stat about;
    if (fstat(fd, &about) != 0) return (struct descriptor_id){0};
    return (struct descriptor_id){about.st_dev, about.st_ino};
}

static inline bool descriptor_is_same(int fd, struct descriptor_id id)
{
    const struct descriptor_id now = descriptor_id_of(fd);
    return now.inode == id.inode && now.device == id.device;
}

static inline bool descriptor_is_socket(int fd)
{
    struct stat about;
    return fstat(fd, &about) == 0 && S_ISSOCK(about.st_mode);
}

#endif
