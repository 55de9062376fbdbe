/* test_shrink.c - workers agree to continue without lost workers: messages, their order, and random losses at
 * any moment, also during an agreement. */
#include <stdio.h>

#include "tests/coordinator/coordinator_harness.h"

#define BODY(name) WEFT__CONTROL__CONTROL__BODY_##name

static struct harness *job(uint32_t workers, uint32_t workers_min, uint64_t *c)
{
    struct harness *h = harness_create_elastic(workers, workers_min);
    harness_run(h, c, 1);
    return h;
}

static void say_shrink(struct harness *h, uint64_t connection, uint32_t epoch, uint64_t committed)
{
    Weft__Control__Shrink shrink = WEFT__CONTROL__SHRINK__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    shrink.epoch = epoch;
    shrink.committed = committed;
    message.body_case = BODY(SHRINK);
    message.shrink = &shrink;
    harness_deliver(h, connection, &message);
}

static void expect_lost(struct harness *h, uint64_t connection, uint32_t member, uint32_t epoch)
{
    Control *message = harness_expect(h, connection, BODY(MEMBER_LOST));
    assert_int_equal(message->member_lost->member, member);
    assert_int_equal(message->member_lost->epoch, epoch);
}

static void expect_shrunk(struct harness *h, uint64_t connection, uint32_t epoch, uint64_t committed,
                          const uint32_t *members, size_t count)
{
    Control *message = harness_expect(h, connection, BODY(SHRUNK));
    assert_int_equal(message->shrunk->epoch, epoch);
    assert_int_equal(message->shrunk->committed, committed);
    assert_int_equal(message->shrunk->n_members, count);
    assert_memory_equal(message->shrunk->members, members, count * sizeof *members);
}

/* The largest step that any worker knows to be good is good. Then another loss, and a Shrink for the epoch
 * before it. */
static void one_after_the_other(void **state)
{
    uint64_t c[4];
    struct harness *h = job(4, 2, c);
    harness_close(h, c[1], "reset");
    static const uint32_t three[] = {0, 2, 3}, two[] = {2, 3};
    for (int i = 0; i < 4; i++)
        if (i != 1) expect_lost(h, c[i], 1, 2);
    say_shrink(h, c[0], 2, 6);
    say_shrink(h, c[3], 2, 7);
    harness_expect_nothing(h, c[0]);
    say_shrink(h, c[2], 2, 6);
    for (int i = 0; i < 4; i++)
        if (i != 1) expect_shrunk(h, c[i], 2, 7, three, 3);

    harness_close(h, c[0], "reset");
    expect_lost(h, c[2], 0, 3);
    expect_lost(h, c[3], 0, 3);
    say_shrink(h, c[2], 2, 9); /* sent before it got the second loss */
    say_shrink(h, c[3], 3, 9);
    harness_expect_nothing(h, c[3]);
    say_shrink(h, c[2], 3, 9);
    expect_shrunk(h, c[2], 3, 9, two, 2);
    expect_shrunk(h, c[3], 3, 9, two, 2);
    assert_int_equal(h->ended_count, 0);

    /* One loss too many. */
    harness_close(h, c[3], "reset");
    expect_lost(h, c[2], 3, 0);
    assert_int_equal(h->ended_count, 1);
    assert_int_equal(h->end_status, WEFT_ERR_PEER_LOST);
    harness_free(h);
}

/* The next loss is before the others have continued: they report what they knew before, and the worker that
 * knew more is lost. The step stays good. */
static void good_for_ever(void **state)
{
    uint64_t c[4];
    struct harness *h = job(4, 1, c);
    static const uint32_t three[] = {0, 2, 3}, two[] = {2, 3};
    harness_close(h, c[1], "reset");
    say_shrink(h, c[0], 2, 7);
    say_shrink(h, c[2], 2, 6);
    say_shrink(h, c[3], 2, 6);
    for (int i = 0; i < 4; i++) {
        if (i == 1) continue;
        expect_lost(h, c[i], 1, 2);
        expect_shrunk(h, c[i], 2, 7, three, 3);
    }
    harness_close(h, c[0], "reset");
    for (int i = 2; i < 4; i++) {
        expect_lost(h, c[i], 0, 3);
        say_shrink(h, c[i], 3, 6);
    }
    for (int i = 2; i < 4; i++) expect_shrunk(h, c[i], 3, 7, two, 2);
    harness_free(h);
}

static void lost_while_they_agree(void **state)
{
    uint64_t c[4];
    struct harness *h = job(4, 1, c);
    static const uint32_t members[] = {0, 3};
    harness_close(h, c[2], "reset");
    say_shrink(h, c[0], 2, 4);
    say_shrink(h, c[1], 2, 5);
    harness_close(h, c[1], "reset");
    expect_lost(h, c[0], 2, 2);
    expect_lost(h, c[0], 1, 3);
    say_shrink(h, c[0], 3, 4);
    say_shrink(h, c[3], 3, 4);
    expect_shrunk(h, c[0], 3, 4, members, 2);
    /* The last worker leaves, and the job ends normally. */
    harness_leave(h, c[0], "");
    harness_leave(h, c[3], "");
    assert_int_equal(h->ended_count, 1);
    assert_int_equal(h->end_status, WEFT_OK);
    harness_free(h);
}

static void say_heartbeat(struct harness *h, uint64_t connection, uint32_t ask, uint32_t answer)
{
    Weft__Control__Heartbeat heartbeat = WEFT__CONTROL__HEARTBEAT__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    heartbeat.ask = ask;
    heartbeat.answer = answer;
    message.body_case = BODY(HEARTBEAT);
    message.heartbeat = &heartbeat;
    harness_deliver(h, connection, &message);
}

