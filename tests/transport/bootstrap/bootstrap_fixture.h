/* bootstrap_fixture.h - bare bootstrap endpoints over real sockets, for the tests of
 * transport/bootstrap/bootstrap.h. */
#ifndef WEFT_TESTS_TRANSPORT_BOOTSTRAP_BOOTSTRAP_FIXTURE_H
#define WEFT_TESTS_TRANSPORT_BOOTSTRAP_BOOTSTRAP_FIXTURE_H

#include "tests/lib/check.h"
#include "transport/bootstrap/bootstrap.h"

struct place;

struct fixture_peer { /* one peer of a place */
    struct place *place;
    struct bootstrap_peer *peer; /* NULL after `disconnected` */
    uint32_t id;
    int connected, disconnected, messages;
    uint32_t parameter_bytes, message_bytes;
    uint8_t parameters[BOOTSTRAP_PARAMETER_BYTES_MAX], message[BOOTSTRAP_MESSAGE_BYTES_MAX];
    int descriptors[BOOTSTRAP_DESCRIPTORS_MAX]; /* received with the parameters or the last message */
    uint32_t descriptor_count;
    enum weft_status status;
    char text[300];
    uint64_t gone_ns;
    bool forget_in_connected; /* forgets the peer inside the callback */
};

struct place {
    struct bootstrap *bootstrap;
    uint32_t id;
};

/* Default options of a place; change them before place_open. */
void place_options(struct bootstrap_options *options, enum bootstrap_family family, uint32_t id,
                   const char *secret);
void place_open(struct place *place, const struct bootstrap_options *options);
void place_open_in(struct place *place, struct weft_env *env, const struct bootstrap_options *options);
void place_close(struct place *place);
enum weft_status place_connect(struct place *place, struct fixture_peer *fixture_peer,
                               const struct place *other, const void *parameters, size_t bytes,
                               const int *descriptors, uint32_t count);
void place_step(struct place *const *places, int count);

/* Progresses all places until the expression holds; fails after a minute. */
#define STEP_UNTIL(places, count, expression)                                                        \
    do {                                                                                             \
        uint64_t limit_ns_ = weft_now_ns(weft_env_system()) + WEFT_SECONDS(60);                      \
        while (!(expression)) {                                                                      \
            place_step((places), (count));                                                           \
            if (weft_now_ns(weft_env_system()) > limit_ns_) fail_msg("never true: %s", #expression); \
        }                                                                                            \
    } while (0)

/* A blocking socket connected to the place, for the hostile side of a test. */
int unproven_connect(const struct place *place);
int open_descriptor_count(void); /* of this process */

#endif
