/* test_control_snap.c - the messages of snapshots: their fields survive, and values out of range are refused
 * by the sender and by the receiver. */
#include <stdlib.h>
#include <string.h>

#include "proto/proto.h"
#include "tests/lib/check.h"

#define NAME ((ProtobufCBinaryData){16, (uint8_t *)"0123456789abcdef"})

struct samples {
    Weft__Control__SnapRange range, *ranges[WEFT_LIMIT_SNAP_RANGES + 1];
    Weft__Control__SnapPiece piece, *pieces[WEFT_LIMIT_SNAP_PIECES + 1];
    Weft__Control__SnapPieces body;
};

static Weft__Control__Control fill(struct samples *s)
{
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    weft__control__snap_range__init(&s->range);
    s->range.tensor = 3;
    s->range.part = 2;
    s->range.offset = 1000;
    s->range.count = 24;
    s->range.step = 77;
    for (size_t i = 0; i <= WEFT_LIMIT_SNAP_RANGES; i++) s->ranges[i] = &s->range;
    weft__control__snap_piece__init(&s->piece);
    s->piece.name = s->piece.base_name = NAME;
    s->piece.chain = 1;
    s->piece.bytes = 96;
    s->piece.stored = 50;
    s->piece.n_ranges = 2;
    s->piece.ranges = s->ranges;
    for (size_t i = 0; i <= WEFT_LIMIT_SNAP_PIECES; i++) s->pieces[i] = &s->piece;
    weft__control__snap_pieces__init(&s->body);
    s->body.id = 9;
    s->body.last = true;
    s->body.n_pieces = 1;
    s->body.pieces = s->pieces;
    s->body.error = (char *)"disk full";
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP_PIECES;
    message.snap_pieces = &s->body;
    return message;
}

static Weft__Control__Control *pass(const Weft__Control__Control *message)
{
    uint8_t *data;
    size_t bytes;
    Weft__Control__Control *unpacked = NULL;
    assert_int_equal(weft_control_pack(weft_env_system(), message, &data, &bytes), WEFT_OK);
    assert_int_equal(weft_control_unpack(weft_env_system(), data, bytes, &unpacked), WEFT_OK);
    weft_free_bytes(weft_env_system(), data);
    return unpacked;
}

static void fields(void **state)
{
    static struct samples s;
    Weft__Control__Snap snap = WEFT__CONTROL__SNAP__INIT;
    Weft__Control__SnapArmed armed = WEFT__CONTROL__SNAP_ARMED__INIT;
    Weft__Control__Control message = fill(&s), *got = pass(&message);
    const Weft__Control__SnapPiece *piece = got->snap_pieces->pieces[0];
    assert_true(got->snap_pieces->id == 9 && got->snap_pieces->last && got->snap_pieces->n_pieces == 1);
    assert_string_equal(got->snap_pieces->error, "disk full");
    assert_memory_equal(piece->name.data, "0123456789abcdef", 16);
    assert_true(piece->chain == 1 && piece->bytes == 96 && piece->stored == 50 && piece->n_ranges == 2);
    assert_true(piece->ranges[1]->tensor == 3 && piece->ranges[1]->part == 2 && piece->ranges[1]->step == 77);
    assert_true(piece->ranges[1]->offset == 1000 && piece->ranges[1]->count == 24);
    weft_control_free(weft_env_system(), got);

    snap.id = 4, snap.step = UINT64_MAX, snap.drop = true;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP;
    message.snap = &snap;
    got = pass(&message);
    assert_true(got->snap->id == 4 && got->snap->step == UINT64_MAX && got->snap->drop);
    weft_control_free(weft_env_system(), got);
    armed.id = 4, armed.newest = 12, armed.late = true;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP_ARMED;
    message.snap_armed = &armed;
    got = pass(&message);
    assert_true(got->snap_armed->id == 4 && got->snap_armed->newest == 12 && got->snap_armed->late);
    weft_control_free(weft_env_system(), got);
}

/* A worker's part: values out of range are refused (refuses_parts), these fields survive. */
static void part_fields(void **state)
{
    Weft__Control__SnapPart part = WEFT__CONTROL__SNAP_PART__INIT;
    Weft__Control__SnapWanted wanted = WEFT__CONTROL__SNAP_WANTED__INIT;
    Weft__Control__SnapData data = WEFT__CONTROL__SNAP_DATA__INIT;
    Weft__Control__SnapFetch fetch = WEFT__CONTROL__SNAP_FETCH__INIT;
    Weft__Control__SnapFetched fetched = WEFT__CONTROL__SNAP_FETCHED__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT, *got;
    part.id = 3, part.rank = 5, part.bytes = WEFT_LIMIT_SNAP_PART_BYTES;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP_PART, message.snap_part = &part;
    got = pass(&message);
    assert_true(got->snap_part->id == 3 && got->snap_part->rank == 5 &&
                got->snap_part->bytes == WEFT_LIMIT_SNAP_PART_BYTES);
    weft_control_free(weft_env_system(), got);
    wanted.id = 3, wanted.offset = WEFT_LIMIT_SNAP_PART_BYTES;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP_WANTED, message.snap_wanted = &wanted;
    got = pass(&message);
    assert_true(got->snap_wanted->id == 3 && got->snap_wanted->offset == WEFT_LIMIT_SNAP_PART_BYTES);
    weft_control_free(weft_env_system(), got);
    data.id = 3, data.offset = 77, data.data = NAME;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP_DATA, message.snap_data = &data;
    got = pass(&message);
    assert_true(got->snap_data->id == 3 && got->snap_data->offset == 77 && got->snap_data->data.len == 16);
    weft_control_free(weft_env_system(), got);
    fetch.rank = 4095, fetch.offset = 12;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP_FETCH, message.snap_fetch = &fetch;
    got = pass(&message);
    assert_true(got->snap_fetch->rank == 4095 && got->snap_fetch->offset == 12);
    weft_control_free(weft_env_system(), got);
    fetched.rank = 4, fetched.offset = 12, fetched.bytes = 28, fetched.data = NAME;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP_FETCHED, message.snap_fetched = &fetched;
    got = pass(&message);
    assert_true(got->snap_fetched->rank == 4 && got->snap_fetched->offset == 12 &&
                got->snap_fetched->bytes == 28 && got->snap_fetched->data.len == 16);
    weft_control_free(weft_env_system(), got);
}

