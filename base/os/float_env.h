/* float_env.h - sets the default floating-point environment, and later restores the caller's with its flags.
 * If the modes are the default already, only the control words are read: fegetenv and fesetenv are slow. */
#ifndef WEFT_BASE_OS_FLOAT_ENV_H
#define WEFT_BASE_OS_FLOAT_ENV_H

#include <fenv.h>
#include <stdbool.h>
#include <stdint.h>

struct float_env {
    fenv_t saved;
    bool changed;    /* restore `saved` */
    uint32_t status; /* not changed: MXCSR at the begin */
};

#ifdef __x86_64__
enum { FLOAT_ENV_FLAGS = 0x3f, FLOAT_ENV_CONTROL = 0x1f80, FLOAT_ENV_X87 = 0x037f };

static inline bool float_env_is_default(uint32_t *status_out)
{
    uint16_t x87; /* no code here uses x87, so its flags do not change */
    __asm__ volatile("fnstcw %0" : "=m"(x87));
    *status_out = __builtin_ia32_stmxcsr();
    return (*status_out & ~(uint32_t)FLOAT_ENV_FLAGS) == FLOAT_ENV_CONTROL && x87 == FLOAT_ENV_X87;
}
#endif

static inline void float_env_begin(struct float_env *env)
{
#ifdef __x86_64__
    env->changed = !float_env_is_default(&env->status);
    if (!env->changed) return;
#endif
    env->changed = true;
    fegetenv(&env->saved);
    fesetenv(FE_DFL_ENV);
}

static inline void float_env_end(const struct float_env *env)
{
    if (env->changed) {
        fesetenv(&env->saved);
        return;
    }
#ifdef __x86_64__
    /* clear flags raised meanwhile */
    if (__builtin_ia32_stmxcsr() != env->status) __builtin_ia32_ldmxcsr(env->status);
#endif
}

/* Sets the default environment until the end of the block. Public calls that parse text, derive constants or
 * add use it, so that the caller's rounding mode and denormal mode do not change a result. */
#define WEFT_DEFAULT_FLOATS                                                   \
    __attribute__((cleanup(float_env_end))) struct float_env default_floats;  \
    float_env_begin(&default_floats)

#endif
