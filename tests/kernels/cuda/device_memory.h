/* device_memory.h - memory, copies and the clock of a GPU for tests and benchmarks, without CUDA's headers.
 * One device, the first; its legacy stream, which is the NULL that tests give to every kernel. Every failure
 * ends the program with CUDA's words: a test has nothing better to do. */
#ifndef WEFT_TESTS_DEVICE_MEMORY_H
#define WEFT_TESTS_DEVICE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Name and properties of the device. False and a reason if no device is usable. */
bool check_device_open(char *text_out, size_t bytes);
/* Bytes that are not taken; 0 where the device is not one. */
size_t device_memory_free(void);
void *device_alloc(size_t bytes); /* NULL where memory is short */
void device_free(void *memory);
void device_put(void *device, const void *host, size_t bytes);
void device_get(void *host, const void *device, size_t bytes); /* after all queued work */
void device_set(void *device, int byte, size_t bytes);
void device_copy_queue(void *to, const void *from, size_t bytes);
/* Seconds that the device works on what `queue` queues, without the host's own for each launch. */
double device_seconds(void (*queue)(void *context), void *context);

#ifdef __cplusplus
}
#endif

#endif
