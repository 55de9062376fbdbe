/* test_resume.c - a control session over several connections: each frame arrives once and in order, whatever
 * was cut; only the member of the session resumes it. */
#include "tests/lib/check.h"

#include <stdlib.h>
#include <string.h>

#include "proto/proto.h"

#define SECRET "the job's secret, long enough"
static uint8_t welcome_key[WEFT_RESUME_KEY_BYTES] = "sixteen bytes ..";

static Weft__Control__Welcome welcome_of(void)
{
    Weft__Control__Welcome welcome = WEFT__CONTROL__WELCOME__INIT;
    welcome.member = 3;
    welcome.incarnation = 7;
    welcome.resume_key = (ProtobufCBinaryData){sizeof welcome_key, welcome_key};
    welcome.resume_ns = WEFT_SECONDS(5);
    return welcome;
}

static void begin(struct weft_resume *resume, struct weft_env *env)
{
    const Weft__Control__Welcome welcome = welcome_of();
    weft_resume_init(resume, env);
    weft_resume_begin(resume, &welcome);
    assert_true(resume->is_possible);
}

/* A message that carries a number. */
static struct weft_frame *numbered(uint32_t number, Weft__Control__Control *message,
                                   Weft__Control__DeclaredOk *body)
{
    struct weft_frame *frame;
    weft__control__declared_ok__init(body);
    weft__control__control__init(message);
    body->tensor = number;
    message->body_case = WEFT__CONTROL__CONTROL__BODY_DECLARED_OK;
    message->declared_ok = body;
    assert_int_equal(weft_frame_pack(weft_env_system(), message, &frame), WEFT_OK);
    return frame;
}

/* ---- a world of two sides: messages on the way are lost with a connection ---- */

enum { WIRE = 64, NUMBERS = 400 };
struct side {
    struct weft_resume resume;
    uint32_t wire[WIRE], on_wire; /* to the other side; UINT32_MAX - n: Ack of n */
    uint32_t sent, arrived;       /* numbers */
};

static enum weft_status put_frame(void *context, struct weft_frame *frame)
{
    struct side *side = context;
    Weft__Control__Control *message;
    assert_int_equal(weft_control_unpack(weft_env_system(), frame->data, frame->bytes, &message), WEFT_OK);
    assert_true(side->on_wire < WIRE);
    side->wire[side->on_wire++] = message->declared_ok->tensor;
    weft_control_free(weft_env_system(), message);
    return WEFT_OK;
}

static void send_next(struct side *side)
{
    Weft__Control__Control message;
    Weft__Control__DeclaredOk body;
    struct weft_frame *frame = numbered(side->sent++, &message, &body);
    weft_resume_keep(&side->resume, frame);
    put_frame(side, frame);
    weft_frame_release(frame);
}

/* The oldest message arrives: it must be the next number. */
static void deliver(struct side *from, struct side *to)
{
    if (from->on_wire == 0) return;
    const uint32_t number = from->wire[0];
    memmove(from->wire, from->wire + 1, --from->on_wire * sizeof *from->wire);
    if (number > NUMBERS) {
        assert_true(weft_resume_acknowledge(&to->resume, UINT32_MAX - number));
        return;
    }
    Weft__Control__Control message;
    Weft__Control__DeclaredOk body;
    weft_frame_release(numbered(number, &message, &body));
    assert_int_equal(number, to->arrived);
    to->arrived++;
    if (!weft_resume_count(&to->resume, &message, 100)) return;
    Weft__Control__Ack ack;
    weft_resume_report(&to->resume, &ack);
    if (to->on_wire < WIRE) to->wire[to->on_wire++] = UINT32_MAX - (uint32_t)ack.received;
}

static void cut_and_resume(struct side *member, struct side *coordinator)
{
    uint8_t challenge[WEFT_NONCE_BYTES] = "challenge", nonce[WEFT_NONCE_BYTES] = "nonce";
    uint8_t proof[WEFT_PROOF_BYTES], answer_proof[WEFT_PROOF_BYTES];
    const ProtobufCBinaryData challenge_data = {sizeof challenge, challenge};
    Weft__Control__Resume request;
    Weft__Control__Resumed answer;
    member->on_wire = coordinator->on_wire = 0;
    assert_int_equal(weft_resume_request(&member->resume, SECRET, &challenge_data, nonce, proof, &request),
                     WEFT_OK);
    assert_true(weft_resume_check(&coordinator->resume, SECRET, challenge, &request));
    assert_int_equal(weft_resume_answer(&coordinator->resume, SECRET, &request, answer_proof, &answer),
                     WEFT_OK);
    assert_true(weft_resume_acknowledge(&coordinator->resume, request.received));
    assert_true(weft_resume_accept(&member->resume, SECRET, nonce, &answer));
    assert_int_equal(weft_resume_send_kept(&member->resume, put_frame, member), WEFT_OK);
    assert_int_equal(weft_resume_send_kept(&coordinator->resume, put_frame, coordinator), WEFT_OK);
}

static void each_frame_arrives_once_and_in_order(void **state)
{
    for (unsigned seed = 1; seed <= 200; seed++) {
        struct side member = {0}, coordinator = {0};
        srand(seed);
        begin(&member.resume, weft_env_system());
        begin(&coordinator.resume, weft_env_system());
        while (member.sent < NUMBERS / 4) {
            struct side *from = rand() % 2 ? &member : &coordinator;
            struct side *to = from == &member ? &coordinator : &member;
            const int what = rand() % 20;
            if (what == 0) cut_and_resume(&member, &coordinator);
            else if (what < 8 && from->on_wire < WIRE / 2) send_next(from);
            else deliver(from, to);
        }
        cut_and_resume(&member, &coordinator);
        while (member.on_wire || coordinator.on_wire) {
            deliver(&member, &coordinator);
            deliver(&coordinator, &member);
        }
        assert_int_equal(coordinator.arrived, member.sent);
        assert_int_equal(member.arrived, coordinator.sent);
        assert_true(member.resume.sent - member.resume.acked < 16); /* copies are dropped */
        weft_resume_fini(&member.resume);
        weft_resume_fini(&coordinator.resume);
    }
}

