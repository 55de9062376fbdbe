/* fail_env.h - an env whose Nth allocation fails, and a loop over all N. The env also counts live
 * allocations, so a leak on an error path is found without a sanitizer. */
#ifndef WEFT_TESTS_LIB_FAIL_ENV_H
#define WEFT_TESTS_LIB_FAIL_ENV_H

#include <stdatomic.h>

#include "base/env.h"
#include "weft/status.h"

struct fail_env {
    struct weft_env env; /* pass &fail.env: the system env with this allocator and without a log */
    uint64_t fail_at;    /* 1: the first allocation fails; 0: none fails */
    atomic_ullong allocations;
    atomic_llong live;       /* allocations not yet freed */
    atomic_llong live_bytes; /* bytes of those, as rounded up by malloc */
    atomic_bool failed;      /* the chosen allocation was reached */
};

void fail_env_init(struct fail_env *fail, uint64_t fail_at);

/* Runs `attempt` with the 1st, 2nd, ... allocation failing until all allocations succeed. An attempt creates
 * an object, uses it, frees it and returns the first error. Each failing attempt must return
 * WEFT_ERR_NO_MEMORY and leave nothing allocated; the last must return WEFT_OK. */
void check_failing_allocations(enum weft_status (*attempt)(struct weft_env *env, void *context),
                               void *context);

#endif
