/* meeting.h - processes forked by a test connect their endpoints, each with all others, by memory that they share. */
#ifndef TEST_COLLECTIVE_MEETING_H
#define TEST_COLLECTIVE_MEETING_H

#include <stdbool.h>

#include "transport/transport.h"

enum { MEETING_RANKS_MAX = 8 };

struct meeting { /* zeroed, in shared memory */
    _Atomic uint32_t addresses;
    uint8_t blobs[MEETING_RANKS_MAX][WEFT_TRANSPORT_ADDRESS_BYTES_MAX];
    size_t bytes[MEETING_RANKS_MAX];
};

/* Leaves the address of this rank's endpoint, waits for those of the others (who end with their parent) and connects. ids_out (ranks,):
 * rank r's endpoint is first_id + r, as opened. NULL, or what failed. */
const char *meeting_connect(struct meeting *meeting, struct weft_transport *transport, uint32_t rank, uint32_t ranks, uint32_t first_id,
                            uint32_t *ids_out);

/* In a child: else it says so and ends. */
void meeting_must(bool fine, const char *what);

#endif
