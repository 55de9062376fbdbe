/* test_verbs_faults.c - the verbs backend while queue pairs break and the wire is disturbed, in the
 * virtual machine.
 *
 * Two endpoints of this process, on the devices of WEFT_TEST_DEVICES, continuously send messages of all
 * sizes. Every message arrives once, complete, in the order of its tag. If nothing can pass any more,
 * every operation ends once, with a status and a sentence that name the peer. WEFT_TEST_WIRE: an interface
 * of the wire between the two; WEFT_TEST_WIRE_REPAIR: a command after it was down. With several rails
 * ("rxe0,rxe2 rxe1,rxe3") it is the wire of the first, WEFT_TEST_SECOND_WIRE of the second. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/transport/net.h"
#include "transport/verbs/verbs_ops.h"

enum { SLOTS = 6, BYTES_MAX = 300000, TAGS = 3 };

/* Queue pairs give up after about half a second. */
static struct flavour flavour = {"verbs-faults", "verbs", NULL, NULL, "timeout=14,lost_ms=60000"};
static const char *wire;

#define TAG(n) WEFT_TAG(WEFT_CHANNEL_TEST, n)

/* One message in flight and its receive. */
struct flight {
    struct op send, recv;
    uint32_t number;
    int from;
    size_t bytes;
    bool flying;
    unsigned char *out, *in;
};

struct traffic {
    struct net net;
    struct flight flights[2][SLOTS];
    uint32_t next[2], ended[2], failed; /* messages by direction */
    uint32_t random;
};

static uint32_t draw(struct traffic *traffic)
{
    traffic->random = traffic->random * 1664525u + 1013904223u;
    return traffic->random >> 8;
}

static uint32_t id_of(int index) { return 100 + (uint32_t)index; }

static size_t draw_bytes(struct traffic *traffic)
{
    switch (draw(traffic) % 4) {
    case 0: return draw(traffic) % 64;
    case 1: return draw(traffic) % NET_EAGER;
    case 2: return NET_EAGER - 2 + draw(traffic) % 5;
    default: return draw(traffic) % BYTES_MAX;
    }
}

static struct traffic *traffic_open(uint32_t seed)
{
    struct traffic *traffic = calloc(1, sizeof *traffic);
    traffic->random = seed;
    net_open(&traffic->net, &flavour, 2);
    for (int from = 0; from < 2; from++) {
        for (int i = 0; i < SLOTS; i++) {
            traffic->flights[from][i].out = malloc(BYTES_MAX + 1);
            traffic->flights[from][i].in = malloc(BYTES_MAX + 1);
        }
    }
    return traffic;
}

static void traffic_close(struct traffic *traffic)
{
    net_close(&traffic->net);
    for (int from = 0; from < 2; from++) {
        for (int i = 0; i < SLOTS; i++) {
            free(traffic->flights[from][i].out);
            free(traffic->flights[from][i].in);
        }
    }
    free(traffic);
}

/* The slot of a message determines its tag, so the order per tag shows in the content: each message has
 * its number as seed. */
static bool start(struct traffic *traffic, struct flight *flight, int from, int slot)
{
    struct net *net = &traffic->net;
    flight->from = from;
    flight->number = traffic->next[from];
    flight->bytes = draw_bytes(traffic);
    fill(flight->out, flight->bytes, flight->number);
    memset(flight->in, 0, flight->bytes + 1);
    uint64_t tag = TAG(slot % TAGS);
    if (op_recv(&flight->recv, net->transports[!from], id_of(from), tag, flight->in, BYTES_MAX) !=
        WEFT_IN_PROGRESS)
        return false;
    char header[16];
    snprintf(header, sizeof header, "%u", flight->number);
    if (op_send(&flight->send, net->peers[from][!from], tag, header, flight->out, flight->bytes) !=
        WEFT_IN_PROGRESS) {
        weft_transport_cancel(net->transports[!from], &flight->recv.receive);
        return false;
    }
    traffic->next[from]++;
    flight->flying = true;
    return true;
}

