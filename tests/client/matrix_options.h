/* matrix_options.h - options of the t-th matrix of a test, named "t0", "t1" and so on. `name` must stay
 * until weft_declare. */
#ifndef TEST_CLIENT_MATRIX_OPTIONS_H
#define TEST_CLIENT_MATRIX_OPTIONS_H

#include <stdint.h>
#include <stdio.h>

#include "weft/weft.h"

static inline void matrix_options(struct weft_tensor_options *options, char name[16], uint32_t t,
                                  uint64_t rows, uint64_t columns, const char *codec)
{
    weft_tensor_options_init(options);
    snprintf(name, 16, "t%u", t);
    options->name = name;
    options->dim_count = 2;
    options->dims[0] = rows;
    options->dims[1] = columns;
    options->codec = codec;
}

#endif
