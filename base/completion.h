/* completion.h - many operations, one callback. A completion is {count, first error, fn}: each operation
 * it is given to finishes it once; fn runs when the count reaches zero, with the first error seen (or
 * WEFT_OK). fn runs on the engine's thread, never from inside the call that started an operation. An
 * operation that answers WEFT_OK is over and finishes nothing: only one that answered WEFT_IN_PROGRESS
 * counts down. Memory belongs to the caller. */
#ifndef WEFT_BASE_COMPLETION_H
#define WEFT_BASE_COMPLETION_H

#include <stdint.h>

#include "base/weft_assert.h"
#include "weft/status.h"

struct weft_completion {
    void (*fn)(struct weft_completion *completion, enum weft_status status);
    uint32_t count;           /* operations still to finish */
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
