/* test_handshake.c - the handshake over a byte pipe in memory: every cut, every changed byte, replay,
 * reflection and wrong facts. No sockets, no clock. */
#include <string.h>

#include "tests/lib/check.h"
#include "transport/bootstrap/handshake.h"

enum { SMALL = 3, LARGE = 8, PIPE_BYTES = 16384 };
#define NONCE 0x1122334455667788ull

struct pipe {
    uint8_t data[PIPE_BYTES];
    size_t bytes, taken;
};

struct side {
    struct handshake_self self;
    struct handshake handshake;
    struct pipe in;
    bool proven, over;
    uint32_t parameters, messages;
    uint8_t last[BOOTSTRAP_MESSAGE_BYTES_MAX];
    uint32_t last_bytes, last_descriptors;
};

static void side_init(struct side *side, enum handshake_role role, uint32_t id, uint32_t peer, uint64_t nonce,
                      const char *secret, uint8_t salt)
{
    uint8_t challenge[HANDSHAKE_CHALLENGE_BYTES];
    memset(side, 0, sizeof *side);
    memset(challenge, salt, sizeof challenge);
    assert_int_equal(handshake_self_init(&side->self, id, nonce, secret, secret ? strlen(secret) : 0),
                     WEFT_OK);
    handshake_init(&side->handshake, &side->self, role, peer, challenge);
}

static void push(struct pipe *pipe, const uint8_t *data, size_t bytes)
{
    assert_true(pipe->bytes + bytes <= PIPE_BYTES);
    memcpy(pipe->data + pipe->bytes, data, bytes);
    pipe->bytes += bytes;
}

static void flush_out(struct side *from, struct pipe *to)
{
    push(to, from->handshake.out, from->handshake.out_bytes);
    from->handshake.out_bytes = 0;
}

/* Passes up to `limit` bytes of its pipe to `side`; answers go into `answers`. */
static void take(struct side *side, size_t limit, struct pipe *answers)
{
    while (!side->over) {
        struct handshake_frame frame;
        size_t used, there = side->in.bytes < limit ? side->in.bytes : limit;
        enum handshake_event event = handshake_consume(&side->handshake, side->in.data + side->in.taken,
                                                    there - side->in.taken, &used, &frame);
        side->in.taken += used;
        flush_out(side, answers);
        if (event == HANDSHAKE_NEED_MORE) return;
        if (event == HANDSHAKE_PROVEN) side->proven = true;
        if (event == HANDSHAKE_REFUSED) side->over = true;
        if (event == HANDSHAKE_PARAMETERS || event == HANDSHAKE_MESSAGE) {
            if (event == HANDSHAKE_PARAMETERS) side->parameters++;
            else side->messages++;
            memcpy(side->last, frame.data, frame.bytes);
            side->last_bytes = frame.bytes;
            side->last_descriptors = frame.descriptors;
        }
    }
}

static void converse(struct side *a, struct side *b)
{
    for (int round = 0; round < 8; round++) {
        flush_out(a, &b->in);
        take(b, SIZE_MAX, &a->in);
        take(a, SIZE_MAX, &b->in);
    }
}

static void seal(struct side *from, struct pipe *to, const void *data, uint32_t bytes, uint32_t descriptors)
{
    uint8_t frame[HANDSHAKE_SEALED_FRAME_MAX];
    assert_int_equal(handshake_seal(&from->handshake, data, bytes, descriptors, frame), WEFT_OK);
    push(to, frame, HANDSHAKE_FRAME_BYTES + bytes + WEFT_HMAC_BYTES);
}

static void check_outcome(const char *dialer_secret, const char *accepter_secret, uint64_t accepter_nonce,
                          uint32_t dialled, enum bootstrap_refusal there, enum bootstrap_refusal here)
{
    struct side dialer, accepter;
    side_init(&dialer, HANDSHAKE_DIALER, SMALL, dialled, NONCE, dialer_secret, 1);
    side_init(&accepter, HANDSHAKE_ACCEPTER, LARGE, 0, accepter_nonce, accepter_secret, 2);
    converse(&dialer, &accepter);
    assert_int_equal(dialer.proven, there == 0 && here == 0);
    assert_int_equal(accepter.proven, there == 0 && here == 0);
    assert_int_equal(accepter.handshake.refused_by_peer ? 0 : accepter.handshake.reason, there);
    assert_int_equal(dialer.handshake.reason, there ? there : here);
    assert_int_equal(dialer.handshake.refused_by_peer, there != 0);
}

