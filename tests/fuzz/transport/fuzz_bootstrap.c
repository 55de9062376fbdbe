/* fuzz_bootstrap.c - the handshake between endpoints, both roles, from each of its states; and the address
 * blob. For any input the machine reads only inside the input, sends at most one frame, and stays ended once
 * it has ended.
 *
 *     input: role and state to start from (1 byte), cut (1), bytes of the other side ... */
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "transport/bootstrap/bootstrap_internal.h"

#define MUST(expression)            \
    do {                            \
        if (!(expression)) abort(); \
    } while (0)

enum { DIALER_ID = 3, ACCEPTER_ID = 8 };

struct pair {
    struct handshake_self selves[2];
    struct handshake dialer, accepter;
};

static void pair_init(struct pair *pair)
{
    uint8_t challenges[2][HANDSHAKE_CHALLENGE_BYTES];
    memset(challenges[0], 1, sizeof challenges[0]);
    memset(challenges[1], 2, sizeof challenges[1]);
    MUST(handshake_self_init(&pair->selves[0], DIALER_ID, 7, "secret", 6) == WEFT_OK);
    MUST(handshake_self_init(&pair->selves[1], ACCEPTER_ID, 7, "secret", 6) == WEFT_OK);
    handshake_init(&pair->dialer, &pair->selves[0], HANDSHAKE_DIALER, ACCEPTER_ID, challenges[0]);
    handshake_init(&pair->accepter, &pair->selves[1], HANDSHAKE_ACCEPTER, 0, challenges[1]);
}

/* Passes all output of `from` to `to`. */
static enum handshake_event pass(struct handshake *from, struct handshake *to)
{
    uint8_t data[HANDSHAKE_UNPROVEN_FRAME_MAX];
    size_t bytes = from->out_bytes, used;
    struct handshake_frame frame;
    memcpy(data, from->out, bytes);
    from->out_bytes = 0;
    return handshake_consume(to, data, bytes, &used, &frame);
}

/* Brings both into stage `stage` of the handshake. */
static void converse(struct pair *pair, unsigned stage)
{
    if (stage >= 1) MUST(pass(&pair->dialer, &pair->accepter) == HANDSHAKE_STEP);
    if (stage >= 2) MUST(pass(&pair->accepter, &pair->dialer) == HANDSHAKE_STEP);
    if (stage >= 3) MUST(pass(&pair->dialer, &pair->accepter) == HANDSHAKE_PROVEN);
    if (stage >= 4) MUST(pass(&pair->accepter, &pair->dialer) == HANDSHAKE_PROVEN);
    pair->dialer.out_bytes = pair->accepter.out_bytes = 0;
}

static void check_state(const struct handshake *handshake, enum handshake_state before,
                        enum handshake_event event)
{
    MUST(handshake->state >= before && handshake->state <= HANDSHAKE_CLOSED);
    MUST(handshake->out_bytes <= sizeof handshake->out);
    MUST((event == HANDSHAKE_REFUSED) == (handshake->state == HANDSHAKE_CLOSED));
    if (event == HANDSHAKE_PROVEN) MUST(before == HANDSHAKE_PROOF && handshake->state == HANDSHAKE_OPEN);
    if (event == HANDSHAKE_PARAMETERS)
        MUST(before == HANDSHAKE_OPEN && handshake->state == HANDSHAKE_CONNECTED);
    if (event == HANDSHAKE_MESSAGE) MUST(before == HANDSHAKE_CONNECTED);
    if (event == HANDSHAKE_REFUSED) MUST(handshake->reason > 0 && handshake->reason < BOOTSTRAP_REFUSALS);
}