static void expect_heartbeat(struct harness *h, uint64_t connection, uint32_t ask, uint32_t answer)
{
    Control *message = harness_expect(h, connection, BODY(HEARTBEAT));
    assert_int_equal(message->heartbeat->ask, ask);
    assert_int_equal(message->heartbeat->answer, answer);
}

/* A worker that requests a liveness check gets a reply when all workers have replied to a check that began
 * after the request. A silent worker is never reported alive. A check of an earlier membership gets no reply.
 */
static void all_live(void **state)
{
    uint64_t c[4];
    struct harness *h = job(4, 2, c);
    say_heartbeat(h, c[1], 1, 0);
    for (int i = 0; i < 4; i++) expect_heartbeat(h, c[i], 1, 0);
    say_heartbeat(h, c[2], 0, 1);
    say_heartbeat(h, c[2], 1, 0); /* requests after it has replied */
    say_heartbeat(h, c[0], 0, 1);
    say_heartbeat(h, c[0], 0, 7); /* of no check: its earlier reply stays valid */
    say_heartbeat(h, c[1], 0, 1);
    say_heartbeat(h, c[3], 0, 1);
    expect_heartbeat(h, c[1], 0, 1);
    for (int i = 0; i < 4; i++) expect_heartbeat(h, c[i], 2, 0);
    for (int i = 0; i < 4; i++)
        if (i != 3) say_heartbeat(h, c[i], 0, 2);
    harness_expect_nothing(h, c[2]);
    harness_leave(h, c[3], ""); /* no longer waited for */
    expect_heartbeat(h, c[2], 0, 2);

    say_heartbeat(h, c[0], 1, 0);
    for (int i = 0; i < 3; i++) expect_heartbeat(h, c[i], 3, 0);
    say_heartbeat(h, c[0], 0, 3);
    harness_close(h, c[1], "reset");
    expect_lost(h, c[0], 1, 2);
    expect_lost(h, c[2], 1, 2);
    say_heartbeat(h, c[2], 0, 3);
    harness_expect_nothing(h, c[0]);
    harness_free(h);
}

/* Also if a loss ends the job: the loss or abort may not have reached the requesting worker, and a reply
 * shows that there is none. */
static void all_live_where_a_loss_ends_the_job(void **state)
{
    uint64_t c[2];
    struct harness *h = job(2, 0, c);
    say_heartbeat(h, c[1], 1, 0);
    for (int i = 0; i < 2; i++) expect_heartbeat(h, c[i], 1, 0);
    say_heartbeat(h, c[1], 0, 1);
    harness_expect_nothing(h, c[1]); /* the other one has not replied */
    say_heartbeat(h, c[0], 0, 1);
    expect_heartbeat(h, c[1], 0, 1);
    harness_expect_nothing(h, c[0]);
    harness_free(h);
}

/* A rank that leaves is not waited for. A silent one is, until a deadline that names it. */
static void left_and_silent(void **state)
{
    uint64_t c[4];
    struct harness *h = job(4, 1, c);
    static const uint32_t members[] = {0, 3};
    harness_close(h, c[2], "reset");
    say_shrink(h, c[0], 2, 1);
    say_shrink(h, c[3], 2, 1);
    harness_leave(h, c[1], "no more");
    expect_lost(h, c[0], 2, 2);
    expect_shrunk(h, c[0], 2, 1, members, 2);
    harness_free(h);

    h = job(3, 1, c);
    harness_close(h, c[1], "reset");
    say_shrink(h, c[0], 2, 1);
    for (int beat = 0; beat < 80; beat++) {
        Control message = WEFT__CONTROL__CONTROL__INIT;
        Weft__Control__Heartbeat body = WEFT__CONTROL__HEARTBEAT__INIT;
        message.body_case = BODY(HEARTBEAT), message.heartbeat = &body;
        h->now_ns += WEFT_SECONDS(5);
        if (h->ended_count == 0) harness_deliver(h, c[0], &message), harness_deliver(h, c[2], &message);
        weft_coordinator_tick(h->coordinator);
    }
    assert_int_equal(h->ended_count, 1);
    assert_int_equal(h->end_status, WEFT_ERR_DEADLINE);
    assert_non_null(strstr(h->end_text, "rank 2 ("));
    harness_free(h);
}

/* Advances by seconds with heartbeats of all members, so that no member is lost. */
static void pass(struct harness *h, const uint64_t *connections, size_t count, uint32_t seconds)
{
    for (uint32_t past = 0; past < seconds && h->ended_count == 0; past += 5) {
        h->now_ns += WEFT_SECONDS(5);
        for (size_t i = 0; i < count; i++) say_heartbeat(h, connections[i], 0, 0);
        weft_coordinator_tick(h->coordinator);
    }
}

/* The clock is later at each reading: a silent worker is lost after the "now" of the tick that detects it. */
static void silent_worker(void **state)
{
    uint64_t c[3];
    struct harness *h = job(3, 2, c);
    static const uint32_t members[] = {0, 2};
    const uint64_t others[] = {c[0], c[2]};
    pass(h, others, 2, 35);
    assert_int_equal(h->ended_count, 0);
    expect_lost(h, c[0], 1, 2);
    expect_lost(h, c[2], 1, 2);
    say_shrink(h, c[0], 2, 4);
    say_shrink(h, c[2], 2, 4);
    expect_shrunk(h, c[0], 2, 4, members, 2);
    expect_shrunk(h, c[2], 2, 4, members, 2);
    harness_free(h);
}

