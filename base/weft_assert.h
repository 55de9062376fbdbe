/* weft_assert.h - assertions.
 *
 * WEFT_ASSERT detects bugs of weft on control paths (arguments between modules, states, counts) and is in
 * every build. WEFT_DASSERT is for loops over elements, in debug builds only. Inputs, peers and machine
 * states must not reach either: they get a status. */
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

/* Returns an error (negative status) to the caller. */
#define WEFT_TRY(expression)                              \
    do {                                                  \
        enum weft_status weft_try_ = (expression);        \
        if (weft_try_ < 0) return weft_try_;              \
    } while (0)

#endif
