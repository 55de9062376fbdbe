/* completion.h - one callback for several operations.
 *
 * A completion has a count, the first error and a function. Each operation that returned WEFT_IN_PROGRESS
 * finishes it once. An operation that returned WEFT_OK is complete and does not finish it. When the count
 * reaches zero, fn runs on the engine thread with the first error or WEFT_OK, never inside the call that
 * started an operation. The caller owns the memory. */
#ifndef WEFT_BASE_COMPLETION_H
#define WEFT_BASE_COMPLETION_H

#include <stdint.h>

#include "base/weft_assert.h"
#include "weft/status.h"

struct weft_completion {
    void (*fn)(struct weft_completion *completion, enum weft_status status);
    uint32_t count;           /* operations that have not finished */
    enum weft_status status;  /* first error, or WEFT_OK */
};

static inline void weft_completion_init(struct weft_completion *completion, uint32_t count,
                                        void (*fn)(struct weft_completion *, enum weft_status))
{
    completion->fn = fn;
    completion->count = count;
    completion->status = WEFT_OK;
}

static inline void weft_completion_finish(struct weft_completion *completion, enum weft_status status)
{
    WEFT_ASSERT(completion->count > 0);
    if (status < 0 && completion->status == WEFT_OK) completion->status = status;
    if (--completion->count == 0) completion->fn(completion, completion->status);
}

#endif