static void not_due(void **state)
{
    uint64_t c[4];
    struct harness *h = job(3, 2, c);
    say_shrink(h, c[0], 1, 1); /* no worker is lost: breaks the protocol, so the sender is lost */
    expect_lost(h, c[1], 0, 2);
    say_shrink(h, c[1], 9, 1);
    assert_int_equal(h->ended_count, 1); /* one worker is too few */
    harness_free(h);
}

static void say_join(struct harness *h, uint64_t connection, uint64_t committed)
{
    Weft__Control__Join join = WEFT__CONTROL__JOIN__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    join.committed = committed;
    join.codec_steps = 10 * committed;
    message.body_case = BODY(JOIN);
    message.join = &join;
    harness_deliver(h, connection, &message);
}

static void expect_joined(struct harness *h, uint64_t connection, uint32_t member, uint32_t epoch)
{
    Control *message = harness_expect(h, connection, BODY(JOINED));
    assert_int_equal(message->joined->member, member);
    assert_int_equal(message->joined->epoch, epoch);
    assert_non_null(strstr(message->joined->text, "out of data"));
}

/* A worker that has joined is asked too. When it is lost, the others continue unchanged, and a requested
 * check completes. */
static void all_live_but_who_rested(void **state)
{
    uint64_t c[3];
    struct harness *h = job(3, 1, c);
    static const uint32_t two[] = {0, 1};
    say_join(h, c[2], 4);
    for (int i = 0; i < 3; i++) expect_joined(h, c[i], 2, 2);
    for (int i = 0; i < 2; i++) say_shrink(h, c[i], 2, 4);
    for (int i = 0; i < 3; i++) expect_shrunk(h, c[i], 2, 4, two, 2);
    say_heartbeat(h, c[0], 1, 0);
    for (int i = 0; i < 3; i++) expect_heartbeat(h, c[i], 1, 0);
    for (int i = 0; i < 2; i++) say_heartbeat(h, c[i], 0, 1);
    harness_expect_nothing(h, c[0]);
    harness_close(h, c[2], "reset");
    expect_lost(h, c[0], 2, 2);
    expect_lost(h, c[1], 2, 2);
    expect_heartbeat(h, c[0], 0, 1);
    say_heartbeat(h, c[1], 1, 0); /* and the next check starts */
    for (int i = 0; i < 2; i++) expect_heartbeat(h, c[i], 2, 0);
    harness_free(h);
}

/* Two of three have joined. One of them is lost, which needs no agreement. The last one joins, and all
 * continue. */
static void all_join(void **state)
{
    uint64_t c[3];
    struct harness *h = job(3, 1, c);
    static const uint32_t two[] = {0, 2}, one[] = {2}, rest[] = {0, 2};
    say_join(h, c[1], 4);
    for (int i = 0; i < 3; i++) expect_joined(h, c[i], 1, 2);
    say_shrink(h, c[0], 2, 4);
    harness_expect_nothing(h, c[0]);
    say_shrink(h, c[2], 2, 4);
    for (int i = 0; i < 3; i++) expect_shrunk(h, c[i], 2, 4, two, 2);
    say_join(h, c[0], 6);
    for (int i = 0; i < 3; i++) expect_joined(h, c[i], 0, 3);
    say_shrink(h, c[2], 3, 5); /* rank 0 knew that the last step was good, and joined */
    for (int i = 0; i < 3; i++) expect_shrunk(h, c[i], 3, 6, one, 1);
    harness_close(h, c[1], "killed");
    expect_lost(h, c[0], 1, 3);
    expect_lost(h, c[2], 1, 3);
    harness_expect_nothing(h, c[2]);
    say_join(h, c[2], 9);
    expect_joined(h, c[0], 2, 4);
    Control *message = harness_expect(h, c[0], BODY(SHRUNK));
    assert_int_equal(message->shrunk->last, 2 + 1);
    assert_int_equal(message->shrunk->codec_steps, 90);
    assert_int_equal(message->shrunk->committed, 9);
    assert_memory_equal(message->shrunk->members, rest, sizeof rest);
    expect_joined(h, c[2], 2, 4);
    expect_shrunk(h, c[2], 4, 9, rest, 2);
    /* They continue. One joins, the other leaves: the joined one is alone and continues alone. */
    say_join(h, c[0], 11);
    for (int i = 0; i < 3; i += 2) expect_joined(h, c[i], 0, 5);
    say_shrink(h, c[2], 5, 11);
    for (int i = 0; i < 3; i += 2) expect_shrunk(h, c[i], 5, 11, one, 1);
    harness_leave(h, c[2], "");
    expect_joined(h, c[0], 0, 6);
    static const uint32_t first[] = {0};
    expect_shrunk(h, c[0], 6, 11, first, 1);
    assert_int_equal(h->ended_count, 0);
    say_join(h, c[0], 11); /* alone: at once */
    expect_joined(h, c[0], 0, 7);
    expect_shrunk(h, c[0], 7, 11, first, 1);
    harness_free(h);
}

