/* weft_assert.c - the end of a process whose own invariants do not hold.
 * The one place in the library that may end the process: going on with a broken invariant could
 * write wrong weights, which is worse. write(2), because stdio may be what is broken. */
#include "base/weft_assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void weft_assert_failed(const char *expression, const char *file, int line)
{
    char text[512];
    int bytes = snprintf(text, sizeof text, "weft: bug: assertion \"%s\" failed at %s:%d; please report it\n",
                         expression, file, line);
    if (bytes > (int)sizeof text - 1) bytes = (int)sizeof text - 1;
    if (bytes > 0 && write(STDERR_FILENO, text, (size_t)bytes) < 0) {
        /* nowhere left to say it */
    }
    abort();
}
