/* fail_env.c - see fail_env.h. */
#include "tests/lib/fail_env.h"

#include <malloc.h>

#include "tests/lib/check.h"

/* More allocations than this in one create mean an endless loop. */
#define ATTEMPTS_MAX 10000

static void *fail_alloc(struct weft_env *env, size_t bytes)
{
    struct fail_env *fail = env->context;
    if (atomic_fetch_add(&fail->allocations, 1) + 1 == fail->fail_at) {
        atomic_store(&fail->failed, true);
        return NULL;
    }
    void *memory = weft_alloc_bytes(weft_env_system(), bytes);
    if (!memory) return NULL;
    atomic_fetch_add(&fail->live, 1);
    atomic_fetch_add(&fail->live_bytes, (long long)malloc_usable_size(memory));
    return memory;
}

static void fail_free(struct weft_env *env, void *memory)
{
    struct fail_env *fail = env->context;
    if (!memory) return;
    atomic_fetch_sub(&fail->live, 1);
    atomic_fetch_sub(&fail->live_bytes, (long long)malloc_usable_size(memory));
    weft_free_bytes(weft_env_system(), memory);
}

static uint64_t fail_now(struct weft_env *env)
{
    return weft_now_ns(weft_env_system());
}

static uint64_t fail_random(struct weft_env *env)
{
    return weft_random_u64(weft_env_system());
}

void fail_env_init(struct fail_env *fail, uint64_t fail_at)
{
    *fail = (struct fail_env){.fail_at = fail_at};
    fail->env.now_ns = fail_now;
    fail->env.random_u64 = fail_random;
    fail->env.alloc = fail_alloc;
    fail->env.free = fail_free;
    fail->env.context = fail;
}

void check_failing_allocations(enum weft_status (*attempt)(struct weft_env *env, void *context),
                               void *context)
{
    for (uint64_t fail_at = 1;; fail_at++) {
        struct fail_env fail;
        fail_env_init(&fail, fail_at);
        enum weft_status status = attempt(&fail.env, context);
        if (fail.live != 0)
            fail_msg("with allocation %llu failing %lld are not freed", (unsigned long long)fail_at,
                     (long long)fail.live);
        if (!fail.failed) {
            assert_int_equal(status, WEFT_OK);
            return;
        }
        if (status != WEFT_ERR_NO_MEMORY)
            fail_msg("with allocation %llu failing the status is %s", (unsigned long long)fail_at,
                     weft_status_name(status));
        assert_true(fail_at < ATTEMPTS_MAX);
    }
}