/* One has joined, the other is lost: no remaining worker knows how many steps the shards have applied. */
static void shards_are_beyond_who_rests(void **state)
{
    uint64_t c[4];
    struct harness *h = harness_create_elastic_shards(2, 1, 1);
    harness_run(h, c, 1);
    static const uint32_t one[] = {1};
    say_join(h, c[0], 4);
    for (int i = 0; i < 3; i++) expect_joined(h, c[i], 0, 2); /* the shard, too */
    say_shrink(h, c[1], 2, 4);
    for (int i = 0; i < 3; i++) expect_shrunk(h, c[i], 2, 4, one, 1);
    harness_close(h, c[1], "killed");
    Control *message = harness_expect(h, c[0], BODY(MEMBER_LOST));
    assert_int_equal(message->member_lost->epoch, 0);
    assert_non_null(strstr(message->member_lost->text,
                           "killed; the ranks that are left rest, and the shards may be steps beyond them"));
    assert_int_equal(h->ended_count, 1);
    harness_free(h);
}

static void join_not_due(void **state)
{
    uint64_t c[3];
    struct harness *h = job(3, 2, c);
    say_join(h, c[1], 4);
    say_join(h, c[1], 4); /* twice: breaks the protocol */
    for (int i = 0; i < 3; i += 2) {
        expect_joined(h, c[i], 1, 2);
        expect_lost(h, c[i], 1, 2);
    }
    assert_int_equal(h->ended_count, 0);
    harness_free(h);
    h = harness_create_elastic(2, 0);
    harness_run(h, c, 1);
    say_join(h, c[0], 1);
    expect_lost(h, c[1], 0, 0);
    assert_int_equal(h->ended_count, 1);
    harness_free(h);
}

/* A new worker, up to its Endpoints. */
static uint64_t come(struct harness *h)
{
    uint64_t c = harness_join(h, WEFT__CONTROL__ROLE__ROLE_WORKER, -1, 1, NULL);
    harness_endpoints(h, c, 1);
    return c;
}

static struct harness *growing(uint32_t workers, uint32_t workers_min, uint32_t workers_max, uint64_t *c)
{
    struct harness *h = harness_create_growing(workers, 0, workers_min, workers_max);
    harness_run(h, c, 1);
    return h;
}

/* One of three is lost and joins again at the end of a step. Another one is admitted while one has joined.
 * Then all join. */
static void newcomers(void **state)
{
    uint64_t c[3];
    struct harness *h = growing(3, 1, 4, c);
    static const uint32_t two[] = {0, 2}, three[] = {0, 2, 3}, other[] = {0, 3, 4}, all[] = {0, 2, 3, 4};
    harness_close(h, c[1], "killed");
    for (int i = 0; i < 3; i += 2) {
        expect_lost(h, c[i], 1, 2);
        say_shrink(h, c[i], 2, 4);
    }
    for (int i = 0; i < 3; i += 2) expect_shrunk(h, c[i], 2, 4, two, 2);
    uint64_t again = come(h);
    for (int i = 0; i < 3; i += 2) assert_int_equal(harness_expect(h, c[i], BODY(GROW))->grow->epoch, 3);
    harness_expect_nothing(h, again);
    say_shrink(h, c[2], 3, 9);
    harness_expect_nothing(h, again);
    say_shrink(h, c[0], 3, 9);
    Control *message = harness_expect(h, c[0], BODY(SHRUNK));
    assert_int_equal(message->shrunk->n_newcomers, 1);
    assert_int_equal(message->shrunk->newcomers[0]->member, 3);
    assert_int_equal(message->shrunk->newcomers[0]->index, 2);
    assert_int_equal(message->shrunk->newcomers[0]->n_addresses, 1);
    expect_shrunk(h, c[2], 3, 9, three, 3);
    message = harness_expect(h, again, BODY(ROSTER));
    assert_int_equal(message->roster->epoch, 3);
    assert_int_equal(message->roster->n_members, 3);
    harness_ready(h, again);
    assert_int_equal(harness_expect(h, again, BODY(GO))->go->committed, 9);
    /* An agreement after a loss admits a waiting newcomer, too. */
    say_join(h, c[2], 10);
    expect_joined(h, c[0], 2, 4);
    expect_joined(h, c[2], 2, 4);
    expect_joined(h, again, 2, 4);
    uint64_t fourth = come(h);
    say_shrink(h, again, 4, 10);
    say_shrink(h, c[0], 4, 10);
    expect_shrunk(h, c[0], 4, 10, other, 3);
    expect_shrunk(h, again, 4, 10, other, 3);
    expect_shrunk(h, c[2], 4, 10, other, 3); /* it has joined */
    assert_int_equal(harness_expect(h, fourth, BODY(ROSTER))->roster->n_members, 3);
    harness_ready(h, fourth);
    harness_expect(h, fourth, BODY(GO));
    /* Full: four of four. */
    uint64_t fifth = harness_hello(
        h, &(struct harness_hello){.role = WEFT__CONTROL__ROLE__ROLE_WORKER, .wanted_index = -1});
    harness_expect(h, fifth, BODY(ABORT));
    /* A newcomer does not have the address of a joined worker: all get the addresses of all. */
    say_join(h, c[0], 11);
    say_join(h, again, 11);
    say_join(h, fourth, 12);
    for (int i = 0; i < 3; i++) harness_expect(h, fourth, BODY(JOINED));
    message = harness_expect(h, fourth, BODY(SHRUNK));
    assert_int_equal(message->shrunk->last, 4 + 1);
    assert_int_equal(message->shrunk->n_members, 4);
    assert_memory_equal(message->shrunk->members, all, sizeof all);
    assert_int_equal(message->shrunk->n_newcomers, 4);
    assert_int_equal(h->ended_count, 0);
    harness_free(h);
}

static void say_free(struct harness *h, uint64_t connection, uint32_t tensor)
{
    Weft__Control__TensorFree freed = WEFT__CONTROL__TENSOR_FREE__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    freed.tensor = tensor;
    message.body_case = BODY(TENSOR_FREE);
    message.tensor_free = &freed;
    harness_deliver(h, connection, &message);
}