static void facts_must_agree(void **state)
{
    check_outcome("s", "s", NONCE, LARGE, 0, 0);
    check_outcome(NULL, NULL, NONCE, LARGE, 0, 0);
    check_outcome("s", "t", NONCE, LARGE, BOOTSTRAP_WRONG_SECRET, 0);
    check_outcome("s", NULL, NONCE, LARGE, BOOTSTRAP_VERSION, 0);
    check_outcome(NULL, "s", NONCE, LARGE, BOOTSTRAP_VERSION, 0);
    check_outcome("s", "s", NONCE + 1, LARGE, BOOTSTRAP_WRONG_JOB, 0);
    check_outcome(NULL, NULL, NONCE + 1, LARGE, BOOTSTRAP_WRONG_JOB, 0);
    check_outcome("s", "s", NONCE, LARGE + 1, BOOTSTRAP_WRONG_ID, 0);
}

/* The larger id never dials, and no endpoint dials itself. */
static void the_smaller_id_dials(void **state)
{
    for (uint32_t id = LARGE; id <= LARGE + 1; id++) {
        struct side dialer, accepter;
        side_init(&dialer, HANDSHAKE_DIALER, id, LARGE, NONCE, "s", 1);
        side_init(&accepter, HANDSHAKE_ACCEPTER, LARGE, 0, NONCE, "s", 2);
        converse(&dialer, &accepter);
        assert_int_equal(accepter.handshake.reason, BOOTSTRAP_WRONG_ID);
        assert_false(dialer.proven || accepter.proven);
    }
}

static void open_pair(struct side *dialer, struct side *accepter)
{
    side_init(dialer, HANDSHAKE_DIALER, SMALL, LARGE, NONCE, "s", 1);
    side_init(accepter, HANDSHAKE_ACCEPTER, LARGE, 0, NONCE, "s", 2);
    converse(dialer, accepter);
    assert_true(dialer->proven && accepter->proven);
    assert_int_equal(accepter->handshake.peer_id, SMALL);
}

static void parameters_then_messages(void **state)
{
    static uint8_t most[BOOTSTRAP_MESSAGE_BYTES_MAX];
    struct side dialer, accepter;
    memset(most, 7, sizeof most);
    open_pair(&dialer, &accepter);
    seal(&dialer, &accepter.in, "hello", 5, 2);
    seal(&dialer, &accepter.in, NULL, 0, 0);
    seal(&dialer, &accepter.in, most, sizeof most, BOOTSTRAP_DESCRIPTORS_MAX);
    seal(&accepter, &dialer.in, NULL, 0, 0);
    take(&accepter, SIZE_MAX, &dialer.in);
    take(&dialer, SIZE_MAX, &accepter.in);
    assert_int_equal(accepter.parameters, 1);
    assert_int_equal(accepter.messages, 2);
    assert_int_equal(accepter.last_bytes, sizeof most);
    assert_int_equal(accepter.last_descriptors, BOOTSTRAP_DESCRIPTORS_MAX);
    assert_memory_equal(accepter.last, most, sizeof most);
    assert_int_equal(dialer.parameters, 1);
    assert_int_equal(dialer.last_bytes, 0);
}

/* Independent of cuts: one more byte at a time, nothing is lost or taken twice. */
static void every_cut(void **state)
{
    struct side dialer, accepter;
    side_init(&dialer, HANDSHAKE_DIALER, SMALL, LARGE, NONCE, "s", 1);
    side_init(&accepter, HANDSHAKE_ACCEPTER, LARGE, 0, NONCE, "s", 2);
    flush_out(&dialer, &accepter.in);
    for (int round = 0; round < 4; round++) {
        for (size_t limit = accepter.in.taken; limit <= accepter.in.bytes; limit++)
            take(&accepter, limit, &dialer.in);
        for (size_t limit = dialer.in.taken; limit <= dialer.in.bytes; limit++)
            take(&dialer, limit, &accepter.in);
    }
    assert_true(dialer.proven && accepter.proven);
    seal(&dialer, &accepter.in, "parameters", 10, 0);
    for (size_t limit = accepter.in.taken; limit <= accepter.in.bytes; limit++) {
        assert_int_equal(accepter.parameters, 0);
        take(&accepter, limit, &dialer.in);
    }
    assert_int_equal(accepter.parameters, 1);
}

