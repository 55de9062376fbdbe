/* idx.c - the checked IDX reader; see idx.h.
 *
 * zlib's gz* calls read plain files too, so a decompressed copy under the same name works. A truncated file,
 * a damaged one (gzip has a checksum) and another data set get different sentences, because the remedy
 * differs. */
#include "idx.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define PACKAGE_HINT "install the Debian package dataset-fashion-mnist, or name the directory with --data DIR"

enum { TYPE_U8 = 0x08, COUNT_MAX = 1000000 };

struct reader {
    gzFile file;
    char path[1024];
    char *error;
    size_t error_bytes;
};

static bool fail(struct reader *reader, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fail(struct reader *reader, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(reader->error, reader->error_bytes, format, args);
    va_end(args);
    return false;
}

static bool open_file(struct reader *reader)
{
    reader->file = gzopen(reader->path, "rb");
    if (reader->file) return gzbuffer(reader->file, 1 << 17), true;
    if (errno == ENOENT)
        return fail(reader, "data set not found: %s does not exist; " PACKAGE_HINT, reader->path);
    return fail(reader, "cannot open %s: %s; " PACKAGE_HINT, reader->path,
                errno ? strerror(errno) : "out of memory");
}

/* Reads exactly `bytes`; else sets the error. */
static bool read_bytes(struct reader *reader, void *out, size_t bytes)
{
    int got = gzread(reader->file, out, (unsigned)bytes);
    if (got == (int)bytes) return true;
    int code = Z_OK;
    const char *text = gzerror(reader->file, &code);
    if (got < 0 || (code != Z_OK && code != Z_BUF_ERROR && code != Z_STREAM_END)) {
        if (code == Z_ERRNO) return fail(reader, "cannot read %s: %s", reader->path, strerror(errno));
        /* names the file */
        return fail(reader, "corrupt file: %s; reinstall the Debian package dataset-fashion-mnist", text);
    }
    return fail(reader, "corrupt file: %s ends too early; reinstall the Debian package dataset-fashion-mnist",
                reader->path);
}

/* Reads the header of a file of bytes with these dimensions. dims[0] is the number of items. */
static bool read_header(struct reader *reader, uint32_t dim_count, const uint32_t *item_dims,
                        uint32_t *count_out)
{
    uint8_t raw[16];
    if (!read_bytes(reader, raw, 4 + 4 * dim_count)) return false;
    if (raw[0] != 0 || raw[1] != 0 || raw[2] != TYPE_U8 || raw[3] != dim_count) {
        return fail(
            reader,
            "wrong file: %s starts with %02x%02x%02x%02x, not with the IDX magic 0000%02x%02x; " PACKAGE_HINT,
            reader->path, raw[0], raw[1], raw[2], raw[3], TYPE_U8, (unsigned)dim_count);
    }
    uint32_t dims[3];
    for (uint32_t i = 0; i < dim_count; i++) {
        const uint8_t *at = raw + 4 + 4 * i;
        dims[i] = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
    }
    for (uint32_t i = 1; i < dim_count; i++) {
        if (dims[i] == item_dims[i - 1]) continue;
        return fail(reader, "wrong file: the images of %s are %u x %u, not %d x %d; " PACKAGE_HINT,
                    reader->path, (unsigned)dims[1], (unsigned)dims[2], IMAGE_SIDE, IMAGE_SIDE);
    }
    if (dims[0] == 0 || dims[0] > COUNT_MAX) {
        return fail(reader,
                    "wrong file: the header of %s states %u items (1 to %d are possible); " PACKAGE_HINT,
                    reader->path, (unsigned)dims[0], COUNT_MAX);
    }
    *count_out = dims[0];
    return true;
}

/* Reads the body, and nothing after it. One byte more makes zlib check the gzip checksum. */
static bool read_body(struct reader *reader, uint8_t *out, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        size_t piece = bytes - done < (1u << 24) ? bytes - done : (1u << 24);
        if (!read_bytes(reader, out + done, piece)) return false;
        done += piece;
    }
    uint8_t extra;
    int got = gzread(reader->file, &extra, 1);
    if (got == 0) {
        int code = Z_OK;
        gzerror(reader->file, &code);
        if (code == Z_OK || code == Z_STREAM_END) return true;
        return fail(reader,
                    "corrupt file: %s ends too early; reinstall the Debian package dataset-fashion-mnist",
                    reader->path);
    }
    if (got < 0) {
        return fail(reader,
                    "corrupt file: %s fails its checksum; reinstall the Debian package dataset-fashion-mnist",
                    reader->path);
    }
    return fail(reader, "wrong file: %s is longer than its header states; " PACKAGE_HINT, reader->path);
}

static bool load_items(struct reader *reader, uint32_t dim_count, uint32_t *count_out, uint8_t **items_out)
{
    static const uint32_t item_dims[2] = {IMAGE_SIDE, IMAGE_SIDE};
    size_t item_bytes = dim_count == 3 ? IMAGE_PIXELS : 1;
    uint8_t *items = NULL;

    if (!open_file(reader)) return false;
    if (!read_header(reader, dim_count, item_dims, count_out)) goto err_close;
    items = malloc(*count_out * item_bytes);
    if (!items) {
        fail(reader, "out of memory for %s (%zu bytes)", reader->path, *count_out * item_bytes);
        goto err_close;
    }
    if (!read_body(reader, items, *count_out * item_bytes)) goto err_free;
    gzclose_r(reader->file);
    *items_out = items;
    return true;

err_free:
    free(items);
err_close:
    gzclose_r(reader->file);
    return false;
}

bool dataset_load(struct dataset *dataset, const char *directory, const char *prefix, char *error,
                  size_t error_bytes)
{
    struct reader reader = {.error = error, .error_bytes = error_bytes};
    struct dataset loaded = {0};
    uint32_t label_count = 0;

    snprintf(reader.path, sizeof(reader.path), "%s/%s-images-idx3-ubyte.gz", directory, prefix);
    if (!load_items(&reader, 3, &loaded.count, &loaded.pixels)) return false;
    snprintf(reader.path, sizeof(reader.path), "%s/%s-labels-idx1-ubyte.gz", directory, prefix);
    if (!load_items(&reader, 1, &label_count, &loaded.labels)) goto err_free;
    if (label_count != loaded.count) {
        fail(&reader, "wrong file: %s has %u labels for %u images; " PACKAGE_HINT, reader.path,
             (unsigned)label_count, (unsigned)loaded.count);
        goto err_free;
    }
    for (uint32_t i = 0; i < label_count; i++) {
        if (loaded.labels[i] < CLASS_COUNT) continue;
        fail(&reader,
             "corrupt file: label %u of %s is %u, not 0 to %d; reinstall the Debian package "
             "dataset-fashion-mnist",
             (unsigned)i, reader.path, loaded.labels[i], CLASS_COUNT - 1);
        goto err_free;
    }
    *dataset = loaded;
    return true;

err_free:
    dataset_free(&loaded);
    return false;
}

void dataset_free(struct dataset *dataset)
{
    free(dataset->pixels);
    free(dataset->labels);
    *dataset = (struct dataset){0};
}
