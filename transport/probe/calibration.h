/* calibration.h - the figures of the one-host plans as one versioned blob. Rank 0 reads them from its link
 * table, and the coordinator passes the blob to all ranks unread. So a new figure changes this file and its
 * users only.
 *
 *   version u32 | memory count u32 (8) | so many numbers u32 | runs count u32 (0 or 64) | so many numbers u32
 *
 * Little endian. The numbers are those of struct weft_link_memory and struct weft_link_runs, in their order,
 * each at most 999,999,999, as in the link table. Ranks must choose equally, so a blob is accepted completely
 * or not at all. Pure. */
#ifndef WEFT_TRANSPORT_CALIBRATION_H
#define WEFT_TRANSPORT_CALIBRATION_H

#include "transport/probe/link_table.h"

#define WEFT_CALIBRATION_BYTES_MAX 1024u /* of every version */

/* Writes the blob and returns its bytes; 0: nothing was measured. */
size_t weft_calibration_encode(const struct weft_link_memory *memory, const struct weft_link_runs *runs,
                               uint8_t out[WEFT_CALIBRATION_BYTES_MAX]);
/* WEFT_OK; an empty blob is one without measurements. WEFT_ERR_MALFORMED, WEFT_ERR_VERSION: both outputs
 * are all zero, not measured. */
enum weft_status weft_calibration_decode(const void *data, size_t bytes, struct weft_link_memory *memory_out,
                                         struct weft_link_runs *runs_out);

#endif
