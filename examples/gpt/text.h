/* text.h - the text of the training, and the samples of each step. */
#ifndef GPT_TEXT_H
#define GPT_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct text {
    uint8_t *bytes;      /* owned */
    uint64_t count;
    uint64_t held_out;   /* the last bytes, never trained on */
};

/* Reads a plain or gzip-packed file. length: bytes of a sample. false: error has one sentence. */
bool text_load(struct text *text, const char *path, uint32_t length, char *error, size_t error_bytes);
void text_free(struct text *text);
/* Copies samples [first, first + count) of the step, (count, length + 1). The choice depends on step and
 * sample alone: equal for any number of ranks. */
void text_batch(const struct text *text, uint64_t seed, uint64_t step, uint32_t first, uint32_t count,
                uint32_t length, uint8_t *out);
/* The same of the held-out part: its samples in order, from the beginning again after the last. */
void text_held_out(const struct text *text, uint32_t first, uint32_t count, uint32_t length, uint8_t *out);

#endif
