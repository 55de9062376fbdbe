/* exchange.h - one non-blocking TCP connection that carries one message in each direction. */
#ifndef WEFT_NCCL_NET_EXCHANGE_H
#define WEFT_NCCL_NET_EXCHANGE_H

#include <stdbool.h>

#include "nccl/net/exchange_wire.h"

struct exchange {
    int fd; /* -1: none */
    size_t out_bytes, sent, in_bytes;
    uint8_t out[WIRE_MESSAGE_BYTES_MAX], in[WIRE_MESSAGE_BYTES_MAX];
};

void exchange_init(struct exchange *exchange, int fd);
/* Starts to connect. WEFT_OK, WEFT_ERR_LIMIT (descriptors), WEFT_ERR_UNREACHABLE, WEFT_ERR_IO. */
enum weft_status exchange_dial(struct exchange *exchange, const struct wire_handle *handle);
/* Writes what is left of `out`. WEFT_OK: everything is written. WEFT_IN_PROGRESS. WEFT_ERR_PEER_LOST,
 * WEFT_ERR_UNREACHABLE (no listener at the address). */
enum weft_status exchange_write(struct exchange *exchange);
/* Reads one message. WEFT_OK: `in` has it, in_bytes long. WEFT_IN_PROGRESS. WEFT_ERR_MALFORMED,
 * WEFT_ERR_PEER_LOST. */
enum weft_status exchange_read(struct exchange *exchange);
/* The peer has closed its end, as it does after its own timeout. */
bool exchange_has_ended(const struct exchange *exchange);
void exchange_close(struct exchange *exchange);

/* Binds to the address and a free port, or the first free one of `ports` ("first-last"; "": any), and
 * listens. Writes the port into the address. WEFT_ERR_INVALID (ports), WEFT_ERR_EXISTS (none is free),
 * WEFT_ERR_LIMIT, WEFT_ERR_IO. */
enum weft_status exchange_listen(struct sockaddr_storage *address, socklen_t bytes, const char *ports,
                                 int *fd_out, struct weft_error *error);
/* "10.0.0.1:40000" */
void exchange_describe(const struct sockaddr_storage *address, socklen_t bytes, char *out, size_t out_bytes);

#endif
