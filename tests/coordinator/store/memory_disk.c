/* memory_disk.c - see memory_disk.h. */
#include "tests/coordinator/store/memory_disk.h"

#include <string.h>

static struct memory_disk *of(struct store_disk *disk)
{
    return weft_container_of(disk, struct memory_disk, disk);
}

static uint64_t draw(struct memory_disk *memory, uint64_t below)
{
    memory->random = memory->random * 6364136223846793005u + 1442695040888963407u;
    return (memory->random >> 33) % below;
}

/* Counts an operation. Returns whether it is the one that does not complete, or follows it. */
static bool stops(struct memory_disk *memory)
{
    if (!memory->has_stopped) memory->has_stopped = ++memory->operations == memory->stop_at;
    return memory->has_stopped || memory->operations == memory->fails_at;
}

static enum weft_status disk_open(struct store_disk *disk)
{
    return WEFT_OK;
}
static enum weft_status disk_lock(struct store_disk *disk)
{
    return of(disk)->has_stopped ? WEFT_ERR_IO : WEFT_OK;
}
static void disk_unlock(struct store_disk *disk) {}
static bool disk_is_replaced(struct store_disk *disk)
{
    return false;
}

static enum weft_status disk_size(struct store_disk *disk, uint64_t *size_out)
{
    *size_out = of(disk)->file->now_bytes;
    return of(disk)->has_stopped ? WEFT_ERR_IO : WEFT_OK;
}

static enum weft_status disk_read(struct store_disk *disk, uint64_t offset, void *data, size_t bytes)
{
    const struct memory_file *file = of(disk)->file;
    if (of(disk)->has_stopped || offset + bytes > file->now_bytes) return WEFT_ERR_IO;
    memcpy(data, file->now + offset, bytes);
    return WEFT_OK;
}

static enum weft_status put(struct memory_file *file, uint64_t offset, const void *data, size_t bytes)
{
    if (offset + bytes > MEMORY_DISK_BYTES) return WEFT_ERR_IO;
    memcpy(file->now + offset, data, bytes);
    if (offset + bytes > file->now_bytes) file->now_bytes = offset + bytes;
    return WEFT_OK;
}

static enum weft_status disk_write(struct store_disk *disk, uint64_t offset, const void *data, size_t bytes)
{
    struct memory_disk *memory = of(disk);
    if (memory->has_stopped) return WEFT_ERR_IO;
    if (!stops(memory)) return put(memory->file, offset, data, bytes);
    (void)put(memory->file, offset, data, draw(memory, bytes + 1));
    return WEFT_ERR_IO;
}

static void sync_file(struct memory_file *file)
{
    memcpy(file->durable, file->now, file->now_bytes);
    file->durable_bytes = file->now_bytes;
}

static enum weft_status disk_sync(struct store_disk *disk)
{
    if (stops(of(disk))) return WEFT_ERR_IO;
    sync_file(of(disk)->file);
    return WEFT_OK;
}

static enum weft_status disk_truncate(struct store_disk *disk, uint64_t size)
{
    if (stops(of(disk))) return WEFT_ERR_IO;
    of(disk)->file->now_bytes = size;
    return WEFT_OK;
}

static enum weft_status disk_write_part(struct store_disk *disk, const void *data, size_t bytes)
{
    struct memory_disk *memory = of(disk);
    if (memory->has_stopped) return WEFT_ERR_IO;
    memory->part->now_bytes = memory->part->durable_bytes = 0;
    const bool stops_at_write = stops(memory);
    if (put(memory->part, 0, data, stops_at_write ? draw(memory, bytes + 1) : bytes) < 0 || stops_at_write ||
        stops(memory))
        return WEFT_ERR_IO;
    sync_file(memory->part);
    return WEFT_OK;
}

static enum weft_status disk_rename_part(struct store_disk *disk)
{
    struct memory_disk *memory = of(disk);
    if (stops(memory)) return WEFT_ERR_IO;
    struct memory_file *file = memory->file;
    memory->file = memory->part;
    memory->part = file;
    memory->renames++;
    return WEFT_OK;
}

static enum weft_status disk_sync_folder(struct store_disk *disk)
{
    if (stops(of(disk))) return WEFT_ERR_IO;
    of(disk)->durable = of(disk)->file;
    return WEFT_OK;
}

static void disk_close(struct store_disk *disk) {}

void memory_disk_init(struct memory_disk *memory, uint64_t seed)
{
    for (int i = 0; i < 2; i++) memory->files[i].now_bytes = memory->files[i].durable_bytes = 0;
    memory->operations = memory->stop_at = memory->fails_at = 0;
    memory->has_stopped = false;
    memory->renames = 0;
    memory->file = memory->durable = &memory->files[0];
    memory->part = &memory->files[1];
    memory->random = seed;
    memory->disk = (struct store_disk){.open = disk_open,
                                       .lock = disk_lock,
                                       .unlock = disk_unlock,
                                       .is_replaced = disk_is_replaced,
                                       .size = disk_size,
                                       .read = disk_read,
                                       .write = disk_write,
                                       .sync = disk_sync,
                                       .truncate = disk_truncate,
                                       .write_part = disk_write_part,
                                       .rename_part = disk_rename_part,
                                       .sync_folder = disk_sync_folder,
                                       .close = disk_close};
}

/* What was written and not synced: a part of it, then perhaps zeros up to the length. */
static void lose_unsynced(struct memory_disk *memory, struct memory_file *file)
{
    if (file->now_bytes > file->durable_bytes) {
        const size_t unsynced = file->now_bytes - file->durable_bytes, kept = draw(memory, unsynced + 1);
        memcpy(file->durable + file->durable_bytes, file->now + file->durable_bytes, kept);
        const bool has_zeros = draw(memory, 2);
        if (has_zeros) memset(file->durable + file->durable_bytes + kept, 0, unsynced - kept);
        file->durable_bytes += has_zeros ? unsynced : kept;
    } else if (draw(memory, 2)) {
        file->durable_bytes = file->now_bytes; /* a truncation that has reached the disk */
    }
    memcpy(file->now, file->durable, file->durable_bytes);
    file->now_bytes = file->durable_bytes;
}

void memory_disk_restart(struct memory_disk *memory, bool power)
{
    if (power) {
        if (draw(memory, 2)) memory->file = memory->durable; /* the rename was not synced */
        lose_unsynced(memory, memory->file);
    }
    sync_file(memory->file);
    memory->durable = memory->file;
    memory->part = memory->file == &memory->files[0] ? &memory->files[1] : &memory->files[0];
    memory->has_stopped = false;
    memory->stop_at = 0;
}
