/* weft_assert.c - ends the process after a failed assertion. No other code of the library ends the process.
 * Continuing could write wrong weights. Uses write(2), since stdio may be broken. */
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
        /* nowhere to report it */
    }
    abort();
}
