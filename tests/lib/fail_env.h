/* fail_env.h - an env whose Nth allocation fails, and the loop that tries every N.
 * It also counts what is not freed, so a leak on an error path is seen without a sanitizer. */
#ifndef WEFT_TESTS_LIB_FAIL_ENV_H
#define WEFT_TESTS_LIB_FAIL_ENV_H

#include <stdatomic.h>

#include "base/env.h"
#include "weft/status.h"

struct fail_env {
    struct weft_env env;  /* hand out &fail.env; the system env but for allocation, and silent */
    uint64_t fail_at;     /* 1: the first allocation fails; 0: none does */
    atomic_ullong allocations;
    atomic_llong live;    /* allocated and not freed */
    atomic_llong live_bytes; /* of those, as malloc rounds them up */
    atomic_bool failed;   /* the chosen allocation was reached */
};

void fail_env_init(struct fail_env *fail, uint64_t fail_at);

/* Run `attempt` with the 1st, 2nd, ... allocation failing until all of them succeed. An attempt makes
 * something, uses it a little, frees everything and returns the first error. Each failing attempt
 * must return WEFT_ERR_NO_MEMORY and leave nothing allocated; the last must return WEFT_OK. */
void check_failing_allocations(enum weft_status (*attempt)(struct weft_env *env, void *context),
                               void *context);

#endif