/* ---- refusals ---- */

static void only_its_member_resumes(void **state)
{
    struct weft_resume member, coordinator;
    uint8_t challenge[WEFT_NONCE_BYTES] = "challenge", nonce[WEFT_NONCE_BYTES] = "nonce";
    uint8_t proof[WEFT_PROOF_BYTES];
    const ProtobufCBinaryData challenge_data = {sizeof challenge, challenge};
    Weft__Control__Resume request, changed;
    begin(&member, weft_env_system());
    begin(&coordinator, weft_env_system());
    assert_int_equal(weft_resume_request(&member, SECRET, &challenge_data, nonce, proof, &request), WEFT_OK);
    assert_true(weft_resume_check(&coordinator, SECRET, challenge, &request));
    assert_false(weft_resume_check(&coordinator, "another secret", challenge, &request));
    assert_false(weft_resume_check(&coordinator, NULL, challenge, &request));
    assert_false(weft_resume_check(&coordinator, SECRET, nonce, &request)); /* recorded */
    changed = request, changed.member = 4;
    assert_false(weft_resume_check(&coordinator, SECRET, challenge, &changed));
    changed = request, changed.incarnation = 8;
    assert_false(weft_resume_check(&coordinator, SECRET, challenge, &changed));
    changed = request, changed.received = 1; /* more than was sent */
    assert_false(weft_resume_check(&coordinator, SECRET, challenge, &changed));
    coordinator.key[0] ^= 1; /* another coordinator */
    assert_false(weft_resume_check(&coordinator, SECRET, challenge, &request));
    weft_resume_fini(&member);
    weft_resume_fini(&coordinator);
}

static void only_its_coordinator_answers(void **state)
{
    struct weft_resume member, coordinator;
    uint8_t nonce[WEFT_NONCE_BYTES] = "nonce", proof[WEFT_PROOF_BYTES];
    Weft__Control__Resume request = WEFT__CONTROL__RESUME__INIT;
    Weft__Control__Resumed answer;
    request.nonce = (ProtobufCBinaryData){sizeof nonce, nonce};
    begin(&member, weft_env_system());
    begin(&coordinator, weft_env_system());
    assert_int_equal(weft_resume_answer(&coordinator, SECRET, &request, proof, &answer), WEFT_OK);
    assert_false(weft_resume_accept(&member, "another secret", nonce, &answer));
    answer.received = 1; /* covered by the proof */
    assert_false(weft_resume_accept(&member, SECRET, nonce, &answer));
    answer.received = 0;
    assert_true(weft_resume_accept(&member, SECRET, nonce, &answer));
    weft_resume_fini(&member);
    weft_resume_fini(&coordinator);
}

static void impossible_acknowledgements(void **state)
{
    struct weft_resume resume;
    Weft__Control__Control message;
    Weft__Control__DeclaredOk body;
    begin(&resume, weft_env_system());
    struct weft_frame *frame = numbered(1, &message, &body);
    weft_resume_keep(&resume, frame);
    weft_resume_keep(&resume, frame);
    weft_frame_release(frame);
    assert_false(weft_resume_acknowledge(&resume, 3));
    assert_true(weft_resume_acknowledge(&resume, 2));
    assert_false(weft_resume_acknowledge(&resume, 1));
    assert_true(weft_list_empty(&resume.kept));
    weft_resume_fini(&resume);
}

static void ends_with_its_connection(void **state)
{
    struct weft_resume resume;
    Weft__Control__Control message;
    Weft__Control__DeclaredOk body;
    Weft__Control__Welcome welcome = welcome_of();
    weft_resume_init(&resume, weft_env_system());
    welcome.resume_key.len = 0; /* a coordinator of an earlier release */
    weft_resume_begin(&resume, &welcome);
    assert_false(resume.is_possible);
    struct weft_frame *frame = numbered(1, &message, &body);
    weft_resume_keep(&resume, frame);
    assert_true(weft_list_empty(&resume.kept));
    weft_resume_fini(&resume);
    weft_frame_release(frame);
}

static void too_many_bytes_are_kept(void **state)
{
    struct weft_resume resume;
    Weft__Control__Control message;
    Weft__Control__DeclaredOk body;
    begin(&resume, weft_env_system());
    struct weft_frame *frame = numbered(1, &message, &body);
    frame->bytes = WEFT_LIMIT_FRAME_BYTES; /* the data is not read here */
    for (int i = 0; i < 4; i++) weft_resume_keep(&resume, frame);
    assert_true(resume.is_possible);
    assert_int_equal(frame->references, 5);
    weft_resume_keep(&resume, frame);
    assert_false(resume.is_possible);
    assert_int_equal(frame->references, 1);
    weft_frame_release(frame);
    weft_resume_fini(&resume);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_frame_arrives_once_and_in_order),
        cmocka_unit_test(only_its_member_resumes),
        cmocka_unit_test(only_its_coordinator_answers),
        cmocka_unit_test(impossible_acknowledgements),
        cmocka_unit_test(ends_with_its_connection),
        cmocka_unit_test(too_many_bytes_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