static void check(struct traffic *traffic, struct flight *flight)
{
    flight->flying = false;
    traffic->ended[flight->from]++;
    assert_int_equal(flight->send.fired, 1);
    assert_int_equal(flight->recv.fired, 1);
    if (flight->send.status != WEFT_OK || flight->recv.status != WEFT_OK) {
        traffic->failed++;
        return;
    }
    assert_int_equal(flight->recv.receive.payload_bytes, flight->bytes);
    char header[16];
    snprintf(header, sizeof header, "%u", flight->number);
    assert_int_equal(flight->recv.receive.header_bytes, strlen(header));
    assert_memory_equal(flight->recv.receive.header, header, strlen(header));
    if (!filled(flight->in, flight->bytes, flight->number))
        fail_msg("message %u from %d arrived damaged", flight->number, flight->from);
    assert_int_equal(flight->in[flight->bytes], 0);
}

/* Checks everything once; starts new messages if `more`. Messages of one slot are sequential, slots of one
 * tag overlap. */
static void step(struct traffic *traffic, bool more)
{
    net_pump(&traffic->net);
    for (int from = 0; from < 2; from++) {
        for (int i = 0; i < SLOTS; i++) {
            struct flight *flight = &traffic->flights[from][i];
            if (flight->flying && flight->send.fired && flight->recv.fired) check(traffic, flight);
            if (!flight->flying && more) start(traffic, flight, from, i);
        }
    }
    usleep(50); /* the soft-RoCE wire needs the processor, too */
}

static bool quiet(const struct traffic *traffic)
{
    for (int from = 0; from < 2; from++) {
        for (int i = 0; i < SLOTS; i++) {
            if (traffic->flights[from][i].flying) return false;
        }
    }
    return true;
}

static uint32_t ended(const struct traffic *traffic) { return traffic->ended[0] + traffic->ended[1]; }

static void never(const struct traffic *traffic, const char *expression)
{
    for (int from = 0; from < 2; from++) {
        uint32_t up, count;
        verbs_lanes(traffic->net.transports[from], id_of(!from), &up, &count);
        print_message("endpoint %d: %u lanes up, rebuilt %u times; peer failed %d times: %s\n", from, up,
                      count, traffic->net.failed_count[from], traffic->net.failed_text[from]);
        for (int i = 0; i < SLOTS; i++) {
            const struct flight *flight = &traffic->flights[from][i];
            if (!flight->flying) continue;
            print_message("  message %u of %zu bytes: sent %d, received %d\n", flight->number, flight->bytes,
                          flight->send.fired, flight->recv.fired);
        }
    }
    fail_msg("never true: %s (%u messages ended)", expression, ended(traffic));
}

