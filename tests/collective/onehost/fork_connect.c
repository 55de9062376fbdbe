/* fork_connect.c - see fork_connect.h. */
#include "tests/collective/onehost/fork_connect.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *fork_connect_all(struct fork_connect *fork_connect, struct weft_transport *transport,
                             uint32_t rank, uint32_t ranks, uint32_t first_id, uint32_t *ids_out)
{
    const void *blob;
    size_t bytes;
    if (weft_transport_address(transport, &blob, &bytes) != WEFT_OK) return "address";
    memcpy(fork_connect->blobs[rank], blob, bytes);
    fork_connect->bytes[rank] = bytes;
    atomic_fetch_add(&fork_connect->addresses, 1);
    while (atomic_load(&fork_connect->addresses) < ranks) usleep(100);
    for (uint32_t r = 0; r < ranks; r++) {
        struct weft_peer *peer;
        ids_out[r] = first_id + r;
        if (r != rank && weft_transport_connect(transport, ids_out[r], fork_connect->blobs[r],
                                                fork_connect->bytes[r], &peer) != WEFT_OK)
            return "connect";
    }
    return NULL;
}

void fork_connect_must(bool fine, const char *what)
{
    if (fine) return;
    fprintf(stderr, "child: %s\n", what);
    _exit(3);
}