/* Packed by protobuf directly, a message that pack refuses is refused by unpack too. */
static void refused(Weft__Control__Control *message, const char *what)
{
    static uint8_t data[32 << 20];
    uint8_t *packed;
    size_t bytes;
    Weft__Control__Control *unpacked;
    if (weft_control_pack(weft_env_system(), message, &packed, &bytes) != WEFT_ERR_LIMIT)
        fail_msg("packed: %s", what);
    bytes = protobuf_c_message_get_packed_size(&message->base);
    assert_true(bytes <= sizeof data);
    protobuf_c_message_pack(&message->base, data);
    if (weft_control_unpack(weft_env_system(), data, bytes, &unpacked) != WEFT_ERR_MALFORMED)
        fail_msg("unpacked: %s", what);
}

#define REFUSED(change) (message = fill(&s), change, refused(&message, #change))

static void limits(void **state)
{
    static struct samples s;
    static char text[WEFT_LIMIT_TEXT_BYTES + 2];
    Weft__Control__Control message;
    memset(text, 't', sizeof text - 1);
    REFUSED(s.piece.name.len = 15);
    REFUSED(s.piece.base_name.len = 15);
    REFUSED(s.piece.base_name.len = 0);
    REFUSED(s.piece.chain = 0);
    REFUSED(s.piece.chain = WEFT_LIMIT_SNAP_CHAIN + 1);
    REFUSED(s.piece.bytes = WEFT_LIMIT_SNAP_PIECE_BYTES + 1);
    REFUSED(s.piece.stored = 2 * WEFT_LIMIT_SNAP_PIECE_BYTES + 1);
    REFUSED(s.piece.n_ranges = 0);
    REFUSED(s.piece.n_ranges = WEFT_LIMIT_SNAP_RANGES + 1);
    REFUSED(s.range.tensor = WEFT_LIMIT_TENSORS);
    REFUSED(s.range.part = WEFT_LIMIT_SNAP_PARTS);
    REFUSED(s.range.count = 0);
    REFUSED(s.range.count = WEFT_LIMIT_TENSOR_ELEMS);
    REFUSED(s.range.offset = WEFT_LIMIT_TENSOR_ELEMS);
    REFUSED(s.body.n_pieces = WEFT_LIMIT_SNAP_PIECES + 1);
    REFUSED(s.body.error = text);
}

static void part_limits(void **state)
{
    Weft__Control__SnapPart part = WEFT__CONTROL__SNAP_PART__INIT;
    Weft__Control__SnapWanted wanted = WEFT__CONTROL__SNAP_WANTED__INIT;
    Weft__Control__SnapData data = WEFT__CONTROL__SNAP_DATA__INIT;
    Weft__Control__SnapFetch fetch = WEFT__CONTROL__SNAP_FETCH__INIT;
    Weft__Control__SnapFetched fetched = WEFT__CONTROL__SNAP_FETCHED__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP_PART, message.snap_part = &part;
    refused(&message, "a part of no bytes and no error");
    part.bytes = 8, part.error = (char *)"disk full";
    refused(&message, "a part of bytes and an error");
    part.error = (char *)"", part.rank = WEFT_LIMIT_WORKERS;
    refused(&message, "a rank above the limit");
    part.rank = 0, part.bytes = WEFT_LIMIT_SNAP_PART_BYTES + 1;
    refused(&message, "a part above the limit");
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP_WANTED, message.snap_wanted = &wanted;
    wanted.offset = WEFT_LIMIT_SNAP_PART_BYTES + 1;
    refused(&message, "an offset above the limit");
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP_DATA, message.snap_data = &data;
    refused(&message, "no data");
    data.data = NAME, data.offset = WEFT_LIMIT_SNAP_PART_BYTES - 15;
    refused(&message, "data beyond the limit");
    data.offset = 0, data.data.len = WEFT_LIMIT_SNAP_DATA_BYTES + 1;
    data.data.data = calloc(1, data.data.len);
    refused(&message, "more data than a message holds");
    free(data.data.data);
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP_FETCH, message.snap_fetch = &fetch;
    fetch.rank = WEFT_LIMIT_WORKERS;
    refused(&message, "a fetch of a rank above the limit");
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP_FETCHED, message.snap_fetched = &fetched;
    fetched.bytes = 8;
    refused(&message, "a part without data");
    fetched.data = NAME;
    refused(&message, "data beyond the part");
    fetched.bytes = 0;
    refused(&message, "data of no part");
    fetched.bytes = 16, fetched.error = (char *)"damaged";
    refused(&message, "data and an error");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(fields), cmocka_unit_test(limits),
                                       cmocka_unit_test(part_fields), cmocka_unit_test(part_limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
