#include <weft/status.h>
const char *header_status_name(void);
const char *header_status_name(void) { return weft_status_name(WEFT_OK); }
