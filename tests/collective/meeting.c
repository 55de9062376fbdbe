/* meeting.c - see meeting.h. */
#include "tests/collective/meeting.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *meeting_connect(struct meeting *meeting, struct weft_transport *transport, uint32_t rank, uint32_t ranks, uint32_t first_id,
                            uint32_t *ids_out)
{
    const void *blob;
    size_t bytes;
    if (weft_transport_address(transport, &blob, &bytes) != WEFT_OK) return "address";
    memcpy(meeting->blobs[rank], blob, bytes);
    meeting->bytes[rank] = bytes;
    atomic_fetch_add(&meeting->addresses, 1);
    while (atomic_load(&meeting->addresses) < ranks) usleep(100);
    for (uint32_t r = 0; r < ranks; r++) {
        struct weft_peer *peer;
        ids_out[r] = first_id + r;
        if (r != rank && weft_transport_connect(transport, ids_out[r], meeting->blobs[r], meeting->bytes[r], &peer) != WEFT_OK) return "connect";
    }
    return NULL;
}

void meeting_must(bool fine, const char *what)
{
    if (fine) return;
    fprintf(stderr, "child: %s\n", what);
    _exit(3);
}
