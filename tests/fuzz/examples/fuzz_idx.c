/* fuzz_idx.c - the example's reader of IDX files, plain or compressed: any two files are a complete data set,
 * or refused with a sentence. Input: two bytes of length, the file of images, the file of labels. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include "examples/fashion_mnist/idx.h"
#include "tests/fuzz/fuzz.h"

static char directory[] = "/tmp/weft-fuzz-idx-XXXXXX";

static const char *path_of(const char *name)
{
    static char path[100];
    snprintf(path, sizeof path, "%s/x-%s-ubyte.gz", directory, name);
    return path;
}

static void remove_files(void)
{
    unlink(path_of("images-idx3"));
    unlink(path_of("labels-idx1"));
    rmdir(directory);
}

/* A file in memory with a name in the directory, so that inputs need no disk. */
static int make_file(const char *name)
{
    char target[40];
    int fd = memfd_create(name, MFD_CLOEXEC);
    snprintf(target, sizeof target, "/proc/self/fd/%d", fd);
    if (fd < 0 || symlink(target, path_of(name)) != 0) abort();
    return fd;
}

static void write_file(int fd, const uint8_t *data, size_t bytes)
{
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, bytes, 0) != (ssize_t)bytes) abort();
}

static volatile uint8_t sink; /* so that every byte is read */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static int images_fd = -1, labels_fd = -1;
    struct dataset dataset = {0};
    char error[1500] = "";
    if (images_fd < 0) {
        if (!mkdtemp(directory) || atexit(remove_files) != 0) abort();
        images_fd = make_file("images-idx3");
        labels_fd = make_file("labels-idx1");
    }
    if (bytes < 2) return 0;
    size_t images = data[0] | (size_t)data[1] << 8;
    if (images > bytes - 2) images = bytes - 2;
    write_file(images_fd, data + 2, images);
    write_file(labels_fd, data + 2 + images, bytes - 2 - images);
    if (!dataset_load(&dataset, directory, "x", error, sizeof error)) {
        if (!error[0] || dataset.pixels || dataset.labels) abort();
        return 0;
    }
    for (size_t i = 0; i < (size_t)dataset.count * IMAGE_PIXELS; i++) sink = dataset.pixels[i];
    for (uint32_t i = 0; i < dataset.count; i++) {
        if (dataset.labels[i] >= CLASS_COUNT) abort();
    }
    if (dataset.count == 0) abort();
    dataset_free(&dataset);
    return 0;
}

static size_t make_images(uint32_t count, uint8_t *out)
{
    const uint8_t head[16] = {0, 0, 8, 3, 0, 0, 0, (uint8_t)count, 0, 0, 0, IMAGE_SIDE, 0, 0, 0, IMAGE_SIDE};
    memcpy(out, head, sizeof head);
    memset(out + sizeof head, 7, count * IMAGE_PIXELS);
    return sizeof head + count * IMAGE_PIXELS;
}

static size_t make_labels(uint32_t count, uint8_t *out)
{
    const uint8_t head[8] = {0, 0, 8, 1, 0, 0, 0, (uint8_t)count};
    memcpy(out, head, sizeof head);
    for (uint32_t i = 0; i < count; i++) out[sizeof head + i] = (uint8_t)(i % CLASS_COUNT);
    return sizeof head + count;
}

static size_t squeeze(const uint8_t *data, size_t bytes, uint8_t *out, size_t capacity)
{
    z_stream stream = {.next_in = (uint8_t *)(uintptr_t)data,
                       .avail_in = (unsigned)bytes,
                       .next_out = out,
                       .avail_out = (unsigned)capacity};
    if (deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK ||
        deflate(&stream, Z_FINISH) != Z_STREAM_END)
        abort();
    deflateEnd(&stream);
    return stream.total_out;
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    static uint8_t images[8 * IMAGE_PIXELS + 100], labels[100];
    uint32_t count = (uint32_t)(number % 4 + 1);
    size_t image_bytes = make_images(count, images),
           label_bytes = make_labels(number % 7 == 6 ? count + 1 : count, labels);
    uint8_t *at = out + 2;
    if (number & 1) image_bytes = squeeze(images, image_bytes, at, capacity - 2);
    else memcpy(at, images, image_bytes);
    out[0] = (uint8_t)image_bytes;
    out[1] = (uint8_t)(image_bytes >> 8);
    at += image_bytes;
    if (number & 2) label_bytes = squeeze(labels, label_bytes, at, capacity - 2 - image_bytes);
    else memcpy(at, labels, label_bytes);
    return 2 + image_bytes + label_bytes;
}
