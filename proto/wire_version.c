/* wire_version.c - wire versions: which ones a process speaks, which one two processes share, and what each
 * version has.
 *
 *     version 1   release 0.1.0, and everything since then that a capability in Hello announces
 *     version 2   consistency ssp and asp, pull_dtype, 16-bit tensors in server mode, a weight decay of the
 *                 step, clipping at shards and results that are known to be finite; in elastic jobs
 *                 TensorFree, and with shards codecs and new workers
 *
 * A member of version 1 cannot announce the additions of version 2, so a job with such a member has none of
 * them. Challenge.wire_version is the oldest version: a member of version 1 refuses any other value. */
#include <stdio.h>

#include "proto/proto.h"

struct weft_wire_range weft_wire_range_own(uint32_t limit)
{
    const bool has_limit = limit >= WEFT_WIRE_VERSION_OLDEST && limit < WEFT_WIRE_VERSION;
    return (struct weft_wire_range){WEFT_WIRE_VERSION_OLDEST, has_limit ? limit : WEFT_WIRE_VERSION};
}

struct weft_wire_range weft_wire_range_of_challenge(const Weft__Control__Challenge *challenge)
{
    return (struct weft_wire_range){
        challenge->wire_version, challenge->wire_newest ? challenge->wire_newest : challenge->wire_version};
}

struct weft_wire_range weft_wire_range_of_hello(const Weft__Control__Hello *hello)
{
    return (struct weft_wire_range){hello->wire_oldest ? hello->wire_oldest : hello->wire_version,
                                    hello->wire_newest ? hello->wire_newest : hello->wire_version};
}

void weft_wire_range_challenge(struct weft_wire_range own, Weft__Control__Challenge *challenge)
{
    challenge->wire_version = own.oldest;
    challenge->wire_newest = own.newest > 1 ? own.newest : 0;
}

void weft_wire_range_hello(struct weft_wire_range own, uint32_t version, Weft__Control__Hello *hello)
{
    hello->wire_version = version;
    hello->wire_oldest = own.newest > 1 ? own.oldest : 0;
    hello->wire_newest = own.newest > 1 ? own.newest : 0;
}

uint32_t weft_wire_range_common(struct weft_wire_range a, struct weft_wire_range b)
{
    const uint32_t newest = a.newest < b.newest ? a.newest : b.newest;
    return weft_wire_range_has(a, newest) && weft_wire_range_has(b, newest) ? newest : 0;
}

bool weft_wire_range_has(struct weft_wire_range range, uint32_t version)
{
    return version >= range.oldest && version <= range.newest;
}

const char *weft_wire_range_text(struct weft_wire_range range, char out[WEFT_WIRE_RANGE_TEXT_BYTES])
{
    if (range.oldest == range.newest) snprintf(out, WEFT_WIRE_RANGE_TEXT_BYTES, "%u", range.newest);
    else snprintf(out, WEFT_WIRE_RANGE_TEXT_BYTES, "%u to %u", range.oldest, range.newest);
    return out;
}

uint32_t weft_wire_version_of_declare(const Weft__Control__Declare *declare, bool is_dense, bool is_elastic,
                                      const char **what_out)
{
    struct weft_consistency consistency;
    struct weft_error error = {0};
    *what_out = "";
    if (declare->mode != WEFT_WIRE_MODE_SERVER) return 1;
    if (weft_consistency_parse(declare->consistency, &consistency, &error) == WEFT_OK &&
        consistency.kind != WEFT_CONSISTENCY_BSP)
        *what_out = "consistency ssp or asp";
    else if (declare->pull_dtype != 0) *what_out = "pull_dtype";
    else if (weft_dtype_is_half(declare->dtype)) *what_out = "a 16-bit dtype in server mode";
    else if (is_elastic && !is_dense) *what_out = "a codec in server mode of an elastic job";
    return (*what_out)[0] ? 2 : 1;
}

uint32_t weft_wire_version_of_header(const struct weft_wire_header *header)
{
    const bool is_state = header->kind == WEFT_WIRE_STATE_PULL || header->kind == WEFT_WIRE_STATE_INIT;
    const bool has_decay = header->flags & WEFT_WIRE_DECAY &&
                           (weft_wire_contributes(header->kind) || header->kind == WEFT_WIRE_REPLICATE);
    const bool is_finite = header->kind == WEFT_WIRE_RESULT && header->flags & WEFT_WIRE_FINITE;
    const bool is_newer = is_finite || header->kind == WEFT_WIRE_PUSH_HOLD ||
                          header->kind == WEFT_WIRE_APPLY || header->kind == WEFT_WIRE_COMPARE ||
                          weft_dtype_is_half(header->dtype) || has_decay ||
                          (is_state && header->round == WEFT_WIRE_PART_WEIGHTS);
    return is_newer ? 2 : 1;
}

enum weft_status weft_wire_version_refuse(const char *what, uint32_t needed, uint32_t version,
                                          const char *process, struct weft_error *error)
{
    return weft_error_set(error, WEFT_ERR_VERSION,
                          "%s needs wire version %u and this job has version %u, because %.200s spoke no "
                          "newer one when it began: upgrade that process, then start the job again",
                          what, needed, version, process);
}
