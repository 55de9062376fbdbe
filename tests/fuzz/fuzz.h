/* fuzz.h - what a fuzz target defines. */
#ifndef WEFT_TESTS_FUZZ_H
#define WEFT_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* One input; a broken promise aborts. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Optional: the number-th well-formed input, at most `room` bytes; returns its length. */
size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t room);

#endif
