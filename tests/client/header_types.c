#include <weft/types.h>
size_t header_types_bytes(void);
size_t header_types_bytes(void) { return weft_dtype_bytes(WEFT_F32); }
