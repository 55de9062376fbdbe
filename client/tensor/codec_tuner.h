/* tensor/codec_tuner.h - the judge (compress/tuner/codec_tuner.h) at work in a session: tensors declared with
 * codec "auto".
 *
 *     first step_begin   measure   every rank times the candidates on samples; the link is that of the job's
 *                                  link table (session->link.cost), or they time it together where there is
 *                                  none
 *                        decide    rank 0, from all ranks' figures; broadcast, in force from this step
 *     then, every CLIENT_CODEC_TUNER_PERIOD_STEPS steps
 *       step s           figures of the steps before are gathered, beside the step's other traffic
 *       step s + 1       rank 0 looks and broadcasts (revision, choices)
 *       step s + 2       in force everywhere: every rank's step_end has waited for the broadcast
 *
 * Where the choices move too little to tell anything about the link, the ranks time an all-reduce of their
 * own now and then, in step s + 2: never more than one part in a hundred of the time.
 *
 * The revision stands in every step's record (step.c), so ranks that do not agree find out before the first
 * exchange that needs the record. A tensor that changes its codec takes along what the old one still owes
 * (tensor->carry) and adds it to its next contribution: nothing is lost.
 *
 * In an elastic job each membership begins anew with the first step_begin: its ranks, some of them new or
 * back from their rest, measure, rank 0 decides, and all make their codecs anew. A look that a loss has cut
 * short is forgotten with the membership.
 *
 * Caller's thread, between steps; the engine adds to `traffic` while a step is open. */
#ifndef WEFT_CLIENT_TENSOR_CODEC_TUNER_H
#define WEFT_CLIENT_TENSOR_CODEC_TUNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compress/compress.h"
#include "weft/weft.h"

#define CLIENT_CODEC_TUNER_PERIOD_STEPS 8u

struct weft_session;
struct weft_tensor;

/* Of one tensor; in struct weft_tensor. */
struct client_codec_choice {
    struct weft_codec_candidates candidates; /* count 0: the codec is fixed */
    struct weft_codec_cost costs[WEFT_CODEC_CANDIDATES_MAX];
    uint8_t chosen;
    uint32_t changes;
    uint64_t since_step, coded_steps;
    double saved_bytes, saved_ns; /* against dense, over all steps, by the model */
    double ready_ns;              /* sum since the last look */
    uint32_t ready_count;
};

enum { CLIENT_DECISION_REVISION, CLIENT_DECISION_PROBE_BYTES, CLIENT_DECISION_CHOICES };
enum client_codec_tuner_phase {
    CLIENT_CODEC_TUNER_IDLE = 0,
    CLIENT_CODEC_TUNER_GATHERING,
    CLIENT_CODEC_TUNER_BROADCASTING
};

/* Of the session. */
struct client_codec_tuner {
    struct weft_tensor **tensors; /* (count,) owned: those with candidates, in the order of declaration */
    uint32_t count, capacity;
    bool measured;
    uint32_t epoch; /* of the membership that measured: another one begins anew */
    uint32_t revision;     /* in force; rises with each change */
    uint64_t revised_step; /* since */
    double latency_ns, bytes_per_second, steal;
    uint64_t probed_ns; /* when the link was last measured on its own */
    bool latency_from_table, bandwidth_from_table; /* still the link table's: what is measured takes its
                                                    * place */
    enum client_codec_tuner_phase phase;

    /* of the steps since the last look that ran wholly under the present choices */
    double step_ns[CLIENT_CODEC_TUNER_PERIOD_STEPS], compute_ns[CLIENT_CODEC_TUNER_PERIOD_STEPS];
    uint32_t step_count;
    double rate_max;                  /* bytes per second, of the steps that moved enough to tell */
    struct client_codec_traffic {           /* engine's: of the open step */
        double moved_bytes, coded_ns; /* over the link; expected work of the codecs meanwhile */
        double return_bytes;          /* the most that any exchange brings back when its own are out */
        uint64_t busy_ns, busy_since_ns;
        uint32_t running;
    } traffic;

    /* what travels, and what rank 0 thinks with; owned */
    double *mine, *all; /* (words,), (ranks * words,) */
    uint64_t words;
    int64_t *decision; /* (CLIENT_DECISION_CHOICES + count,): revision, bytes to probe the link with,
                        * choices */
    struct weft_codec_tuner *tuner;
    struct weft_codec_tuner_tensor *figures; /* (count,) */
    uint32_t *order;
    struct weft_request gather_request, decision_request;
};

/* Caller: the tensor has candidates. WEFT_ERR_NO_MEMORY. */
enum weft_status client_codec_tuner_add(struct weft_session *session, struct weft_tensor *tensor);
/* between steps; the next one measures anew */
void client_codec_tuner_remove(struct weft_session *session, const struct weft_tensor *tensor);
void client_codec_tuner_free(struct weft_session *session);
/* Caller, from step_begin before anything of the step is posted. The first time, and when tensors were
 * declared or ranks have gone or come since: blocks while all ranks measure. WEFT_ERR_PEER_LOST: one was
 * lost meanwhile. */
enum weft_status client_codec_tuner_step_begin(struct weft_session *session, uint64_t step);
/* Caller, from step_end when the step went well. */
void client_codec_tuner_step_end(struct weft_session *session, uint64_t step_ns, uint64_t exposed_ns);
/* Caller, from push_pull. */
void client_codec_tuner_tensor_ready(struct weft_tensor *tensor);
/* Engine: the tensor's exchange begins, and has ended. */
void client_codec_tuner_exchange_posted(struct weft_tensor *tensor);
void client_codec_tuner_exchange_completed(struct weft_tensor *tensor);

/* Caller, from weft_finalize: what was chosen and what it saved, into the log (level info). */
void client_codec_tuner_report(struct weft_session *session);

/* codec_tuner_measure.c: costs of all candidates, latency, bandwidth, steal. Blocks; equal results on all
 * ranks. */
enum weft_status client_codec_tuner_measure(struct weft_session *session);
/* Time of one rank where the ranks combine a round in slices. combine_ns: of one combiner for all
 * elements, which gave `aggregate`. Without memory, packing counts as nothing. */
double client_codec_tuner_sliced_ns(struct weft_env *env, const struct weft_slices *slices,
                                    const void *aggregate, size_t aggregate_bytes, double combine_ns);
/* What was measured of it counts as much as what was thought, and alone against a table. */
void client_codec_tuner_add_bandwidth(struct client_codec_tuner *codec_tuner, double bytes_per_second);
/* The bandwidth again, with one all-reduce of so many bytes; where the figures came from a table, its
 * latency, too. Blocks; equal results on all ranks. */
enum weft_status client_codec_tuner_probe(struct weft_session *session, size_t bytes);
#define CLIENT_PROBE_BYTES_MIN ((size_t)1 << 20)
#define CLIENT_PROBE_BYTES_MAX ((size_t)16 << 20)

#endif
