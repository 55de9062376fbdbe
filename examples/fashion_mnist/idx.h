/* idx.h - reads the IDX files of the MNIST family (gzip-compressed), with every byte checked.
 *
 * An IDX file is a big-endian header (0, 0, type, dimensions, then one 32-bit size per dimension), then the
 * elements. The header is UNTRUSTED: the sizes must be those of this data set, and the file must end where
 * they imply. */
#ifndef FASHION_MNIST_IDX_H
#define FASHION_MNIST_IDX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { IMAGE_SIDE = 28, IMAGE_PIXELS = IMAGE_SIDE * IMAGE_SIDE, CLASS_COUNT = 10 };

struct dataset {
    uint32_t count;
    uint8_t *pixels; /* (count, IMAGE_PIXELS), owned */
    uint8_t *labels; /* (count,), each < CLASS_COUNT, owned */
};

/* Reads DIR/<prefix>-images-idx3-ubyte.gz and DIR/<prefix>-labels-idx1-ubyte.gz ("train" or "t10k"). On
 * failure nothing is allocated, and `error` has one sentence: file, fault, remedy. */
bool dataset_load(struct dataset *dataset, const char *directory, const char *prefix, char *error,
                  size_t error_bytes);
void dataset_free(struct dataset *dataset);

#endif
