/* device_order.h - the order that a device guarantees, for the thread sanitizer.
 *
 * The streams of the fake runtime are threads, and its lock would order all of them for the sanitizer. So
 * the runtime is compiled without the sanitizer (FAKE_CUDA_ORDER=1), its lock is ignored, and it reports the
 * order of CUDA alone: a call before the work that it queues, the items of one stream, an event before the
 * waits and polls that observe it, a store to a word before the wait for it. Everything else that touches the
 * same bytes is a data race: an access without a needed event is an error in each run, whatever the delays
 * are. */
#ifndef TEST_DEVICE_ORDER_H
#define TEST_DEVICE_ORDER_H

#include <stdatomic.h>

#ifndef FAKE_CUDA_ORDER
#define FAKE_CUDA_ORDER 0
#endif

#if FAKE_CUDA_ORDER
void AnnotateIgnoreSyncBegin(const char *file, int line);
void AnnotateIgnoreSyncEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
void __tsan_acquire(void *address);
void __tsan_release(void *address);
void __tsan_atomic32_store(volatile int *address, int value, int order);

/* Between the two calls the sanitizer ignores locks, conditions and joins of this thread. It also ignores
 * allocations and releases, which access memory of the runtime itself. */
static inline void order_ignore(void)
{
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}
static inline void order_observe(void)
{
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
}
/* Orders all earlier accesses of this thread before the accesses behind an order_after() of that address. */
static inline void order_before(const void *address)
{
    __tsan_release((void *)address);
}
static inline void order_after(const void *address)
{
    __tsan_acquire((void *)address);
}
/* A store by the device, atomic: the release of that memory without an order is a race. */
static inline void order_store(_Atomic unsigned *word, unsigned value)
{
    const int release = 3;
    __tsan_atomic32_store((volatile int *)word, (int)value, release);
}
#else
static inline void order_store(_Atomic unsigned *word, unsigned value)
{
    atomic_store(word, value);
}
static inline void order_ignore(void) {}
static inline void order_observe(void) {}
static inline void order_before(const void *address) {}
static inline void order_after(const void *address) {}
#endif

#endif
