/* test_bootstrap_hostile.c - hostile connections: slow, silent, flooding, echoing, replaying, tampering.
 * Meanwhile an honest pair connects, memory and descriptors stay bounded, and each refusal is counted by
 * reason. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/transport/bootstrap/bootstrap_fixture.h"
#include "transport/bootstrap/bootstrap_internal.h"

enum { HONEST = 1, INSIDER = 2, VICTIM = 8 };

static enum bootstrap_family family;
static int descriptors_before;

static int remember(void **state)
{
    descriptors_before = open_descriptor_count();
    return 0;
}

static int nothing_left_open(void **state)
{
    assert_int_equal(open_descriptor_count(), descriptors_before);
    return 0;
}

static uint64_t refused(const struct place *place, enum bootstrap_refusal reason)
{
    struct bootstrap_stats stats;
    bootstrap_stats(place->bootstrap, &stats);
    return stats.refused[reason];
}

static uint32_t half_open(const struct place *place)
{
    struct bootstrap_stats stats;
    bootstrap_stats(place->bootstrap, &stats);
    return stats.half_open;
}

static void open_victim(struct place *victim, uint64_t half_open_ns, uint32_t half_open_max)
{
    struct bootstrap_options options;
    place_options(&options, family, VICTIM, "secret");
    options.half_open_ns = half_open_ns;
    options.half_open_max = half_open_max;
    place_open(victim, &options);
}

/* An honest endpoint connects to the victim and closes. */
static void honest_pair_meets(struct place *victim)
{
    struct place honest, *const both[] = {victim, &honest};
    struct fixture_peer of_victim = {0}, of_honest = {0};
    struct bootstrap_options options;
    place_options(&options, family, HONEST, "secret");
    place_open(&honest, &options);
    assert_int_equal(place_connect(&honest, &of_honest, victim, "h", 1, NULL, 0), WEFT_OK);
    assert_int_equal(place_connect(victim, &of_victim, &honest, "v", 1, NULL, 0), WEFT_OK);
    STEP_UNTIL(both, 2, of_honest.connected && of_victim.connected);
    place_close(&honest);
    STEP_UNTIL(both, 2, of_victim.disconnected);
}

/* True if the peer has closed; drops what it sent before. */
static bool hung_up(int fd)
{
    uint8_t byte;
    ssize_t got;
    while ((got = recv(fd, &byte, 1, MSG_DONTWAIT)) > 0) {
    }
    return got == 0 || (got < 0 && errno != EAGAIN);
}

static void slow_and_silent(void **state)
{
    struct place victim, *const one[] = {&victim};
    open_victim(&victim, WEFT_MS(150), 256);
    int silent = unproven_connect(&victim), dripping = unproven_connect(&victim);
    static const uint8_t hello[] = {1, 0, HANDSHAKE_HELLO_BYTES, 0, 'w', 'e', 'f', 't', 'm', 'e', 'e', 't',
                                    1, 0};
    size_t dripped = 0;
    honest_pair_meets(&victim);
    while (!hung_up(dripping)) {
        if (dripped < sizeof hello && send(dripping, hello + dripped, 1, MSG_NOSIGNAL) == 1) dripped++;
        place_step(one, 1);
    }
    STEP_UNTIL(one, 1, hung_up(silent));
    assert_int_equal(refused(&victim, BOOTSTRAP_TIMED_OUT), 2);
    assert_int_equal(half_open(&victim), 0);
    close(silent);
    close(dripping);
    place_close(&victim);
}

static void garbage(void **state)
{
    static uint8_t noise[20000];
    struct place victim, *const one[] = {&victim};
    open_victim(&victim, WEFT_SECONDS(5), 256);
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (uint8_t)(i * 151 + 7);
    static const uint8_t oversize[] = {1, 0, 0xff, 0xff};
    static const uint8_t request[] = "GET / HTTP/1.1\r\nHost: metrics\r\n\r\n";
    const struct weft_bytes_view rows[] = {
        {noise, sizeof noise}, {oversize, sizeof oversize}, {request, sizeof request - 1}};
    for (size_t i = 0; i < 3; i++) {
        int fd = unproven_connect(&victim);
        assert_true(send(fd, rows[i].data, rows[i].bytes, MSG_NOSIGNAL | MSG_DONTWAIT) > 0);
        STEP_UNTIL(one, 1, hung_up(fd));
        assert_int_equal(refused(&victim, BOOTSTRAP_MALFORMED), i + 1);
        close(fd);
    }
    int fd = unproven_connect(&victim); /* a port scanner */
    close(fd);
    STEP_UNTIL(one, 1, refused(&victim, BOOTSTRAP_CLOSED_EARLY) == 1);
    honest_pair_meets(&victim);
    place_close(&victim);
}

