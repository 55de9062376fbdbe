/* fuzz.h - functions of a fuzz target. */
#ifndef WEFT_TESTS_FUZZ_H
#define WEFT_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Runs one input; aborts on a violation. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Optional: writes the number-th well-formed input, at most `capacity` bytes. Returns its length. */
size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity);

#endif
