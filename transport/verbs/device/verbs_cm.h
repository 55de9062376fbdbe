/* verbs_cm.h - queue pairs connected by librdmacm (setting connect=cm) instead of by exchanged addresses.
 *
 * For networks where the connection manager must set up paths (InfiniBand beyond one subnet, partition
 * policies), or where operators want to see the connections. One listener per rail. The authenticated link
 * decides which peer may connect: the accepting side sends its address and a token of 32 random bytes, valid
 * for one connection. A request without an expected token is refused at once.
 *
 *     accepting side: create queue pair, verbs_cm_expect(token)  -- link: address, token -->
 *     dialling side:  create queue pair, verbs_cm_dial
 *     both: verbs_cm_next: VERBS_CM_CONNECTED, or VERBS_CM_FAILED; later VERBS_CM_DISCONNECTED
 *
 * Nothing blocks. Engine thread only. */
#ifndef WEFT_TRANSPORT_VERBS_DEVICE_VERBS_CM_H
#define WEFT_TRANSPORT_VERBS_DEVICE_VERBS_CM_H

#include "transport/verbs/device/verbs_device.h"

enum { VERBS_CM_TOKEN_BYTES = 32, VERBS_CM_ADDRESS_BYTES = 28 };

struct verbs_cm;

/* WEFT_ERR_UNSUPPORTED: no connection manager in the kernel, or the port has no IP address;
 * WEFT_ERR_NO_MEMORY, WEFT_ERR_IO. */
enum weft_status verbs_cm_open(struct verbs_rail *rail, struct verbs_cm **out, struct weft_error *error);
/* Call before the rail's queue pairs are destroyed. NULL is fine. */
void verbs_cm_close(struct verbs_cm *cm);
void verbs_cm_address(const struct verbs_cm *cm, uint8_t out[VERBS_CM_ADDRESS_BYTES]);
int verbs_cm_fd(const struct verbs_cm *cm);

/* Expects the peer to dial a fresh queue pair; writes a new token to `token_out`. WEFT_OK,
 * WEFT_ERR_NO_MEMORY, WEFT_ERR_STATE. */
enum weft_status verbs_cm_expect(struct verbs_cm *cm, struct verbs_queue_pair *queue_pair,
                                 uint8_t token_out[VERBS_CM_TOKEN_BYTES]);
/* Dials with a fresh queue pair. WEFT_OK: an event follows; WEFT_ERR_MALFORMED, WEFT_ERR_UNREACHABLE,
 * WEFT_ERR_NO_MEMORY, WEFT_ERR_STATE. */
enum weft_status verbs_cm_dial(struct verbs_cm *cm, struct verbs_queue_pair *queue_pair,
                               const uint8_t address[VERBS_CM_ADDRESS_BYTES],
                               const uint8_t token[VERBS_CM_TOKEN_BYTES], struct weft_error *error);
/* Forgets the queue pair in any state and closes its connection; call before verbs_queue_pair_destroy. No
 * event follows. */
void verbs_cm_drop(struct verbs_cm *cm, struct verbs_queue_pair *queue_pair);

enum verbs_cm_kind { VERBS_CM_CONNECTED = 1, VERBS_CM_FAILED, VERBS_CM_DISCONNECTED };
struct verbs_cm_event {
    enum verbs_cm_kind kind;
    struct verbs_queue_pair *queue_pair;
    enum weft_status status; /* VERBS_CM_FAILED, VERBS_CM_DISCONNECTED */
    char text[400];          /* names peer, device and cause */
};
/* Returns one event, if there is one. */
bool verbs_cm_next(struct verbs_cm *cm, struct verbs_cm_event *event_out);
/* Refused requests: without a token, with a wrong or used one. */
uint64_t verbs_cm_refused(const struct verbs_cm *cm);

#endif