static void declare_named(struct harness *h, const uint64_t *c, int count, uint32_t ordinal, const char *name)
{
    struct harness_declare declare;
    harness_declare_init(&declare, ordinal, name);
    declare.declare.mode = WEFT_WIRE_MODE_ALL_REDUCE;
    for (int i = 0; i < count; i++) harness_declare(h, c[i], &declare);
    for (int i = 0; i < count; i++)
        assert_int_equal(harness_expect(h, c[i], BODY(DECLARED))->declared->tensor, ordinal);
}

static void expect_free(struct harness *h, uint64_t connection, uint32_t tensor)
{
    assert_int_equal(harness_expect(h, connection, BODY(TENSOR_FREE))->tensor_free->tensor, tensor);
}

/* All workers get TensorFree after the last one has sent it. A loss before cancels the free, also of a worker
 * whose message arrives after the loss. A new worker declares the tensors that are left, with any number from
 * the last one on. */
static void frees(void **state)
{
    uint64_t c[4];
    struct harness *h = growing(3, 1, 4, c);
    static const uint32_t two[] = {0, 2}, three[] = {0, 2, 3};
    for (uint32_t n = 0; n < 4; n++) declare_named(h, c, 3, n, (const char *[]){"a", "b", "c", "d"}[n]);
    say_free(h, c[0], 0);
    say_free(h, c[2], 0);
    for (int i = 0; i < 3; i++) harness_expect_nothing(h, c[i]);
    say_free(h, c[1], 0);
    for (int i = 0; i < 3; i++) expect_free(h, c[i], 0);

    say_free(h, c[1], 2);
    say_free(h, c[2], 2);
    harness_close(h, c[1], "killed");
    say_free(h, c[0], 2);
    for (int i = 0; i < 3; i += 2) {
        expect_lost(h, c[i], 1, 2);
        say_shrink(h, c[i], 2, 4);
    }
    for (int i = 0; i < 3; i += 2) expect_shrunk(h, c[i], 2, 4, two, 2);
    say_free(h, c[0], 2);
    harness_expect_nothing(h, c[0]);
    say_free(h, c[2], 2);
    for (int i = 0; i < 3; i += 2) expect_free(h, c[i], 2);
    for (int i = 0; i < 3; i += 2) say_free(h, c[i], 3);
    for (int i = 0; i < 3; i += 2) expect_free(h, c[i], 3);

    uint64_t again = come(h);
    for (int i = 0; i < 3; i += 2) {
        harness_expect(h, c[i], BODY(GROW));
        say_shrink(h, c[i], 3, 5);
    }
    for (int i = 0; i < 3; i += 2) expect_shrunk(h, c[i], 3, 5, three, 3);
    harness_expect(h, again, BODY(ROSTER));
    harness_ready(h, again);
    assert_int_equal(harness_expect(h, again, BODY(GO))->go->tensors, 4);
    struct harness_declare declare;
    harness_declare_init(&declare, 0, "b");
    declare.declare.mode = WEFT_WIRE_MODE_ALL_REDUCE;
    harness_declare(h, again, &declare);
    assert_int_equal(harness_expect(h, again, BODY(DECLARED))->declared->tensor, 1);
    /* the name of a freed tensor, by all: the new worker counts on from its last tensor */
    harness_declare_init(&declare, 2, "a");
    declare.declare.mode = WEFT_WIRE_MODE_ALL_REDUCE;
    harness_declare(h, again, &declare);
    declare.declare.ordinal = 4;
    for (int i = 0; i < 3; i += 2) harness_declare(h, c[i], &declare);
    const uint64_t all[] = {c[0], c[2], again};
    for (int i = 0; i < 3; i++)
        assert_int_equal(harness_expect(h, all[i], BODY(DECLARED))->declared->tensor, 4);
    for (int i = 0; i < 3; i++) say_free(h, all[i], 1);
    for (int i = 0; i < 3; i++) expect_free(h, all[i], 1);
    assert_int_equal(h->ended_count, 0);
    harness_free(h);
}

/* With shards: the newcomer is admitted after the first good step, and the shard gets its addresses before
 * the newcomer gets the roster. */
static void newcomers_with_shards(void **state)
{
    uint64_t c[4];
    struct harness *h = harness_create_growing(3, 1, 1, 4);
    static const uint32_t two[] = {0, 2}, three[] = {0, 2, 4};
    harness_run(h, c, 1);
    harness_close(h, c[1], "killed");
    uint64_t again = come(h);
    for (int i = 0; i < 4; i++)
        if (i != 1) expect_lost(h, c[i], 1, 2);
    for (int i = 0; i < 3; i += 2) say_shrink(h, c[i], 2, 0);
    for (int i = 0; i < 4; i++)
        if (i != 1) expect_shrunk(h, c[i], 2, 0, two, 2);
    for (int i = 0; i < 4; i++)
        if (i != 1) assert_int_equal(harness_expect(h, c[i], BODY(GROW))->grow->epoch, 3);
    harness_expect_nothing(h, again);
    for (int i = 0; i < 3; i += 2) say_shrink(h, c[i], 3, 1);
    const Control *message = harness_expect(h, c[3], BODY(SHRUNK));
    assert_int_equal(message->shrunk->n_members, 3);
    assert_memory_equal(message->shrunk->members, three, sizeof three);
    assert_int_equal(message->shrunk->n_newcomers, 1);
    assert_int_equal(message->shrunk->newcomers[0]->n_addresses, 1);
    for (int i = 0; i < 3; i += 2) expect_shrunk(h, c[i], 3, 1, three, 3);
    assert_int_equal(harness_expect(h, again, BODY(ROSTER))->roster->n_members, 4);
    harness_ready(h, again);
    assert_int_equal(harness_expect(h, again, BODY(GO))->go->committed, 1);
    assert_int_equal(h->ended_count, 0);
    harness_free(h);
}