static void hear(struct handshake *handshake, const uint8_t *data, size_t bytes, size_t cut)
{
    size_t at = 0, there = cut < bytes ? cut : bytes;
    for (;;) {
        struct handshake_frame frame;
        size_t used;
        enum handshake_state before = handshake->state;
        enum handshake_event event = handshake_consume(handshake, data + at, there - at, &used, &frame);
        MUST(used <= there - at);
        check_state(handshake, before, event);
        if (event == HANDSHAKE_PARAMETERS || event == HANDSHAKE_MESSAGE) {
            MUST(frame.data >= data + at && frame.data + frame.bytes <= data + at + used);
            MUST(frame.bytes <= BOOTSTRAP_MESSAGE_BYTES_MAX &&
                 frame.descriptors <= BOOTSTRAP_DESCRIPTORS_MAX);
        }
        handshake->out_bytes = 0;
        at += used;
        if (event == HANDSHAKE_REFUSED) {
            MUST(handshake_consume(handshake, data, bytes, &used, &frame) == HANDSHAKE_REFUSED && used == 0);
            return;
        }
        if (event != HANDSHAKE_NEED_MORE) continue;
        MUST(used == 0);
        if (there == bytes) return;
        there = bytes;
    }
}

static void address(const uint8_t *data, size_t bytes)
{
    static struct bootstrap bootstrap;
    for (int family = BOOTSTRAP_UNIX; family <= BOOTSTRAP_TCP; family++) {
        struct socket_address where;
        char name[80];
        bootstrap.options.family = (enum bootstrap_family)family;
        if (bootstrap_address_decode(&bootstrap, data, bytes, &where) < 0) continue;
        MUST(where.bytes <= sizeof where.storage);
        socket_address_name(&where, name, sizeof name);
        bootstrap.options.id = where.id;
        bootstrap_address_encode(&bootstrap, &where);
        MUST(bootstrap.own_address.address_bytes == bytes &&
             memcmp(bootstrap.own_address.address, data, bytes) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    address(data, bytes);
    if (bytes < 2) return 0;
    struct pair pair;
    pair_init(&pair);
    converse(&pair, data[0] >> 1 & 7);
    hear(data[0] & 1 ? &pair.accepter : &pair.dialer, data + 2, bytes - 2, data[1]);
    return 0;
}

/* Valid input: what the other side would send from that stage on. */
size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    struct pair pair;
    unsigned stage = (unsigned)(number / 2 % 5);
    bool accepter = number % 2;
    size_t bytes = 2;
    if (number >= 24) { /* an address */
        const uint8_t head[] = {1, (uint8_t)(number % 2 ? 4 : 6), 0x11, 0x22, 9, 0, 0, 0};
        if (number % 3 == 0) memcpy(out, (const uint8_t[]){1, 1, 0, 0, 9, 0, 0, 0}, sizeof head);
        else memcpy(out, head, sizeof head);
        memset(out + sizeof head, (int)number, 16);
        return sizeof head + (number % 3 != 0 && number % 2 ? 4 : 16);
    }
    pair_init(&pair);
    converse(&pair, stage);
    out[0] = (uint8_t)(stage << 1 | accepter);
    out[1] = (uint8_t)(number * 11);
    /* Replayed from the start in another pair: the same challenges give the same frames. */
    struct pair talk;
    pair_init(&talk);
    struct handshake *speaker = accepter ? &talk.dialer : &talk.accepter,
                     *listener = accepter ? &talk.accepter : &talk.dialer;
    for (unsigned step = 0; step < 4; step++) {
        struct handshake *from = step % 2 ? &talk.accepter : &talk.dialer;
        if (from == speaker && step >= stage) {
            memcpy(out + bytes, from->out, from->out_bytes);
            bytes += from->out_bytes;
        }
        pass(from, from == &talk.dialer ? &talk.accepter : &talk.dialer);
    }
    speaker->out_bytes = listener->out_bytes = 0;
    for (uint32_t i = 0; i < 3; i++) { /* parameters and two messages */
        uint32_t length = (uint32_t)(number * 97 + i * 31) % 300;
        uint8_t content[300];
        memset(content, (int)i, sizeof content);
        if (bytes + HANDSHAKE_SEALED_FRAME_MAX > capacity) break;
        MUST(handshake_seal(speaker, content, length, i, out + bytes) == WEFT_OK);
        bytes += HANDSHAKE_FRAME_BYTES + length + WEFT_HMAC_BYTES;
    }
    return bytes;
}
