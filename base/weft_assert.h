/* weft_assert.h - assertions that stay on.
 * WEFT_ASSERT guards against weft's own bugs on control paths (arguments between rooms, states,
 * counts) and is compiled into every build. WEFT_DASSERT is for per-element loops and follows the
 * build type. No input, peer or machine state may reach either: those get a status. */
#ifndef WEFT_BASE_ASSERT_H
#define WEFT_BASE_ASSERT_H

_Noreturn void weft_assert_failed(const char *expression, const char *file, int line);

#define WEFT_ASSERT(expression) \
    ((expression) ? (void)0 : weft_assert_failed(#expression, __FILE__, __LINE__))

#ifdef WEFT_DEBUG
#define WEFT_DASSERT(expression) WEFT_ASSERT(expression)
#else
#define WEFT_DASSERT(expression) ((void)sizeof(!(expression)))
#endif

/* The one flow macro: forward an error (negative status) to the caller. */
#define WEFT_TRY(expression)                              \
    do {                                                  \
        enum weft_status weft_try_ = (expression);        \
        if (weft_try_ < 0) return weft_try_;              \
    } while (0)

#endif
