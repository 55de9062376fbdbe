/* wrap_options.h - the parameters of a wrapper: "drop=0.01,delay_us=100,jitter_us=20,rate_bytes=12500000,kill_after=1000,seed=7". */
#ifndef WEFT_TRANSPORT_WRAP_OPTIONS_H
#define WEFT_TRANSPORT_WRAP_OPTIONS_H

#include "base/base.h"

struct wrap_options {
    double drop;          /* fault: chance that a message is lost, 0..1; its peer is silent from then on */
    uint64_t kill_after;  /* fault: messages, in and out, after which the endpoint falls silent; 0: never */
    uint64_t delay_ns;    /* one way, added to every message sent */
    uint64_t jitter_ns;   /* uniform 0..jitter on top */
    uint64_t rate_bytes;  /* bytes per second of this endpoint, each direction; 0: unlimited */
    uint64_t seed;        /* default 1 */
};

/* `fault`: drop and kill_after are allowed. text may be NULL. WEFT_ERR_INVALID names the parameter. */
enum weft_status wrap_options_parse(const char *text, bool fault, struct wrap_options *options_out, struct weft_error *error);

#endif