/* Its roster has no address that no process listens at; the map names the shards that are left. */
static void newcomers_without_a_lost_shard(void **state)
{
    uint64_t c[4];
    struct harness *h = harness_create_growing_copies(2, 2, 3);
    harness_run(h, c, 1);
    harness_close(h, c[2], "killed");
    assert_int_equal(h->ended_count, 0);
    for (int i = 0; i < 4; i++)
        if (i != 2) assert_int_equal(harness_expect(h, c[i], BODY(MAP))->map->lost, 3);
    uint64_t again = come(h);
    for (int i = 0; i < 2; i++) harness_expect(h, c[i], BODY(GROW));
    for (int i = 0; i < 2; i++) say_shrink(h, c[i], 2, 1);
    const Weft__Control__Roster *roster = harness_expect(h, again, BODY(ROSTER))->roster;
    assert_int_equal(roster->n_members, 4);
    for (size_t i = 0; i < roster->n_members; i++)
        assert_true(roster->members[i]->role == WEFT__CONTROL__ROLE__ROLE_WORKER ||
                    roster->members[i]->index == 1);
    const Weft__Control__Map *map = harness_expect(h, again, BODY(MAP))->map;
    assert_int_equal(map->lost, 0);
    for (size_t i = 0; i < map->n_slots; i++) assert_int_equal(map->slots[i]->leader, 3);
    harness_expect_nothing(h, again);
    harness_ready(h, again);
    harness_expect(h, again, BODY(GO));
    harness_free(h);
}

/* A newcomer that waits is not needed by the others: it may be lost, and it is notified of the end of the
 * job. */
static void newcomers_that_wait(void **state)
{
    uint64_t c[2];
    struct harness *h = growing(2, 2, 3, c);
    uint64_t first = come(h);
    harness_expect(h, c[0], BODY(GROW));
    harness_close(h, first, "killed");
    uint64_t second = come(h);
    harness_expect_nothing(h, c[0]);
    static const uint32_t members[] = {0, 1, 3};
    harness_expect(h, c[1], BODY(GROW));
    say_shrink(h, c[0], 2, 1);
    say_shrink(h, c[1], 2, 1);
    expect_shrunk(h, c[0], 2, 1, members, 3);
    harness_expect(h, second, BODY(ROSTER));
    harness_close(h, second, "killed"); /* not ready yet, but a rank */
    harness_expect(h, c[1], BODY(SHRUNK));
    expect_lost(h, c[1], 3, 3);
    uint64_t third = come(h);
    say_shrink(h, c[0], 3, 2);
    harness_leave(h, c[1], "");
    harness_expect(h, third, BODY(ROSTER));
    uint64_t fourth = come(h);
    harness_leave(h, third, "");
    harness_leave(h, c[0], "");
    assert_int_equal(h->ended_count, 1);
    assert_int_equal(h->end_status, WEFT_OK);
    assert_int_equal(harness_expect(h, fourth, BODY(ABORT))->abort->status, WEFT_ERR_CLOSED);
    harness_free(h);
}

/* A step may take any time while a newcomer waits. After the first worker has ended the step, the others are
 * waited for as after a loss, and named. */
static void newcomers_and_a_long_step(void **state)
{
    uint64_t c[3];
    struct harness *h = growing(2, 1, 3, c);
    c[2] = come(h);
    pass(h, c, 3, 3600);
    assert_int_equal(h->ended_count, 0);
    say_shrink(h, c[1], 2, 1);
    pass(h, c, 3, 3600);
    assert_int_equal(h->ended_count, 1);
    assert_int_equal(h->end_status, WEFT_ERR_DEADLINE);
    assert_non_null(strstr(h->end_text, "rank 0 ("));
    assert_null(strstr(h->end_text, "rank 1 ("));
    harness_free(h);
}

/* A check requested before an admission is cancelled. A new request covers all present workers. */
static void newcomers_and_a_roll(void **state)
{
    uint64_t c[3];
    struct harness *h = growing(2, 1, 3, c);
    say_heartbeat(h, c[0], 1, 0);
    c[2] = come(h);
    for (int i = 0; i < 2; i++) {
        expect_heartbeat(h, c[i], 1, 0);
        assert_int_equal(harness_expect(h, c[i], BODY(GROW))->grow->epoch, 2);
        say_shrink(h, c[i], 2, 1);
    }
    for (int i = 0; i < 2; i++) harness_expect(h, c[i], BODY(SHRUNK));
    harness_expect(h, c[2], BODY(ROSTER));
    harness_ready(h, c[2]);
    harness_expect(h, c[2], BODY(GO));
    for (int i = 0; i < 2; i++) say_heartbeat(h, c[i], 0, 1); /* too late */
    harness_expect_nothing(h, c[0]);
    say_heartbeat(h, c[0], 1, 0);
    for (int i = 0; i < 3; i++) expect_heartbeat(h, c[i], 2, 0);
    for (int i = 0; i < 3; i++) say_heartbeat(h, c[i], 0, 2);
    expect_heartbeat(h, c[0], 0, 2);
    harness_free(h);
}

