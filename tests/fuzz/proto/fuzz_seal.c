/* fuzz_seal.c - a relay between the two sides of a sealed control connection: whatever it delivers, a frame
 * passes only if it is the next one of the other side, unchanged; then it is decoded as the coordinator does.
 *
 * Input: one byte of choice for each delivery, then the bytes that it uses. */
#include <stdlib.h>
#include <string.h>

#include "proto/proto.h"
#include "tests/fuzz/fuzz.h"

enum { FRAMES = 8, BODY_MAX = 64, FRAME_MAX = BODY_MAX + WEFT_SEAL_BYTES };

struct frame {
    uint8_t data[FRAME_MAX];
    size_t bytes;
};

static void start(struct weft_seal *seal, enum weft_seal_side side)
{
    static const uint8_t challenge[] = "challenge", hello[] = "hello";
    if (weft_seal_challenge(seal, challenge, sizeof challenge) < 0 ||
        weft_seal_start(seal, side, "secret", hello, sizeof hello) < 0)
        abort();
}

static void send_frames(struct weft_seal *seal, uint8_t fill, struct frame frames[FRAMES])
{
    for (size_t i = 0; i < FRAMES; i++) {
        frames[i].bytes = 1 + (fill + 7 * i) % BODY_MAX;
        memset(frames[i].data, (int)(fill + i), frames[i].bytes);
        if (weft_seal_append(seal, frames[i].data, &frames[i].bytes) < 0) abort();
    }
}

static void deliver(struct weft_seal *seal, const struct frame *frame, const struct frame *next)
{
    size_t bytes = frame->bytes;
    Weft__Control__Control *message;
    const bool is_next =
        next && frame->bytes == next->bytes && memcmp(frame->data, next->data, next->bytes) == 0;
    if (weft_seal_check(seal, frame->data, &bytes) != is_next) abort();
    if (bytes != frame->bytes - (is_next ? WEFT_SEAL_BYTES : 0)) abort();
    if (!is_next || weft_control_unpack(weft_env_system(), frame->data, bytes, &message) < 0) return;
    weft_control_free(weft_env_system(), message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct weft_seal member, coordinator, receiver;
    struct frame sent[FRAMES], back[FRAMES], changed;
    size_t next = 0;
    if (bytes < 2) return 0;
    start(&member, WEFT_SEAL_MEMBER);
    start(&coordinator, WEFT_SEAL_COORDINATOR);
    receiver = coordinator;
    send_frames(&member, data[0], sent);
    send_frames(&coordinator, data[1], back);
    for (size_t at = 2; at + 2 < bytes; at += 3) {
        const uint8_t choice = data[at] % 4;
        const struct frame *from = choice == 3 ? &back[data[at + 1] % FRAMES] : &sent[data[at + 1] % FRAMES];
        changed = *from;
        if (choice == 0 && next < FRAMES) changed = sent[next]; /* in order */
        if (choice == 1) changed.data[data[at + 2] % changed.bytes] ^= data[at + 1];
        if (choice == 2) changed.bytes = data[at + 2] % (changed.bytes + 1); /* cut */
        const uint64_t before = receiver.received;
        deliver(&receiver, &changed, next < FRAMES ? &sent[next] : NULL);
        next += receiver.received - before;
    }
    return 0;
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    size_t bytes = 2 + 3 * (number % 20);
    if (bytes > capacity) bytes = capacity;
    for (size_t i = 0; i < bytes; i++) out[i] = (uint8_t)((number + i) * 0x9e3779b97f4a7c15u >> 56);
    for (size_t i = 2; i < bytes && number % 3 == 0; i += 3) out[i] = 0;
    return bytes;
}