/* More half-open connections than allowed: the oldest are closed and an honest endpoint connects. */
static void flood(void **state)
{
    enum { FLOOD = 200, INSIDE = 16 };
    struct place victim, *const one[] = {&victim};
    int fds[FLOOD];
    open_victim(&victim, WEFT_SECONDS(30), INSIDE);
    for (int i = 0; i < FLOOD; i++) {
        fds[i] = unproven_connect(&victim);
        bootstrap_progress(victim.bootstrap, 16);
        assert_true(half_open(&victim) <= INSIDE);
    }
    honest_pair_meets(&victim);
    STEP_UNTIL(one, 1, refused(&victim, BOOTSTRAP_TOO_MANY) >= FLOOD - INSIDE);
    assert_true(hung_up(fds[0]));
    assert_true(half_open(&victim) <= INSIDE);
    for (int i = 0; i < FLOOD; i++) close(fds[i]);
    STEP_UNTIL(one, 1, half_open(&victim) == 0);
    place_close(&victim);
}

/* Descriptors of an unproven connection are closed (checked by nothing_left_open). */
static void send_descriptors(int fd, const void *data, size_t bytes, const int *descriptors, size_t count)
{
    union {
        struct cmsghdr align;
        uint8_t bytes[CMSG_SPACE(64 * sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec part = {(void *)(uintptr_t)data, bytes};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(header), descriptors, count * sizeof(int));
    assert_int_equal(sendmsg(fd, &message, MSG_NOSIGNAL), bytes);
}

static void descriptors_of_a_foreign_process(void **state)
{
    if (family == BOOTSTRAP_TCP) return;
    struct place victim, *const one[] = {&victim};
    open_victim(&victim, WEFT_SECONDS(5), 256);
    for (size_t count = 1; count <= 64; count *= 4) {
        int files[64], fd = unproven_connect(&victim);
        for (size_t i = 0; i < count; i++) files[i] = fd;
        uint64_t before = refused(&victim, BOOTSTRAP_DESCRIPTORS);
        send_descriptors(fd, "\1", 1, files, count);
        STEP_UNTIL(one, 1, hung_up(fd));
        assert_int_equal(refused(&victim, BOOTSTRAP_DESCRIPTORS), before + 1);
        close(fd);
    }
    honest_pair_meets(&victim);
    place_close(&victim);
}

/* --- an insider: holds the secret, authenticates, then misbehaves --- */

struct insider {
    struct handshake_self self;
    struct handshake handshake;
    int fd;
};

static void insider_receive(struct insider *insider, struct place *victim, enum handshake_event wanted)
{
    struct place *const one[] = {victim};
    static uint8_t data[HANDSHAKE_SEALED_FRAME_MAX];
    size_t bytes = 0, used = 0;
    enum handshake_event event = HANDSHAKE_NEED_MORE;
    struct handshake_frame frame;
    uint64_t limit_ns = weft_now_ns(weft_env_system()) + WEFT_SECONDS(30);
    while (event == HANDSHAKE_NEED_MORE) { /* one byte at a time: what follows stays in the socket */
        assert_true(weft_now_ns(weft_env_system()) < limit_ns);
        ssize_t got = recv(insider->fd, data + bytes, 1, MSG_DONTWAIT);
        if (got != 1) {
            place_step(one, 1);
            continue;
        }
        bytes++;
        event = handshake_consume(&insider->handshake, data, bytes, &used, &frame);
    }
    assert_int_equal(event, wanted);
}

static void insider_say(struct insider *insider)
{
    assert_int_equal(send(insider->fd, insider->handshake.out, insider->handshake.out_bytes, MSG_NOSIGNAL),
                     insider->handshake.out_bytes);
    insider->handshake.out_bytes = 0;
}

static void insider_enter(struct insider *insider, struct place *victim, uint32_t id, const char *secret)
{
    uint8_t challenge[HANDSHAKE_CHALLENGE_BYTES];
    struct bootstrap_options options;
    place_options(&options, family, id, secret);
    weft_random_bytes(weft_env_system(), challenge, sizeof challenge);
    handshake_self_init(&insider->self, id, options.nonce, secret, strlen(secret));
    handshake_init(&insider->handshake, &insider->self, HANDSHAKE_DIALER, VICTIM, challenge);
    insider->fd = unproven_connect(victim);
    insider_say(insider);
    insider_receive(insider, victim, HANDSHAKE_STEP);
    insider_say(insider);
}

static void insider_send(struct insider *insider, const void *data, uint32_t bytes, uint32_t descriptors,
                         size_t flip)
{
    uint8_t frame[HANDSHAKE_SEALED_FRAME_MAX];
    uint32_t total = HANDSHAKE_FRAME_BYTES + bytes + WEFT_HMAC_BYTES;
    assert_int_equal(handshake_seal(&insider->handshake, data, bytes, descriptors, frame), WEFT_OK);
    if (flip) frame[flip] ^= 1;
    assert_int_equal(send(insider->fd, frame, total, MSG_NOSIGNAL), total);
}

static void ask_for_insider(struct place *victim, struct fixture_peer *fixture_peer)
{
    struct bootstrap_options options;
    struct place model;
    place_options(&options, family, INSIDER, "secret");
    place_open(&model, &options); /* only for an address with that id */
    assert_int_equal(place_connect(victim, fixture_peer, &model, "v", 1, NULL, 0), WEFT_OK);
    place_close(&model);
}

static void wrong_secret(void **state)
{
    struct place victim, *const one[] = {&victim};
    struct insider insider;
    open_victim(&victim, WEFT_SECONDS(5), 256);
    insider_enter(&insider, &victim, INSIDER, "guess");
    STEP_UNTIL(one, 1, refused(&victim, BOOTSTRAP_WRONG_SECRET) == 1);
    close(insider.fd);
    honest_pair_meets(&victim);
    place_close(&victim);
}

static void frames_that_do_not_fit(void **state)
{
    enum { TAMPERED, KIND, MISSING_DESCRIPTORS, EXTRA_DESCRIPTORS, OVERSIZE, ROWS };
    static const enum bootstrap_refusal reasons[] = {BOOTSTRAP_BAD_MAC, BOOTSTRAP_MALFORMED,
                                                     BOOTSTRAP_DESCRIPTORS, BOOTSTRAP_DESCRIPTORS,
                                                     BOOTSTRAP_MALFORMED};
    static const uint8_t oversize[] = {5, 0, 0x21, 0x10};
    for (int row = 0; row < ROWS; row++) {
        if (row == EXTRA_DESCRIPTORS && family == BOOTSTRAP_TCP) continue;
        struct place victim, *const one[] = {&victim};
        struct fixture_peer fixture_peer = {0};
        struct insider insider;
        open_victim(&victim, WEFT_SECONDS(5), 256);
        ask_for_insider(&victim, &fixture_peer);
        insider_enter(&insider, &victim, INSIDER, "secret");
        insider_receive(&insider, &victim, HANDSHAKE_PROVEN);
        insider_send(&insider, "parameters", 10, 0, 0);
        STEP_UNTIL(one, 1, fixture_peer.connected);
        assert_int_equal(bootstrap_send(fixture_peer.peer, "m", 1, NULL, 0), WEFT_OK);
        if (row == TAMPERED) insider_send(&insider, "message", 7, 0, 6);
        if (row == KIND)
            insider_send(&insider, "message", 7, 0, 1); /* a false descriptor count: the MAC covers it */
        if (row == MISSING_DESCRIPTORS) insider_send(&insider, "message", 7, 3, 0);
        if (row == EXTRA_DESCRIPTORS) {
            uint8_t frame[HANDSHAKE_SEALED_FRAME_MAX];
            assert_int_equal(handshake_seal(&insider.handshake, "m", 1, 0, frame), WEFT_OK);
            send_descriptors(insider.fd, frame, HANDSHAKE_FRAME_BYTES + 1 + WEFT_HMAC_BYTES, &insider.fd, 1);
        }
        if (row == OVERSIZE)
            assert_int_equal(send(insider.fd, oversize, sizeof oversize, MSG_NOSIGNAL), sizeof oversize);
        STEP_UNTIL(one, 1, fixture_peer.disconnected);
        enum bootstrap_refusal reason = row == KIND ? BOOTSTRAP_BAD_MAC : reasons[row];
        assert_int_equal(refused(&victim, reason), 1);
        assert_int_equal(fixture_peer.status, WEFT_ERR_MALFORMED);
        assert_int_equal(fixture_peer.messages, row == EXTRA_DESCRIPTORS ? 1 : 0);
        close(insider.fd);
        honest_pair_meets(&victim);
        place_close(&victim);
    }
}

/* Proven without a local bootstrap_connect: kept up to a bound, and dropped on close. A connection that
 * sends too much early is refused. */
static void uninvited(void **state)
{
    enum { CROWD = 6, KEPT = 4 };
    struct place victim, *const one[] = {&victim};
    struct insider insiders[CROWD];
    struct bootstrap_options options;
    struct bootstrap_stats stats;
    place_options(&options, family, VICTIM, "secret");
    options.early_max = KEPT;
    place_open(&victim, &options);
    for (uint32_t i = 0; i < CROWD; i++) {
        insider_enter(&insiders[i], &victim, i + 2, "secret");
        insider_receive(&insiders[i], &victim, HANDSHAKE_PROVEN);
        STEP_UNTIL(one, 1, half_open(&victim) == 0);
    }
    bootstrap_stats(victim.bootstrap, &stats);
    assert_int_equal(stats.early, KEPT);
    assert_int_equal(stats.refused[BOOTSTRAP_TOO_MANY], CROWD - KEPT);
    close(insiders[0].fd);
    insiders[0].fd = -1;
    while (bootstrap_stats(victim.bootstrap, &stats), stats.early == KEPT) place_step(one, 1);
    struct insider again; /* the same id again: the newer connection counts */
    insider_enter(&again, &victim, 3, "secret");
    insider_receive(&again, &victim, HANDSHAKE_PROVEN);
    STEP_UNTIL(one, 1, hung_up(insiders[1].fd));
    bootstrap_stats(victim.bootstrap, &stats);
    assert_int_equal(stats.early, KEPT - 1);
    for (int i = 1; i < CROWD; i++) close(insiders[i].fd);
    close(again.fd);
    while (bootstrap_stats(victim.bootstrap, &stats), stats.early > 0) place_step(one, 1);
    place_close(&victim);
}

/* A second connection of a connected id is refused; the first is not affected. */
static void impostor(void **state)
{
    struct place victim, *const one[] = {&victim};
    struct fixture_peer fixture_peer = {0};
    struct insider first, second;
    open_victim(&victim, WEFT_SECONDS(5), 256);
    ask_for_insider(&victim, &fixture_peer);
    insider_enter(&first, &victim, INSIDER, "secret");
    insider_receive(&first, &victim, HANDSHAKE_PROVEN);
    insider_send(&first, "p", 1, 0, 0);
    STEP_UNTIL(one, 1, fixture_peer.connected);
    insider_enter(&second, &victim, INSIDER, "secret");
    STEP_UNTIL(one, 1, refused(&victim, BOOTSTRAP_DUPLICATE) == 1);
    insider_send(&first, "still here", 10, 0, 0);
    STEP_UNTIL(one, 1, fixture_peer.messages == 1);
    assert_int_equal(fixture_peer.disconnected, 0);
    close(first.fd);
    close(second.fd);
    place_close(&victim);
}

/* --- man in the middle: the dialler connects to the test, which forwards bytes as it likes --- */

struct middle {
    int listen_fd, dialler_fd, victim_fd;
    uint8_t address[BOOTSTRAP_ADDRESS_BYTES_MAX];
    size_t address_bytes;
    uint8_t heard[4096]; /* bytes of the dialler */
    size_t heard_bytes, heard_of_victim;
    size_t flip; /* index of the dialler's byte to change, from 1 */
    bool echo;
};

static void middle_open(struct middle *middle, const struct place *victim)
{
    struct socket_address where;
    *middle = (struct middle){.dialler_fd = -1, .victim_fd = -1};
    const void *address = bootstrap_address(victim->bootstrap, &middle->address_bytes);
    memcpy(middle->address, address, middle->address_bytes);
    middle->address[2] = middle->address[3] = 0;
    if (family == BOOTSTRAP_UNIX) middle->address[10] ^= 0xff; /* another name */
    else middle->address[2] = 1;
    assert_int_equal(
        bootstrap_address_decode(victim->bootstrap, middle->address, middle->address_bytes, &where), WEFT_OK);
    if (family == BOOTSTRAP_TCP) ((struct sockaddr_in *)(void *)&where.storage)->sin_port = 0;
    middle->listen_fd = socket(where.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(middle->listen_fd, (struct sockaddr *)&where.storage, where.bytes), 0);
    assert_int_equal(listen(middle->listen_fd, 4), 0);
    assert_int_equal(getsockname(middle->listen_fd, (struct sockaddr *)&where.storage, &where.bytes), 0);
    if (family == BOOTSTRAP_UNIX) return;
    uint16_t port = ntohs(((struct sockaddr_in *)(void *)&where.storage)->sin_port);
    middle->address[2] = (uint8_t)port;
    middle->address[3] = (uint8_t)(port >> 8);
}

static void middle_pass(struct middle *middle, const struct place *victim)
{
    uint8_t data[4096];
    if (middle->dialler_fd < 0) {
        middle->dialler_fd = accept4(middle->listen_fd, NULL, NULL, SOCK_NONBLOCK);
        if (middle->dialler_fd >= 0 && !middle->echo) middle->victim_fd = unproven_connect(victim);
        return;
    }
    ssize_t got = recv(middle->dialler_fd, data, sizeof data, MSG_DONTWAIT);
    if (got > 0 && middle->heard_bytes + (size_t)got <= sizeof middle->heard) {
        if (middle->flip > middle->heard_bytes && middle->flip <= middle->heard_bytes + (size_t)got)
            data[middle->flip - 1 - middle->heard_bytes] ^= 0x10;
        memcpy(middle->heard + middle->heard_bytes, data, (size_t)got);
        middle->heard_bytes += (size_t)got;
        if (send(middle->echo ? middle->dialler_fd : middle->victim_fd, data, (size_t)got, MSG_NOSIGNAL) !=
            got)
            return;
    }
    if (middle->victim_fd < 0) return;
    got = recv(middle->victim_fd, data, sizeof data, MSG_DONTWAIT);
    if (got > 0) {
        middle->heard_of_victim += (size_t)got;
        if (send(middle->dialler_fd, data, (size_t)got, MSG_NOSIGNAL) != got) return;
    }
}

static void middle_close(struct middle *middle)
{
    close(middle->listen_fd);
    if (middle->dialler_fd >= 0) close(middle->dialler_fd);
    if (middle->victim_fd >= 0) close(middle->victim_fd);
}

static void open_pair_with(struct place *dialler, struct place *victim, struct middle *middle,
                           struct fixture_peer *of_dialler, struct fixture_peer *of_victim)
{
    struct bootstrap_options options;
    place_options(&options, family, HONEST, "secret");
    place_open(dialler, &options);
    open_victim(victim, WEFT_SECONDS(5), 256);
    middle_open(middle, victim);
    *of_dialler = (struct fixture_peer){.place = dialler, .id = VICTIM};
    *of_victim = (struct fixture_peer){0};
    assert_int_equal(bootstrap_connect(dialler->bootstrap, VICTIM, middle->address, middle->address_bytes,
                                       "p", 1, NULL, 0, of_dialler, &of_dialler->peer),
                     WEFT_OK);
    assert_int_equal(place_connect(victim, of_victim, dialler, "p", 1, NULL, 0), WEFT_OK);
}

#define PASS_UNTIL(expression)         \
    do {                               \
        middle_pass(&middle, &victim); \
        place_step(both, 2);           \
    } while (!(expression))

static void replayed_transcript(void **state)
{
    struct place dialler, victim, *const both[] = {&dialler, &victim};
    struct fixture_peer of_dialler, of_victim;
    struct middle middle;
    open_pair_with(&dialler, &victim, &middle, &of_dialler, &of_victim);
    PASS_UNTIL(of_dialler.connected && of_victim.connected);
    bootstrap_forget(of_victim.peer);
    int fd = unproven_connect(&victim);
    assert_int_equal(send(fd, middle.heard, middle.heard_bytes, MSG_NOSIGNAL), middle.heard_bytes);
    STEP_UNTIL(&both[1], 1, hung_up(fd));
    assert_int_equal(refused(&victim, BOOTSTRAP_WRONG_SECRET), 1);
    close(fd);
    middle_close(&middle);
    place_close(&dialler);
    place_close(&victim);
}

static void echoed(void **state)
{
    struct place dialler, victim, *const both[] = {&dialler, &victim};
    struct fixture_peer of_dialler, of_victim;
    struct middle middle;
    open_pair_with(&dialler, &victim, &middle, &of_dialler, &of_victim);
    middle.echo = true;
    PASS_UNTIL(of_dialler.disconnected);
    assert_int_equal(of_dialler.status, WEFT_ERR_MALFORMED);
    assert_int_equal(refused(&dialler, BOOTSTRAP_REFLECTED), 1);
    assert_int_equal(of_victim.connected, 0);
    middle_close(&middle);
    place_close(&dialler);
    place_close(&victim);
}

/* Changes each byte of the dialler in turn: the victim never accepts changed parameters. */
static void changed_on_the_way(void **state)
{
    const size_t total = 2 * HANDSHAKE_FRAME_BYTES + HANDSHAKE_HELLO_BYTES + WEFT_HMAC_BYTES +
                         HANDSHAKE_FRAME_BYTES + 1 + WEFT_HMAC_BYTES;
    for (size_t flip = 1; flip <= total; flip += 5) {
        struct place dialler, victim;
        struct fixture_peer of_dialler, of_victim;
        struct middle middle;
        struct bootstrap_stats stats = {0};
        open_pair_with(&dialler, &victim, &middle, &of_dialler, &of_victim);
        middle.flip = flip;
        /* Some changes only make the victim wait for its deadline: stops when all bytes were sent. */
        for (int idle = 0; idle < 20 && stats.refused_count == 0 && !of_dialler.disconnected; idle++) {
            size_t before = middle.heard_bytes + middle.heard_of_victim;
            middle_pass(&middle, &victim);
            bootstrap_progress(dialler.bootstrap, 16);
            bootstrap_progress(victim.bootstrap, 16);
            bootstrap_stats(victim.bootstrap, &stats);
            if (middle.heard_bytes + middle.heard_of_victim != before) idle = 0;
        }
        assert_int_equal(of_victim.connected, 0);
        assert_int_equal(of_victim.messages, 0);
        middle_close(&middle);
        place_close(&dialler);
        place_close(&victim);
    }
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(slow_and_silent, remember, nothing_left_open),
        cmocka_unit_test_setup_teardown(garbage, remember, nothing_left_open),
        cmocka_unit_test_setup_teardown(flood, remember, nothing_left_open),
        cmocka_unit_test_setup_teardown(descriptors_of_a_foreign_process, remember, nothing_left_open),
        cmocka_unit_test_setup_teardown(wrong_secret, remember, nothing_left_open),
        cmocka_unit_test_setup_teardown(frames_that_do_not_fit, remember, nothing_left_open),
        cmocka_unit_test_setup_teardown(uninvited, remember, nothing_left_open),
        cmocka_unit_test_setup_teardown(impostor, remember, nothing_left_open),
        cmocka_unit_test_setup_teardown(replayed_transcript, remember, nothing_left_open),
        cmocka_unit_test_setup_teardown(echoed, remember, nothing_left_open),
        cmocka_unit_test_setup_teardown(changed_on_the_way, remember, nothing_left_open),
    };
    family = argc > 1 && strcmp(argv[1], "tcp") == 0 ? BOOTSTRAP_TCP : BOOTSTRAP_UNIX;
    return cmocka_run_group_tests_name(family == BOOTSTRAP_TCP ? "meet hostile tcp" : "meet hostile unix",
                                       tests, NULL, NULL);
}
