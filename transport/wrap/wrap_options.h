/* wrap_options.h - the parameters of one wrapper:
 * "drop=0.01,delay_us=100,jitter_us=20,rate_bytes=12500000,kill_after=1000,seed=7" of fault and delay,
 * "file=trace-%e.json,limit=100000000" of trace. */
#ifndef WEFT_TRANSPORT_WRAP_OPTIONS_H
#define WEFT_TRANSPORT_WRAP_OPTIONS_H

#include "base/base.h"

enum wrap_role { WRAP_FAULT, WRAP_DELAY, WRAP_TRACE };

struct wrap_options {
    double drop;          /* fault: chance that an operation is lost, 0..1; its peer is silent from then on */
    double breaks;        /* fault: chance that an operation breaks the connection: its peer is reported as
                           * lost */
    uint64_t kill_after;  /* fault: operations, in and out, after which the endpoint falls silent; 0: never */
    uint64_t delay_ns;    /* one way, added to every operation that leaves */
    uint64_t jitter_ns;   /* uniform 0..jitter on top */
    uint64_t rate_bytes;  /* bytes per second of this endpoint, each direction; 0: unlimited */
    uint64_t seed;        /* default 1 */
    char file[256];       /* trace: pattern of its name */
    uint64_t limit_bytes; /* trace: of the file, default 1 GiB */
};

/* text, perhaps behind the wrapper's own name and ':', up to its first ';' (more belongs to the wrapper
 * inside); may be NULL. WEFT_ERR_INVALID names the parameter. */
enum weft_status wrap_options_parse(const char *text, enum wrap_role role, struct wrap_options *options_out,
                                    struct weft_error *error);

#endif
