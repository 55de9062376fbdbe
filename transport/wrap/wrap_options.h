/* wrap_options.h - the parameters of one wrapper. fault and delay:
 * "drop=0.01,delay_us=100,jitter_us=20,rate_bytes=12500000,kill_after=1000,seed=7". trace:
 * "file=trace-%e.json,limit=100000000". */
#ifndef WEFT_TRANSPORT_WRAP_OPTIONS_H
#define WEFT_TRANSPORT_WRAP_OPTIONS_H

#include "base/base.h"

enum wrap_role { WRAP_FAULT, WRAP_DELAY, WRAP_TRACE };

struct wrap_options {
    double drop; /* fault: probability that an operation is lost, 0..1; its peer is silent from then on */
    /* fault: probability that an operation breaks the connection; its peer is reported as lost */
    double breaks;
    uint64_t kill_after;  /* fault: operations, in and out, after which the endpoint is silent; 0: never */
    uint64_t delay_ns;    /* one way, added to every outgoing operation */
    uint64_t jitter_ns;   /* uniform 0..jitter, added */
    uint64_t rate_bytes;  /* bytes per second of this endpoint, each direction; 0: unlimited */
    uint64_t seed;        /* default 1 */
    char file[256];       /* trace: pattern of the file name */
    uint64_t limit_bytes; /* trace: file size, default 1 GiB */
};

/* Parses text up to its first ';' (the rest belongs to the inner wrapper); it may begin with the wrapper's
 * name and ':'. NULL is fine. WEFT_ERR_INVALID names the parameter. */
enum weft_status wrap_options_parse(const char *text, enum wrap_role role, struct wrap_options *options_out,
                                    struct weft_error *error);

#endif
