/* fuzz_wire.c - decoder of the data header: an accepted header encodes to the same bytes. */
#include <stdlib.h>
#include <string.h>

#include "proto/proto.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct weft_wire_header header;
    uint8_t again[WEFT_WIRE_HEADER_BYTES];
    char text[WEFT_LIMIT_RESULT_TEXT_BYTES + 1];
    if (weft_wire_decode(data, bytes, &header) != WEFT_OK) return 0;
    weft_wire_text(data, &header, text);
    weft_wire_encode(&header, again);
    if (memcmp(again, data, sizeof again) != 0) abort();
    return 0;
}