/* A newcomer during the joins of all is not admitted with them; they are notified when they continue. */
static void newcomers_while_all_rest(void **state)
{
    static const uint32_t both[] = {0, 1}, all[] = {0, 1, 2};
    uint64_t c[2];
    struct harness *h = growing(2, 1, 3, c);
    say_join(h, c[0], 1);
    uint64_t third = come(h);
    say_join(h, c[1], 1);
    for (int i = 0; i < 2; i++) {
        expect_joined(h, c[i], 0, 2);
        expect_joined(h, c[i], 1, 3);
        expect_shrunk(h, c[i], 3, 1, both, 2);
        assert_int_equal(harness_expect(h, c[i], BODY(GROW))->grow->epoch, 4);
    }
    harness_expect_nothing(h, third);
    for (int i = 0; i < 2; i++) say_shrink(h, c[i], 4, 2);
    for (int i = 0; i < 2; i++) expect_shrunk(h, c[i], 4, 2, all, 3);
    harness_expect(h, third, BODY(ROSTER));
    harness_free(h);
}

/* It declares the existing tensors, also while a worker has joined. A new tensor is still refused then. */
static void newcomers_declare(void **state)
{
    static const uint32_t members[] = {0, 2};
    uint64_t c[2];
    struct harness *h = growing(2, 1, 3, c);
    struct harness_declare declare;
    harness_declare_init(&declare, 0, "w");
    declare.declare.mode = WEFT_WIRE_MODE_ALL_REDUCE;
    for (int i = 0; i < 2; i++) harness_declare(h, c[i], &declare);
    for (int i = 0; i < 2; i++) harness_expect(h, c[i], BODY(DECLARED));
    say_join(h, c[1], 1);
    uint64_t third = come(h);
    say_shrink(h, c[0], 2, 1);
    expect_joined(h, c[0], 1, 2);
    expect_shrunk(h, c[0], 2, 1, members, 2);
    harness_expect(h, third, BODY(ROSTER));
    harness_ready(h, third);
    harness_expect(h, third, BODY(GO));
    harness_declare(h, third, &declare);
    harness_expect(h, third, BODY(DECLARED));
    assert_int_equal(h->ended_count, 0);
    harness_declare_init(&declare, 1, "more");
    harness_declare(h, third, &declare);
    assert_int_equal(h->end_status, WEFT_ERR_MISMATCH);
    harness_free(h);
}

static void give_up(struct harness *h, uint64_t connection)
{
    Weft__Control__Abort abort = WEFT__CONTROL__ABORT__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    abort.status = WEFT_ERR_DEADLINE;
    abort.text = (char *)"it waited too long";
    message.body_case = BODY(ABORT);
    message.abort = &abort;
    harness_deliver(h, connection, &message);
}

/* A newcomer that fails, before it is admitted or before it is ready, does not end the job. */
static void newcomers_that_give_up(void **state)
{
    static const uint32_t members[] = {0, 1, 3}, two[] = {0, 1};
    uint64_t c[2];
    struct harness *h = growing(2, 2, 3, c);
    uint64_t first = come(h);
    harness_expect(h, c[0], BODY(GROW));
    harness_expect(h, c[1], BODY(GROW));
    give_up(h, first);
    harness_expect_nothing(h, c[0]);
    uint64_t second = come(h);
    say_shrink(h, c[0], 2, 1);
    say_shrink(h, c[1], 2, 1);
    expect_shrunk(h, c[0], 2, 1, members, 3);
    expect_shrunk(h, c[1], 2, 1, members, 3);
    harness_expect(h, second, BODY(ROSTER));
    give_up(h, second);
    expect_lost(h, c[0], 3, 3);
    expect_lost(h, c[1], 3, 3);
    say_shrink(h, c[0], 3, 2);
    say_shrink(h, c[1], 3, 2);
    expect_shrunk(h, c[0], 3, 2, two, 2);
    expect_shrunk(h, c[1], 3, 2, two, 2);
    assert_int_equal(h->ended_count, 0);
    give_up(h, c[0]); /* of an admitted one: ends the job */
    assert_int_equal(h->end_status, WEFT_ERR_DEADLINE);
    harness_free(h);
}

/* ---- random losses, joins and newcomers ---- */

static uint64_t random_state;
static uint32_t below(uint32_t bound)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((random_state >> 33) % bound);
}

enum { EPOCHS = 1200 };

/* A worker's knowledge from its messages alone. It runs steps, gets losses, agrees. */
struct worker {
    uint64_t connection, step; /* the last step it knows to be good */
    uint32_t announced_epoch, shrink_sent_epoch, in_force;
    uint32_t together, size; /* times it continued with all workers, and how many they were */
    bool alive, rests;
};

/* A message for a worker. A loss stops it; Shrunk puts it into the new membership. */
static void receive_message(struct worker *worker, const Control *message, uint64_t *steps_of_epoch,
                 uint32_t *sizes_of_epoch)
{
    if (message->body_case == BODY(MEMBER_LOST) && message->member_lost->epoch > worker->announced_epoch)
        worker->announced_epoch = message->member_lost->epoch;
    if (message->body_case == BODY(JOINED) && message->joined->epoch > worker->announced_epoch)
        worker->announced_epoch = message->joined->epoch;
    if (message->body_case == BODY(GROW) && message->grow->epoch > worker->announced_epoch)
        worker->announced_epoch = message->grow->epoch;
    if (message->body_case != BODY(SHRUNK)) return;
    uint32_t epoch = message->shrunk->epoch;
    assert_true(epoch > worker->in_force && epoch < EPOCHS);
    /* All get the same decision, and no known step is undone. */
    if (sizes_of_epoch[epoch] == 0) {
        sizes_of_epoch[epoch] = (uint32_t)message->shrunk->n_members;
        steps_of_epoch[epoch] = message->shrunk->committed;
    }
    assert_int_equal(sizes_of_epoch[epoch], message->shrunk->n_members);
    assert_int_equal(steps_of_epoch[epoch], message->shrunk->committed);
    assert_true(message->shrunk->committed >= worker->step);
    worker->in_force = epoch;
    worker->step = message->shrunk->committed;
    if (epoch > worker->shrink_sent_epoch) worker->shrink_sent_epoch = epoch;
    if (message->shrunk->last == 0) return;
    worker->rests = false;
    worker->together++;
    worker->size = (uint32_t)message->shrunk->n_members;
}

