/* text.c - see text.h. zlib reads plain files too, and dictzip files as gzip. */
#include "text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "model.h"

#define PACKAGE_HINT "install the Debian package dict-gcide, or name a text with --text FILE"
enum { BYTES_MAX = 1 << 28 };

/* Reads the open file to its end into text->bytes. Returns NULL, or the reason. */
static const char *read_all(struct text *text, gzFile file)
{
    uint64_t capacity = 0;
    for (;;) {
        if (text->count == capacity) {
            if (capacity >= BYTES_MAX) return "it is longer than 256 MiB";
            capacity = capacity ? 2 * capacity : 1 << 20;
            uint8_t *grown = realloc(text->bytes, capacity);
            if (!grown) return "out of memory";
            text->bytes = grown;
        }
        const int got = gzread(file, text->bytes + text->count, (unsigned)(capacity - text->count));
        if (got < 0) return "it cannot be read, or is a damaged gzip file";
        if (got == 0) return NULL;
        text->count += (uint64_t)got;
    }
}

bool text_load(struct text *text, const char *path, uint32_t length, char *error, size_t error_bytes)
{
    *text = (struct text){0};
    errno = 0;
    gzFile file = gzopen(path, "rb");
    if (!file) {
        snprintf(error, error_bytes, "cannot open the text %s: %s; " PACKAGE_HINT, path,
                 errno ? strerror(errno) : "out of memory");
        return false;
    }
    const char *reason = read_all(text, file);
    gzclose_r(file);
    text->held_out = text->count / 20 > length + 1 ? text->count / 20 : length + 1;
    if (!reason && text->count < 4 * text->held_out) reason = "it is too short for --length";
    if (!reason) return true;
    snprintf(error, error_bytes, "the text %s: %s; " PACKAGE_HINT, path, reason);
    text_free(text);
    return false;
}

void text_free(struct text *text)
{
    free(text->bytes);
    *text = (struct text){0};
}

void text_batch(const struct text *text, uint64_t seed, uint64_t step, uint32_t first, uint32_t count,
                uint32_t length, uint8_t *out)
{
    const uint64_t starts = text->count - text->held_out - length;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t state = seed ^ step * 0xd1342543de82ef95u ^ (uint64_t)(first + i + 1) << 40;
        memcpy(out + (size_t)i * (length + 1), text->bytes + random_next(&state) % starts, length + 1);
    }
}

void text_held_out(const struct text *text, uint32_t first, uint32_t count, uint32_t length, uint8_t *out)
{
    const uint8_t *held_out = text->bytes + text->count - text->held_out;
    const uint64_t starts = text->held_out - length;
    for (uint32_t i = 0; i < count; i++)
        memcpy(out + (size_t)i * (length + 1), held_out + (uint64_t)(first + i) * length % starts,
               length + 1);
}