/* One changed bit in the dialler's bytes: never proven with other facts, never a message accepted. */
static void every_changed_bit(void **state)
{
    struct side dialer, accepter;
    side_init(&dialer, HANDSHAKE_DIALER, SMALL, LARGE, NONCE, "s", 1);
    const uint32_t hello = dialer.handshake.out_bytes, proof = HANDSHAKE_FRAME_BYTES + WEFT_HMAC_BYTES;
    const size_t total = hello + proof + 2 * (HANDSHAKE_FRAME_BYTES + 5 + WEFT_HMAC_BYTES);
    for (size_t bit = 0; bit < total * 8; bit++) {
        side_init(&dialer, HANDSHAKE_DIALER, SMALL, LARGE, NONCE, "s", 1);
        side_init(&accepter, HANDSHAKE_ACCEPTER, LARGE, 0, NONCE, "s", 2);
        flush_out(&dialer, &accepter.in);
        for (int round = 0; round < 4; round++) {
            if (dialer.proven && round == 3) {
                seal(&dialer, &accepter.in, "param", 5, 0);
                seal(&dialer, &accepter.in, "messg", 5, 0);
            }
            if (accepter.in.bytes > bit / 8 && accepter.in.taken <= bit / 8)
                accepter.in.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
            take(&accepter, SIZE_MAX, &dialer.in);
            if (accepter.in.bytes > bit / 8 && accepter.in.taken <= bit / 8)
                accepter.in.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
            take(&dialer, SIZE_MAX, &accepter.in);
        }
        assert_true(accepter.parameters + accepter.messages < 2);
        if (bit / 8 < hello + proof) assert_false(accepter.proven);
    }
}

/* Recorded bytes are worthless on a new connection, whose challenge differs. */
static void replay(void **state)
{
    struct side dialer, accepter, victim;
    struct pipe nowhere = {.bytes = 0};
    open_pair(&dialer, &accepter);
    seal(&dialer, &accepter.in, "param", 5, 0);
    side_init(&victim, HANDSHAKE_ACCEPTER, LARGE, 0, NONCE, "s", 3); /* another challenge */
    push(&victim.in, accepter.in.data, accepter.in.bytes);
    take(&victim, SIZE_MAX, &nowhere);
    assert_false(victim.proven);
    assert_int_equal(victim.handshake.reason, BOOTSTRAP_WRONG_SECRET);

    side_init(&victim, HANDSHAKE_DIALER, SMALL, LARGE, NONCE, "s", 4);
    victim.handshake.out_bytes = 0;
    push(&victim.in, dialer.in.data, dialer.in.bytes);
    take(&victim, SIZE_MAX, &nowhere);
    assert_false(victim.proven);
    assert_int_equal(victim.handshake.reason, BOOTSTRAP_WRONG_SECRET);
}

/* A sealed frame repeated, reordered, or sent back to its sender. */
static void replay_inside(void **state)
{
    for (int kind = 0; kind < 3; kind++) {
        struct side dialer, accepter;
        struct pipe first = {.bytes = 0}, second = {.bytes = 0}, third = {.bytes = 0};
        open_pair(&dialer, &accepter);
        seal(&dialer, &first, "p", 1, 0);
        seal(&dialer, &second, "m", 1, 0);
        seal(&dialer, &third, "n", 1, 0);
        push(&accepter.in, first.data, first.bytes);
        if (kind == 0)
            push(&accepter.in, second.data, second.bytes), push(&accepter.in, second.data, second.bytes);
        if (kind == 1) push(&accepter.in, third.data, third.bytes);
        if (kind == 2) push(&dialer.in, first.data, first.bytes);
        take(&accepter, SIZE_MAX, &dialer.in);
        take(&dialer, SIZE_MAX, &accepter.in);
        const struct side *verifier = kind == 2 ? &dialer : &accepter;
        assert_int_equal(verifier->handshake.reason, BOOTSTRAP_BAD_MAC);
        assert_int_equal(accepter.messages, kind == 0 ? 1 : 0);
    }
}

/* A listener without the secret echoes its input, with and without a corrected role. */
static void reflected(void **state)
{
    for (int mended = 0; mended < 3; mended++) {
        struct side dialer;
        struct pipe nowhere = {.bytes = 0};
        side_init(&dialer, HANDSHAKE_DIALER, SMALL, LARGE, NONCE, "s", 1);
        push(&dialer.in, dialer.handshake.out, dialer.handshake.out_bytes);
        dialer.handshake.out_bytes = 0;
        if (mended >= 1) dialer.in.data[HANDSHAKE_FRAME_BYTES + 11] = HANDSHAKE_ACCEPTER;
        if (mended >= 2) dialer.in.data[HANDSHAKE_FRAME_BYTES + 30] ^= 1; /* the challenge */
        take(&dialer, SIZE_MAX, &nowhere);
        assert_int_equal(dialer.handshake.reason, mended < 2 ? BOOTSTRAP_REFLECTED : BOOTSTRAP_WRONG_ID);
    }
    /* Ids corrected, too: the dialler sends its proof; echoed, it is not the accepter's proof. */
    struct side dialer;
    struct pipe said = {.bytes = 0};
    side_init(&dialer, HANDSHAKE_DIALER, SMALL, LARGE, NONCE, "s", 1);
    struct side accepter;
    side_init(&accepter, HANDSHAKE_ACCEPTER, LARGE, 0, NONCE, "s", 2);
    flush_out(&dialer, &accepter.in);
    take(&accepter, SIZE_MAX, &dialer.in);
    take(&dialer, SIZE_MAX, &said);
    assert_int_equal(said.bytes, HANDSHAKE_FRAME_BYTES + WEFT_HMAC_BYTES);
    push(&dialer.in, said.data, said.bytes);
    take(&dialer, SIZE_MAX, &said);
    assert_int_equal(dialer.handshake.reason, BOOTSTRAP_WRONG_SECRET);
}

