#include "tests/transport/process_pair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void on_failed(void *context, uint32_t peer_id, enum weft_status status, const char *text)
{
    struct side *side = context;
    if (strlen(text) == 0) abort();
    side->failed++;
    side->failed_status = status;
}

void side_write(int fd, const void *data, size_t bytes)
{
    if (write(fd, data, bytes) != (ssize_t)bytes) abort();
}

void side_read(int fd, void *data, size_t bytes)
{
    for (size_t have = 0; have < bytes;) {
        ssize_t got = read(fd, (char *)data + have, bytes - have);
        if (got <= 0) abort();
        have += (size_t)got;
    }
}

void side_open(struct side *side, const struct flavour *flavour, const char *device, int who, int fd)
{
    struct weft_transport_options options;
    struct weft_error error = {0};
    memset(side, 0, sizeof *side);
    weft_transport_options_init(&options);
    options.backend = flavour->backend;
    if (flavour->lanes) options.lanes = flavour->lanes;
    if (!device) device = net_devices(who);
    if (device) options.devices = device;
    options.wrap = flavour->wrap;
    options.tune = flavour->tune;
    options.id = 10 + (uint32_t)who;
    options.nonce = 77;
    options.secret = "secret";
    options.secret_bytes = 6;
    options.peer_failed = on_failed;
    options.peer_failed_context = side;
    if (weft_transport_open(weft_env_system(), &options, &side->transport, &error) < 0) {
        fprintf(stderr, "%s\n", error.text);
        abort();
    }
    const void *blob;
    size_t bytes;
    unsigned char theirs[WEFT_TRANSPORT_ADDRESS_BYTES_MAX];
    weft_transport_address(side->transport, &blob, &bytes);
    side_write(fd, &bytes, sizeof bytes);
    side_write(fd, blob, bytes);
    side_read(fd, &bytes, sizeof bytes);
    if (bytes > sizeof theirs) abort();
    side_read(fd, theirs, bytes);
    if (weft_transport_connect(side->transport, 11 - (uint32_t)who, theirs, bytes, &side->peer) < 0) abort();
}

void side_close(struct side *side)
{
    weft_transport_close(side->transport);
    for (uint64_t limit_ns = net_now_ns() + WEFT_SECONDS(60); !weft_transport_drained(side->transport);) {
        weft_transport_progress(side->transport, 64);
        if (net_now_ns() > limit_ns) abort();
    }
    weft_transport_free(side->transport);
}

void *side_alloc(bool from_transport, size_t bytes)
{
    void *memory = NULL;
    if (!from_transport) memory = calloc(1, bytes);
    else if (weft_memory_alloc(weft_env_system(), bytes, &memory, NULL) < 0) abort();
    return memory;
}

void side_release_memory(bool from_transport, void *memory)
{
    if (from_transport) weft_memory_free(weft_env_system(), memory);
    else free(memory);
}
