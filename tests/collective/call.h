/* call.h - one collective of all ranks in the simulator, checked against the reference in bits. */
#ifndef WEFT_TESTS_CALL_H
#define WEFT_TESTS_CALL_H

#include "tests/collective/reference.h"
#include "tests/collective/world.h"

struct posted {
    struct call call;
    uint32_t rank;
    bool in_place;
    uint8_t *memory;   /* buffers with guards around each */
    bool borrowed;     /* memory is not to be freed */
    uint8_t *in, *out;
    struct outcome outcome;
    struct weft_coll *coll;
};

/* Fill the buffers of one rank. */
void posted_prepare(struct posted *posted, const struct call *call, uint32_t rank, bool in_place);
/* The same in the caller's memory, (posted_bytes(call),). */
size_t posted_bytes(const struct call *call);
void posted_prepare_at(struct posted *posted, const struct call *call, uint32_t rank, bool in_place,
                       uint8_t *memory);
enum weft_status posted_start(struct posted *posted, struct weft_group *group, uint64_t deadline_ns);
/* Checks that the output equals the reference and the guards are intact; else writes one sentence into
 * why. */
bool posted_check(const struct posted *posted, char *why, size_t why_bytes);
void posted_release(struct posted *posted);
void call_name(const struct call *call, char *out, size_t out_bytes);

#endif