static void one_seed(uint64_t seed)
{
    enum { WORKERS = 6, ALL = 24 };
    random_state = seed * 2654435761u + 7;
    uint64_t c[WORKERS], steps_of_epoch[EPOCHS] = {0};
    uint32_t sizes_of_epoch[EPOCHS] = {0}, alive = WORKERS, joins = 0, count = WORKERS;
    struct harness *h = growing(WORKERS, 1, WORKERS, c);
    struct worker workers[ALL];
    for (int i = 0; i < WORKERS; i++)
        workers[i] = (struct worker){.connection = c[i], .alive = true, .announced_epoch = 1,
                                     .shrink_sent_epoch = 1, .in_force = 1};
    for (int event = 0; event < 200 || (event < 8000 && h->ended_count == 0); event++) {
        struct worker *worker = &workers[below(count)];
        if (event < 200 && alive < WORKERS && count < ALL && below(20) == 0) {
            workers[count++] = (struct worker){.connection = come(h), .alive = true};
            alive++;
            continue;
        }
        if (!worker->alive) continue;
        Control *message = below(2) ? harness_next(h, worker->connection) : NULL;
        if (message && message->body_case == BODY(ROSTER)) {
            worker->in_force = worker->shrink_sent_epoch = worker->announced_epoch = message->roster->epoch;
            harness_ready(h, worker->connection);
        } else if (message && message->body_case == BODY(GO)) {
            worker->step = message->go->committed;
        } else if (message) receive_message(worker, message, steps_of_epoch, sizes_of_epoch);
        else if (event < 200 && alive > 2 && below(25) == 0 && (worker->in_force || below(2))) {
            uint32_t others = 0; /* at least one active worker must stay */
            for (uint32_t i = 0; i < count; i++)
                others += workers[i].alive && workers[i].in_force && &workers[i] != worker;
            if (others < 2) continue;
            worker->alive = false, alive--;
            harness_close(h, worker->connection, "killed");
        } else if (worker->in_force == 0) {
            continue; /* waits */
        } else if (!worker->rests && (event >= 200 ? worker->announced_epoch <= worker->shrink_sent_epoch &&
                                                         below(20) == 0
                                                   : joins < 40 && below(15) == 0)) {
            /* in the end all join */
            worker->rests = true, joins++;
            say_join(h, worker->connection, worker->step);
        } else if (!worker->rests && worker->announced_epoch > worker->shrink_sent_epoch && below(3) == 0) {
            worker->step += below(4) == 0; /* this worker has got all votes of the step */
            say_shrink(h, worker->connection, worker->announced_epoch, worker->step);
            worker->shrink_sent_epoch = worker->announced_epoch;
        }
        if (event == 199)
            for (uint32_t i = 0; i < count; i++) workers[i].together = 0;
        if (event < 200) continue;
        /* Without further losses all join and continue together, again and again. */
        bool settled = true;
        for (uint32_t i = 0; i < count; i++)
            settled &= !workers[i].alive || (workers[i].together >= 2 && workers[i].size == alive);
        if (settled) break;
        if (event == 7999)
            fail_msg("replay: WEFT_TEST_SEED=%llu: the members never agreed", (unsigned long long)seed);
    }
    assert_int_equal(h->ended_count, 0);
    harness_free(h);
}

static void random_losses(void **state)
{
    const char *given = getenv("WEFT_TEST_SEED");
    uint64_t first = given ? strtoull(given, NULL, 0) : 1, count = given ? 1 : 1000;
    for (uint64_t seed = first; seed < first + count; seed++) one_seed(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_live),
        cmocka_unit_test(all_live_but_who_rested),
        cmocka_unit_test(all_live_where_a_loss_ends_the_job),
        cmocka_unit_test(one_after_the_other),
        cmocka_unit_test(good_for_ever),
        cmocka_unit_test(lost_while_they_agree),
        cmocka_unit_test(left_and_silent),
        cmocka_unit_test(silent_worker),
        cmocka_unit_test(not_due),
        cmocka_unit_test(all_join),
        cmocka_unit_test(shards_are_beyond_who_rests),
        cmocka_unit_test(join_not_due),
        cmocka_unit_test(newcomers),
        cmocka_unit_test(frees),
        cmocka_unit_test(newcomers_with_shards),
        cmocka_unit_test(newcomers_without_a_lost_shard),
        cmocka_unit_test(newcomers_that_wait),
        cmocka_unit_test(newcomers_that_give_up),
        cmocka_unit_test(newcomers_declare),
        cmocka_unit_test(newcomers_and_a_long_step),
        cmocka_unit_test(newcomers_and_a_roll),
        cmocka_unit_test(newcomers_while_all_rest),
        cmocka_unit_test(random_losses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