#define STEP_UNTIL(traffic, more, expression) \
    do { \
        uint64_t limit_ = net_now_ns() + WEFT_SECONDS(120); \
        while (!(expression)) { \
            step(traffic, more); \
            if (net_now_ns() > limit_) never(traffic, #expression); \
        } \
    } while (0)

static void nothing_lost(struct traffic *traffic)
{
    STEP_UNTIL(traffic, false, quiet(traffic));
    assert_int_equal(traffic->failed, 0);
    assert_int_equal(traffic->next[0], traffic->ended[0]);
    assert_int_equal(traffic->next[1], traffic->ended[1]);
    assert_int_equal(traffic->net.failed_count[0] + traffic->net.failed_count[1], 0);
}

static uint32_t rebuilt(struct traffic *traffic)
{
    uint32_t up, count[2];
    for (int i = 0; i < 2; i++) verbs_lanes(traffic->net.transports[i], id_of(!i), &up, &count[i]);
    return count[0] + count[1];
}

static void shell(const char *format)
{
    char command[256];
    snprintf(command, sizeof command, format, wire);
    if (system(command) != 0) fail_msg("'%s' failed", command);
}

/* Queue pairs break repeatedly on either side, with operations in flight. */
static void test_forced_errors(void **state)
{
    struct traffic *traffic = traffic_open(1);
    STEP_UNTIL(traffic, true, ended(traffic) >= 30);
    for (int round = 0; round < 25; round++) {
        int side = (int)(draw(traffic) & 1);
        (void)verbs_force_error(traffic->net.transports[side], id_of(!side), 0);
        uint32_t target = ended(traffic) + 1 + draw(traffic) % 15;
        STEP_UNTIL(traffic, true, ended(traffic) >= target);
    }
    nothing_lost(traffic);
    assert_true(rebuilt(traffic) >= 10);
    print_message("%u messages, queue pairs rebuilt %u times\n", ended(traffic), rebuilt(traffic));
    traffic_close(traffic);
}

static void hurt(const char *fault, uint32_t messages, uint32_t seed)
{
    if (!wire) skip();
    char command[256];
    struct traffic *traffic = traffic_open(seed);
    STEP_UNTIL(traffic, true, ended(traffic) >= 10);
    snprintf(command, sizeof command, "tc qdisc replace dev %s root netem %s", wire, fault);
    if (system(command) != 0) fail_msg("'%s' failed", command);
    uint32_t target = ended(traffic) + messages;
    STEP_UNTIL(traffic, true, ended(traffic) >= target);
    nothing_lost(traffic);
    print_message("%s: %u messages, queue pairs rebuilt %u times\n", fault, ended(traffic), rebuilt(traffic));
    shell("tc qdisc del dev %s root");
    traffic_close(traffic);
}

static void test_loss(void **state) { hurt("loss 3%", 60, 2); }
static void test_delay(void **state) { hurt("delay 3ms", 60, 3); }
static void test_reorder(void **state) { hurt("delay 1ms reorder 25%", 40, 4); }
static void test_duplicate(void **state) { hurt("duplicate 10%", 60, 5); }
static void test_corrupt(void **state) { hurt("corrupt 3%", 60, 6); }

static void mend(void)
{
    shell("ip link set %s up");
    if (getenv("WEFT_TEST_WIRE_REPAIR") && system(getenv("WEFT_TEST_WIRE_REPAIR")) != 0)
        fail_msg("the wire was not repaired");
}

/* Down during transfers, up again before the timeout: nothing is lost. */
static void test_cut_and_mended(void **state)
{
    if (!wire) skip();
    struct traffic *traffic = traffic_open(7);
    for (int round = 0; round < 2; round++) {
        uint32_t target = ended(traffic) + 20;
        STEP_UNTIL(traffic, true, ended(traffic) >= target);
        shell("ip link set %s down");
        uint64_t until = net_now_ns() + WEFT_SECONDS(2);
        while (net_now_ns() < until) step(traffic, true);
        mend();
        target = ended(traffic) + 20;
        STEP_UNTIL(traffic, true, ended(traffic) >= target);
    }
    nothing_lost(traffic);
    print_message("%u messages, queue pairs rebuilt %u times\n", ended(traffic), rebuilt(traffic));
    traffic_close(traffic);
}

/* Nothing can pass any more (nor the control link, unless stated): every operation ends once, and both
 * sides get the peer, the device and the reason. */
static void both_are_notified(struct traffic *traffic)
{
    STEP_UNTIL(traffic, true, traffic->net.failed_count[0] == 1 && traffic->net.failed_count[1] == 1);
    STEP_UNTIL(traffic, false, quiet(traffic));
    for (int i = 0; i < 2; i++) {
        print_message("  endpoint %d, peer %d: %s\n", 100 + i, traffic->net.failed_id[i],
                      traffic->net.failed_text[i]);
        assert_int_equal(traffic->net.failed_status[i], WEFT_ERR_PEER_LOST);
        assert_int_equal(traffic->net.failed_id[i], id_of(!i));
        assert_non_null(strstr(traffic->net.failed_text[i], "rxe"));
        assert_non_null(strstr(traffic->net.failed_text[i], " port 1: "));
    }
}

static void test_cut_for_good(void **state)
{
    if (!wire) skip();
    flavour.tune = "timeout=14,lost_ms=2000";
    struct traffic *traffic = traffic_open(8);
    STEP_UNTIL(traffic, true, ended(traffic) >= 10);
    shell("ip link set %s down");
    both_are_notified(traffic);
    mend();
    traffic_close(traffic);
}

/* The link is up and queue pairs connect, but no packet arrives, as behind a broken switch. */
static void test_black_hole(void **state)
{
    if (!wire) skip();
    flavour.tune = "timeout=12,retries=3,lost_ms=2000";
    struct traffic *traffic = traffic_open(9);
    STEP_UNTIL(traffic, true, ended(traffic) >= 10);
    shell("tc qdisc replace dev %s root netem loss 100%%");
    both_are_notified(traffic);
    shell("tc qdisc del dev %s root");
    traffic_close(traffic);
}

/* The control link uses another path than the packets: the side that detects the failure informs the
 * other. */
static void test_cut_beside_the_link(void **state)
{
    if (!wire) skip();
    flavour.tune = "timeout=14,lost_ms=2000,host=127.0.0.1";
    struct traffic *traffic = traffic_open(10);
    STEP_UNTIL(traffic, true, ended(traffic) >= 10);
    shell("ip link set %s down");
    both_are_notified(traffic);
    mend();
    traffic_close(traffic);
}

static bool lanes_up(struct traffic *traffic, uint32_t count)
{
    for (int i = 0; i < 2; i++) {
        uint32_t up, rebuilt_count;
        verbs_lanes(traffic->net.transports[i], id_of(!i), &up, &rebuilt_count);
        if (up != count) return false;
    }
    return true;
}

/* Two rails, the wire of one is cut: its work moves to the other, and it is used again after the repair. */
static void cut_rail(const char *tune, uint32_t seed)
{
    flavour.tune = tune;
    struct traffic *traffic = traffic_open(seed);
    STEP_UNTIL(traffic, true, ended(traffic) >= 20 && lanes_up(traffic, 2));
    shell("ip link set %s down");
    STEP_UNTIL(traffic, true, lanes_up(traffic, 1));
    uint32_t before = ended(traffic);
    STEP_UNTIL(traffic, true, ended(traffic) >= before + 60);
    assert_true(lanes_up(traffic, 1));
    mend();
    STEP_UNTIL(traffic, true, lanes_up(traffic, 2));
    before = ended(traffic);
    STEP_UNTIL(traffic, true, ended(traffic) >= before + 20);
    nothing_lost(traffic);
    print_message("%u messages, queue pairs rebuilt %u times\n", ended(traffic), rebuilt(traffic));
    traffic_close(traffic);
}

static bool several_rails(void)
{
    const char *devices = getenv("WEFT_TEST_DEVICES");
    return wire && devices && strchr(devices, ',');
}

/* The control link uses another wire: on the first rail's network it would be cut, too. */
static void test_rail_first_cut(void **state)
{
    if (!several_rails()) skip();
    cut_rail("timeout=14,lost_ms=60000,chunk=16k,host=127.0.0.1", 11);
}

static void test_rail_second_cut(void **state)
{
    const char *first = wire, *second = getenv("WEFT_TEST_SECOND_WIRE");
    if (!several_rails() || !second) skip();
    wire = second;
    cut_rail("timeout=14,lost_ms=60000,chunk=16k", 12);
    wire = first;
}

/* test_verbs_faults [PATTERN]: only the cases whose names match, as test_cut* */
int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    wire = getenv("WEFT_TEST_WIRE");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forced_errors),
        cmocka_unit_test(test_loss),
        cmocka_unit_test(test_delay),
        cmocka_unit_test(test_reorder),
        cmocka_unit_test(test_duplicate),
        cmocka_unit_test(test_corrupt),
        cmocka_unit_test(test_cut_and_mended),
        cmocka_unit_test(test_cut_for_good),
        cmocka_unit_test(test_black_hole),
        cmocka_unit_test(test_cut_beside_the_link),
        cmocka_unit_test(test_rail_first_cut),
        cmocka_unit_test(test_rail_second_cut),
    };
    return cmocka_run_group_tests_name("verbs faults", tests, NULL, NULL);
}