/* Before its proof a peer receives one hello and nothing that depends on the secret. */
static void unproven_peers_learn_nothing(void **state)
{
    struct side dialer, with_s, with_t;
    struct pipe heard_s = {.bytes = 0}, heard_t = {.bytes = 0};
    side_init(&dialer, HANDSHAKE_DIALER, SMALL, LARGE, NONCE, "s", 1);
    side_init(&with_s, HANDSHAKE_ACCEPTER, LARGE, 0, NONCE, "s", 2);
    side_init(&with_t, HANDSHAKE_ACCEPTER, LARGE, 0, NONCE, "t", 2);
    uint8_t proof[HANDSHAKE_FRAME_BYTES + WEFT_HMAC_BYTES] = {2, 0, WEFT_HMAC_BYTES, 0};
    push(&with_s.in, dialer.handshake.out, dialer.handshake.out_bytes);
    push(&with_t.in, dialer.handshake.out, dialer.handshake.out_bytes);
    push(&with_s.in, proof, sizeof proof);
    push(&with_t.in, proof, sizeof proof);
    take(&with_s, SIZE_MAX, &heard_s);
    take(&with_t, SIZE_MAX, &heard_t);
    assert_int_equal(with_s.handshake.reason, BOOTSTRAP_WRONG_SECRET);
    assert_int_equal(heard_s.bytes, heard_t.bytes);
    assert_memory_equal(heard_s.data, heard_t.data, heard_s.bytes);
}

/* Bytes that cannot become a frame are refused at the fourth byte. */
static void garbage_at_once(void **state)
{
    static const uint8_t bad[][HANDSHAKE_FRAME_BYTES] = {{'G', 'E', 'T', ' '},
                                                         {1, 0, HANDSHAKE_HELLO_BYTES + 1, 0},
                                                         {1, 1, HANDSHAKE_HELLO_BYTES, 0},
                                                         {1, 0, 0xff, 0xff},
                                                         {2, 0, 32, 0},
                                                         {4, 0, 40, 0},
                                                         {5, 0, 40, 0},
                                                         {3, 0, 2, 0},
                                                         {0, 0, 0, 0}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct side accepter;
        struct pipe nowhere = {.bytes = 0};
        side_init(&accepter, HANDSHAKE_ACCEPTER, LARGE, 0, NONCE, "s", 2);
        push(&accepter.in, bad[i], sizeof bad[i]);
        take(&accepter, SIZE_MAX, &nowhere);
        assert_int_equal(accepter.handshake.reason, BOOTSTRAP_MALFORMED);
    }
    struct side dialer, accepter;
    static const uint8_t oversize[] = {4, 0, 0x21, 0x10},
                         endpoint_set[] = {4, BOOTSTRAP_DESCRIPTORS_MAX + 1, 32, 0}, naked[] = {4, 0, 31, 0};
    const uint8_t *const late[] = {oversize, endpoint_set, naked};
    for (size_t i = 0; i < 3; i++) {
        open_pair(&dialer, &accepter);
        push(&accepter.in, late[i], 4);
        take(&accepter, SIZE_MAX, &dialer.in);
        assert_int_equal(accepter.handshake.reason, i == 1 ? BOOTSTRAP_DESCRIPTORS : BOOTSTRAP_MALFORMED);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(facts_must_agree),
        cmocka_unit_test(the_smaller_id_dials),
        cmocka_unit_test(parameters_then_messages),
        cmocka_unit_test(every_cut),
        cmocka_unit_test(every_changed_bit),
        cmocka_unit_test(replay),
        cmocka_unit_test(replay_inside),
        cmocka_unit_test(reflected),
        cmocka_unit_test(unproven_peers_learn_nothing),
        cmocka_unit_test(garbage_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
