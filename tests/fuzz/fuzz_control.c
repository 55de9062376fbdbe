/* fuzz_control.c - the control decoder: whatever it accepts may be packed again. (Unknown fields are carried
 * along as they came, odd numbers and all, so the second decoding may refuse what the first skipped.) */
#include <stdlib.h>

#include "proto/proto.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct weft_env *env = weft_env_system();
    Weft__Control__Control *message, *second;
    uint8_t *packed;
    size_t packed_bytes;
    if (weft_control_unpack(env, data, bytes, &message) != WEFT_OK) return 0;
    if (weft_control_pack(env, message, &packed, &packed_bytes) != WEFT_OK) abort();
    if (weft_control_unpack(env, packed, packed_bytes, &second) == WEFT_OK) weft_control_free(env, second);
    weft_free_bytes(env, packed);
    weft_control_free(env, message);
    return 0;
}
