/* memory_disk.h - the files of a store in memory: a process or its host stops at a chosen operation. */
#ifndef WEFT_TESTS_COORDINATOR_STORE_MEMORY_DISK_H
#define WEFT_TESTS_COORDINATOR_STORE_MEMORY_DISK_H

#include "coordinator/store/disk.h"

enum { MEMORY_DISK_BYTES = 1 << 20 };

struct memory_file {
    uint8_t now[MEMORY_DISK_BYTES], durable[MEMORY_DISK_BYTES];
    size_t now_bytes, durable_bytes;
};

struct memory_disk {
    struct store_disk disk;
    struct memory_file *file, *part; /* as the folder has them now */
    struct memory_file *durable;     /* that the path has after a loss of power */
    struct memory_file files[2];
    uint64_t operations,
        stop_at;       /* writes, syncs, truncations, renames so far; the one that is not completed */
    bool has_stopped;  /* every later operation fails */
    uint64_t fails_at; /* this operation fails, and later ones succeed; 0: none */
    uint64_t random;
    uint32_t renames;
};

void memory_disk_init(struct memory_disk *memory, uint64_t seed);
/* After a stop: the next process opens the disk. power: what was not synced may be lost or torn. */
void memory_disk_restart(struct memory_disk *memory, bool power);

#endif
