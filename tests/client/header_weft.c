/* Each public header compiles alone, first in its file, as C11 (and as C++ in header_weft.cpp). */
#include <weft/weft.h>
/* The second inclusion must change nothing. */
#include <weft/weft.h>
const char *header_weft_version(void);
const char *header_weft_version(void) { return weft_version(); }
