/* report.h - the figures of this rank for the coordinator, from the engine by way of the net thread. */
#ifndef WEFT_CLIENT_ENGINE_REPORT_REPORT_H
#define WEFT_CLIENT_ENGINE_REPORT_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "client/engine/report/operation_times.h"
#include "collective/codec_times.h"
#include "proto/proto.h"

struct weft_session;

struct client_report_links {
    uint32_t members[WEFT_LIMIT_REPORT_LINKS];
    uint64_t bytes[WEFT_LIMIT_REPORT_LINKS]; /* descending */
};

struct client_report_codec {
    Weft__Control__CodecFigures figures;
    struct weft_codec_times times; /* histograms of the codecs */
};

struct client_report {
    struct weft_command ask, reply;
    struct weft_session *session;
    bool is_pending;                     /* net thread: the engine has not answered */
    Weft__Control__Report figures;       /* written by the engine between ask and reply */
    char open[480];                      /* figures.open */
    /* their counts are figures.step_buckets, exposed_buckets and failover_buckets */
    struct weft_histogram step, exposed, failover;
    struct client_operation_times operations;
    struct client_report_links links;    /* figures.link_members and link_bytes */
    struct client_report_codec codec;    /* figures.codec */
    uint64_t requests_seen;              /* engine: requests_done at the last report ... */
    uint64_t progress_ns;                /* ... and the time of the report that saw it change; 0: never */
};

/* Net thread. A request of which the engine has not answered the one before has no effect. */
void client_report_request(struct weft_session *session);

#endif
